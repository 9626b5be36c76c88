//! Facts to ask a component with, and hand-written components.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use portcullis::adapters::wasm::{Admission, Engine, Limits, WasmApproval, WasmConnector, builtin};
use portcullis::model::arguments::Arguments;
use portcullis::model::caller::{Caller, TenantId};
use portcullis::model::digest::Digest;
use portcullis::model::layer::{LayerKind, LayerRef};
use portcullis::model::name::ToolRef;
use portcullis::model::posture::Posture;
use portcullis::model::tool::{Connector, Hints, ServerIdentity};
use portcullis::model::verdict::{Fault, Source};
use portcullis::ports::approval::{ApprovalComponent as _, CallFacts, Evaluation, Kind};
use portcullis::ports::connector::AppToolFacts;
use portcullis::ports::sanitiser::{OutputFacts, Target};
use portcullis::ports::state::Moment;

/// One engine for all tests of this process, as in a real host.
pub(crate) fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new().unwrap())
}

pub(crate) fn source(component: &str) -> Source {
    Source { layer: LayerRef::new(LayerKind::User), component: component.into(), digest: None }
}

/// The default limits but the longest time: fuel decides, however busy the machine is.
pub(crate) fn patient() -> Limits {
    Limits { time: Duration::from_secs(1), ..Limits::default() }
}

/// Admits a component that decides about calls.
pub(crate) fn approval(engine: &Engine, bytes: &[u8], wanted: Admission) -> Result<Arc<WasmApproval>, Fault> {
    engine.admit(bytes, wanted).map(|admitted| admitted.approval.expect("it decides about calls"))
}

/// Loads without settings.
pub(crate) fn load(bytes: &[u8]) -> Result<Arc<WasmApproval>, Fault> {
    approval(engine(), bytes, Admission { limits: patient(), ..Admission::plain(source("under-test")) })
}

/// Loads the built-in connector policy with settings.
pub(crate) fn load_connector(settings: serde_json::Value) -> Arc<WasmConnector> {
    let wanted = Admission { settings, limits: patient(), ..Admission::plain(source("connector-baseline")) };
    engine().admit(builtin::CONNECTOR_BASELINE, wanted).unwrap().connector.unwrap()
}

/// A caller of a tenant that nobody else is of: circuits are per tenant, and what one test provokes is not another's.
pub(crate) fn stranger() -> Caller {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let tenant = TenantId::new(format!("tenant-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    Caller { tenant, ..Caller::local("tester") }
}

/// A call of `SERVER/TOOL` with the arguments and nothing remarkable about it.
pub(crate) fn facts(tool: &str, arguments: &str) -> CallFacts {
    CallFacts {
        kind: Kind::Tool,
        tool: ToolRef::parse(tool).unwrap(),
        identity: ServerIdentity(Digest::of(b"identity")),
        definition: Digest::of(b"definition"),
        hints: Hints::default(),
        caller: stranger(),
        connector: None,
        posture: Posture::default(),
        arguments: Arguments::parse(arguments).unwrap(),
        now_ms: 1_700_000_000_000,
        moment: Moment::empty(),
    }
}

/// A tool of the connector `calendar`.
pub(crate) fn tool_facts(tool: &str) -> AppToolFacts {
    AppToolFacts {
        connector: Some(Connector { id: "calendar".to_owned(), name: None, account: None, description: None }),
        tool: ToolRef::parse(tool).unwrap(),
        identity: ServerIdentity(Digest::of(b"identity")),
        title: None,
        hints: Hints::default(),
        caller: stranger(),
        now_ms: 1_700_000_000_000,
    }
}

/// An answer of one text.
pub(crate) fn output(tool: &str, target: Target) -> OutputFacts {
    OutputFacts {
        kind: Kind::Tool,
        tool: ToolRef::parse(tool).unwrap(),
        identity: ServerIdentity(Digest::of(b"identity")),
        caller: stranger(),
        is_error: false,
        targets: vec![target],
        labels: Arc::from([]),
        now_ms: 1_700_000_000_000,
    }
}

pub(crate) async fn ask(component: &WasmApproval, facts: CallFacts) -> Evaluation {
    component.evaluate(Arc::new(facts)).await
}

/// A component made of a core module in WebAssembly text.
///
/// `evaluate` is the body of the exported function: it has the call's handle in local 0 and two scratch locals, and leaves
/// the address of an answer. The memory is zero where `more` puts nothing, so address 64 holds an abstention.
pub(crate) fn handmade(memory: &str, evaluate: &str, more: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "portcullis:policy/types@0.1.0" "[resource-drop]call" (func $drop (param i32)))
            (import "portcullis:policy/types@0.1.0" "[method]call.server" (func $server (param i32 i32)))
            (memory (export "memory") {memory})
            (func (export "portcullis:policy/approval@0.1.0#evaluate") (param $call i32) (result i32)
              (local $i i32) (local $j i64)
              {evaluate})
            {more}
            {realloc})"#,
        realloc = if more.contains("cabi_realloc") { "" } else { REALLOC },
    );
    guest_builder::from_core_module(&wat::parse_str(text).unwrap(), "wit/v0.1", "approval-policy").unwrap()
}

/// The same for a connector policy or a sanitiser: `export` is what of the interface it exports, `handle` what it drops.
///
/// Address 64 holds a decision that changes nothing.
pub(crate) fn handmade_for(world: &str, export: &str, handle: &str, memory: &str, body: &str, more: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "portcullis:policy/types@0.1.0" "[resource-drop]{handle}" (func $drop (param i32)))
            (memory (export "memory") {memory})
            (func (export "portcullis:policy/{export}") (param $call i32) (result i32) {body})
            {more}
            {REALLOC})"#
    );
    guest_builder::from_core_module(&wat::parse_str(text).unwrap(), "wit/v0.1", world).unwrap()
}

const REALLOC: &str = r#"(func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))"#;

/// Ends `evaluate` well: gives the handle back and abstains.
pub(crate) const ABSTAIN: &str = "(call $drop (local.get $call)) (i32.const 64)";
