//! Other components of the same engine, which nothing that a hostile one does may disturb.

use std::sync::Arc;

use portcullis::adapters::wasm::{Admission, Admitted, builtin};
use portcullis::model::verdict::Verdict;
use portcullis::ports::approval::ApprovalComponent as _;
use portcullis::ports::connector::ConnectorComponent as _;
use portcullis::ports::sanitiser::{Place, SanitiserComponent as _, Target, Verdict as Cleaned};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::policy::{engine, facts, output, patient, source, tool_facts};

struct Neighbours {
    approval: Admitted,
    connector: Admitted,
    sanitiser: Admitted,
}

fn admit(bytes: &[u8], settings: Value) -> Admitted {
    let wanted = Admission { settings, limits: patient(), ..Admission::plain(source("neighbour")) };
    engine().admit(bytes, wanted).unwrap()
}

/// Loaded once and asked for as long as the process lives: what broke them once would be seen at every later look.
async fn neighbours() -> &'static Neighbours {
    static NEIGHBOURS: OnceCell<Neighbours> = OnceCell::const_new();
    let load = async || Neighbours {
        approval: admit(builtin::DEMO_MANAGED, Value::Null),
        connector: admit(builtin::CONNECTOR_BASELINE, json!({"apps": {"calendar": {"enabled": false}}})),
        sanitiser: admit(&guest_builder::build("tunable").unwrap(), json!({"word": "secret"})),
    };
    NEIGHBOURS.get_or_init(load).await
}

/// A component of each decision point answers an ordinary call as always, and would answer another one otherwise.
pub(super) async fn neighbours_work() {
    let Neighbours { approval, connector, sanitiser } = neighbours().await;
    let approval = approval.approval.as_ref().unwrap();
    let asked = approval.evaluate(Arc::new(facts("vault/read_secret", r#"{"name":"root-key"}"#))).await;
    assert!(
        matches!(&asked.result, Ok(Verdict::Deny(why)) if why.rule.as_ref().unwrap().as_str() == "root-key-is-sealed"),
        "{asked:?}"
    );
    let asked = connector.connector.as_ref().unwrap().evaluate(Arc::new(tool_facts("test/any"))).await;
    assert_eq!(asked.result.unwrap().enabled, Some(false));
    let target = Target { place: Place::Text, pointer: "/content/0/text".to_owned(), text: "a secret text".into() };
    let asked = sanitiser.sanitiser.as_ref().unwrap().sanitise(Arc::new(output("test/any", target))).await;
    assert!(matches!(&asked.result, Ok((Cleaned::Edit(edits), _)) if edits.len() == 1), "{asked:?}");
}
