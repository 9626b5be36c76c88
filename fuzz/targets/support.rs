//! What the targets about components share.

use std::sync::Arc;

use portcullis::adapters::wasm::WasmApproval;
use portcullis::model::arguments::Arguments;
use portcullis::model::caller::Caller;
use portcullis::model::digest::Digest;
use portcullis::model::layer::{LayerKind, LayerRef};
use portcullis::model::name::ToolRef;
use portcullis::model::posture::Posture;
use portcullis::model::tool::{Hints, ServerIdentity};
use portcullis::model::verdict::Source;
use portcullis::ports::approval::{ApprovalComponent as _, CallFacts, Evaluation, Kind};
use portcullis::ports::state::Moment;

pub(crate) fn source() -> Source {
    Source { layer: LayerRef::new(LayerKind::User), component: "fuzzed".into(), digest: None }
}

/// Asks a component about one call and waits for what becomes of it.
pub(crate) fn ask(component: &Arc<WasmApproval>, arguments: &str) -> Evaluation {
    let facts = CallFacts {
        kind: Kind::Tool,
        tool: ToolRef::parse("server/tool").expect("a tool"),
        identity: ServerIdentity(Digest::of(b"identity")),
        definition: Digest::of(b"definition"),
        hints: Hints::default(),
        caller: Caller::local("fuzzer"),
        connector: None,
        posture: Posture::default(),
        arguments: Arguments::parse(arguments).expect("arguments"),
        now_ms: 0,
        moment: Moment::empty(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(component.evaluate(Arc::new(facts)))
}
