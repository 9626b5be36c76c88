//! A component that keeps failing: its circuit opens, for one tenant alone, and everybody is told (R14).

use std::sync::Arc;

use portcullis::adapters::wasm::Admission;
use portcullis::model::caller::{Caller, TenantId};
use portcullis::model::decision::{Spoken, Voice};
use portcullis::model::layer::LayerKind;
use portcullis::model::outcome::Code;
use portcullis::model::verdict::{FaultCode, OnFailure};
use portcullis::pipeline::CallRequest;
use portcullis::ports::approval::{Bound, BoundComponent};

use crate::fakes::bench::{Bench, failed, failure};
use crate::fakes::policy::{Everything, Policies, source};
use crate::support::policy::{approval, engine, handmade, patient};

fn fault(voices: &[Voice]) -> FaultCode {
    match &voices.iter().find(|voice| &*voice.source.component == "breaks").unwrap().spoken {
        Spoken::Fault(fault) => fault.code,
        Spoken::Verdict(verdict) => panic!("{verdict:?}"),
    }
}

#[tokio::test]
async fn r14_an_open_circuit_denies_even_where_a_failure_asks_and_item_record_and_explain_say_so() {
    let wanted = Admission { limits: patient(), ..Admission::plain(source(LayerKind::User, "breaks")) };
    let component = approval(engine(), &handmade("1", "(unreachable)", ""), wanted).unwrap();
    let broken: BoundComponent = Bound {
        source: component.source().clone(),
        may_allow: true,
        on_failure: OnFailure::Ask,
        observe: false,
        matches: Arc::new(Everything),
        component: Ok(component),
    };
    let bench = Bench::new(&Policies::open(&["files"]).and(broken)).await;
    for _ in 0..5 {
        assert_eq!(failed(&bench.write().await).1, Code::NobodyToAsk);
    }
    let finished = bench.write().await;
    assert_eq!(failed(&finished).1, Code::ComponentFailed);
    let told = serde_json::to_string(failure(&finished)).unwrap();
    assert!(told.contains("circuit") && told.contains("failed 5 times in a row, at last by `trap`"), "{told}");
    let faults: Vec<_> = bench.tape.decisions().iter().map(|record| fault(&record.decision.voices)).collect();
    assert_eq!(faults, [[FaultCode::Trap; 5].as_slice(), &[FaultCode::Circuit]].concat());
    let explained = bench.pipeline.explain(bench.request("files/write", "{}")).await;
    assert_eq!(fault(&explained.decision.unwrap().voices), FaultCode::Circuit);

    // Another tenant's calls get the component's own failure.
    let caller = Caller { tenant: TenantId::new("neighbour"), ..bench.caller.clone() };
    let other = bench.pipeline.run(CallRequest { caller, ..bench.request("files/write", "{}") }).await;
    assert_eq!(failed(&other).1, Code::NobodyToAsk);
}
