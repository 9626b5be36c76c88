//! A made-up older version, `portcullis:policy@0.0.1`: smaller, with other shapes and answers as text. For tests only.
//!
//! It stands for whatever an adapter of an old track may do, and does it badly on purpose: it believes what the guest says and
//! checks nothing. The tests below show that nothing comes of that, because what a guest may learn is in `state` and what an
//! answer means in `answer`, and an adapter can reach behind neither.

use wasmtime::component::{HasSelf, InstancePre, Linker};
use wasmtime::{Error, Store};

use super::Track;
use crate::adapters::wasm::hooks::{
    Exports, Hooks, RawApproval, RawConnector, RawOutcome, RawReason, RawSanitised, RawVerdict, Reusable,
};
use crate::adapters::wasm::state::State;
use crate::model::verdict::{Remember, Reviewers};
use crate::ports::sanitiser::{Class, Edit};

#[allow(missing_docs, unreachable_pub, dead_code, unused_qualifications, reason = "generated code")]
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
mod policy {
    wasmtime::component::bindgen!({
        path: "tests/wit/v0.0",
        world: "approval-policy",
        imports: { default: trappable },
    });
}

#[allow(missing_docs, unreachable_pub, dead_code, unused_qualifications, reason = "generated code")]
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
mod cleaner {
    wasmtime::component::bindgen!({
        path: "tests/wit/v0.0",
        world: "output-sanitiser",
        imports: { default: trappable },
        with: { "portcullis:policy/host": super::policy::portcullis::policy::host },
    });
}

use policy::portcullis::policy::host;

/// The track.
pub(super) const TRACK: Track = Track { name: "0.0", patch: 1, offered: &["host"], link, hooks };

fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    host::add_to_linker::<State, HasSelf<State>>(linker, |state| state)
}

struct Component {
    linked: InstancePre<State>,
    approval: Option<policy::ApprovalPolicyPre<State>>,
    sanitiser: Option<cleaner::OutputSanitiserPre<State>>,
}

fn hooks(linked: &InstancePre<State>, exports: Exports) -> wasmtime::Result<Box<dyn Hooks>> {
    let pre = || linked.clone();
    Ok(Box::new(Component {
        approval: exports.approval.then(|| policy::ApprovalPolicyPre::new(pre())).transpose()?,
        sanitiser: exports.sanitiser.then(|| cleaner::OutputSanitiserPre::new(pre())).transpose()?,
        linked: pre(),
    }))
}

fn unknown() -> Error {
    Error::msg("this track does not know that")
}

impl Hooks for Component {
    fn exports(&self) -> Exports {
        Exports { approval: self.approval.is_some(), sanitiser: self.sanitiser.is_some(), ..Exports::default() }
    }

    fn start(&self, store: &mut Store<State>) -> wasmtime::Result<()> {
        self.linked.instantiate(store).map(drop)
    }

    fn approve(&self, store: &mut Store<State>) -> wasmtime::Result<RawApproval> {
        let policy = self.approval.as_ref().ok_or_else(unknown)?.instantiate(&mut *store)?;
        // The facts that the old interface passed along, by the only way to them.
        let (tool, arguments) = (store.data_mut().call_name()?, store.data_mut().call_arguments()?);
        let said = policy.portcullis_policy_approval().call_evaluate(&mut *store, &tool, &arguments)?;
        let mut words = said.splitn(3, ' ');
        let verdict = words.next().unwrap_or_default().to_owned();
        let rule = words.next().map(str::to_owned);
        let labels = words.next().map(|labels| labels.split(',').map(str::to_owned).collect()).unwrap_or_default();
        let reason = RawReason { rule, text: String::new() };
        let verdict = match verdict.as_str() {
            "abstain" => RawVerdict::Abstain,
            "allow" => RawVerdict::Allow(reason),
            "ask" => RawVerdict::Ask {
                reason,
                remember: Remember::Always,
                bind_arguments: false,
                reviewers: Reviewers::default(),
            },
            "deny" => RawVerdict::Deny(reason),
            _ => return Err(unknown()),
        };
        Ok(RawApproval { verdict, labels })
    }

    fn connect(&self, _: &mut Store<State>) -> wasmtime::Result<RawConnector> {
        Err(unknown())
    }

    fn sanitise(&self, store: &mut Store<State>) -> wasmtime::Result<RawSanitised> {
        let policy = self.sanitiser.as_ref().ok_or_else(unknown)?.instantiate(&mut *store)?;
        let text = store.data_mut().output_text(0)?.unwrap_or_default();
        let cuts = policy.portcullis_policy_sanitiser().call_clean(&mut *store, &text)?.into_iter();
        let edits = cuts.map(|(start, end)| Edit::Replace { target: 0, start, end, class: Class::Other });
        Ok(RawSanitised { rule: None, outcome: RawOutcome::Edit(edits.collect()), labels: Vec::new() })
    }

    fn schema(&self, _: &mut Store<State>) -> wasmtime::Result<String> {
        Err(unknown())
    }

    fn validate(&self, _: &mut Store<State>, _: &str) -> wasmtime::Result<Vec<(String, String)>> {
        Err(unknown())
    }

    fn reusable(&self, _: &mut Store<State>) -> wasmtime::Result<Box<dyn Reusable>> {
        Err(unknown())
    }
}

impl host::Host for State {
    fn arguments(&mut self) -> wasmtime::Result<String> {
        self.call_arguments()
    }

    fn read(&mut self, path: String) -> wasmtime::Result<Option<Vec<u8>>> {
        Ok(self.host_data(&path)?.ok())
    }

    fn find(&mut self, pattern: String) -> wasmtime::Result<Vec<(u32, u32)>> {
        let spans = self.output_find(0, &[pattern])?;
        Ok(spans.into_iter().map(|span| (span.start, span.end)).collect())
    }

    fn setting(&mut self, name: String) -> wasmtime::Result<Option<String>> {
        let text = self.host_setting(&format!("/{name}"))?;
        Ok(text.map(|text| text.trim_matches('"').to_owned()))
    }

    fn count(&mut self, key: String) -> wasmtime::Result<u64> {
        self.host_count(&key, 60_000)
    }

    fn note(&mut self, line: String) -> wasmtime::Result<()> {
        self.host_log("info", &line)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    use serde_json::{Value, json};

    use crate::adapters::wasm::{Admission, Admitted, Engine, Limits};
    use crate::config::data::DataFiles;
    use crate::model::arguments::Arguments;
    use crate::model::caller::Caller;
    use crate::model::digest::Digest;
    use crate::model::layer::{LayerKind, LayerRef};
    use crate::model::name::ToolRef;
    use crate::model::posture::Posture;
    use crate::model::tool::{Hints, ServerIdentity};
    use crate::model::verdict::{Fault, FaultCode, Folded, OnFailure, Source, Verdict};
    use crate::pipeline::consent::fold::{Opinion, fold};
    use crate::ports::approval::{ApprovalComponent as _, CallFacts, Evaluation, Kind};
    use crate::ports::sanitiser::{OutputFacts, Place, Sanitised, SanitiserComponent as _, Target, Verdict as Cleaned};
    use crate::ports::state::Moment;

    const IMPORTS: &str = r#"
        (import "portcullis:policy/host@0.0.1" "arguments" (func $arguments (param i32)))
        (import "portcullis:policy/host@0.0.1" "read" (func $read (param i32 i32 i32)))
        (import "portcullis:policy/host@0.0.1" "find" (func $find (param i32 i32 i32)))
        (import "portcullis:policy/host@0.0.1" "setting" (func $setting (param i32 i32 i32)))
        (import "portcullis:policy/host@0.0.1" "count" (func $count (param i32 i32) (result i64)))
        (import "portcullis:policy/host@0.0.1" "note" (func $note (param i32 i32)))
        (memory (export "memory") 64)
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 262144))"#;

    /// Answers with the text that address 64 tells of, which is `said` unless `body` changes it. Names lie at 4096.
    fn guest(body: &str, name: &str, said: &str) -> Vec<u8> {
        let length = said.len();
        let bytes: String = length.to_le_bytes()[..4].iter().map(|byte| format!("\\{byte:02x}")).collect();
        let text = format!(
            r#"(module {IMPORTS}
            (func (export "portcullis:policy/approval@0.0.1#evaluate") (param i32 i32 i32 i32) (result i32)
              {body} (i32.const 64))
            (data (i32.const 64) "\00\00\01\00{bytes}") (data (i32.const 4096) "{name}") (data (i32.const 65536) "{said}"))"#
        );
        component(&text, "approval-policy")
    }

    /// A sanitiser that cuts nothing, after `body`.
    fn cleaner(body: &str, name: &str) -> Vec<u8> {
        let text = format!(
            r#"(module {IMPORTS}
            (func (export "portcullis:policy/sanitiser@0.0.1#clean") (param i32 i32) (result i32) {body} (i32.const 64))
            (data (i32.const 4096) "{name}"))"#
        );
        component(&text, "output-sanitiser")
    }

    fn component(text: &str, world: &str) -> Vec<u8> {
        guest_builder::from_core_module(&wat::parse_str(text).unwrap(), "tests/wit/v0.0", world).unwrap()
    }

    fn engine() -> &'static Engine {
        static ENGINE: OnceLock<Engine> = OnceLock::new();
        ENGINE.get_or_init(|| Engine::new().unwrap())
    }

    fn source() -> Source {
        Source { layer: LayerRef::new(LayerKind::User), component: "old".into(), digest: None }
    }

    fn admit(bytes: &[u8], settings: Value, data: Option<Arc<DataFiles>>) -> Result<Admitted, Fault> {
        let limits = Limits { time: Duration::from_secs(1), ..Limits::default() };
        engine().admit(bytes, Admission { settings, data, limits, ..Admission::plain(source()) })
    }

    async fn asked(component: Admitted, arguments: &str) -> Evaluation {
        let facts = CallFacts {
            kind: Kind::Tool,
            tool: ToolRef::parse("test/any").unwrap(),
            identity: ServerIdentity(Digest::of(b"identity")),
            definition: Digest::of(b"definition"),
            hints: Hints::default(),
            caller: Caller::local("tester"),
            connector: None,
            posture: Posture::default(),
            arguments: Arguments::parse(arguments).unwrap(),
            now_ms: 1_700_000_000_000,
            moment: Moment::empty(),
        };
        component.approval.unwrap().evaluate(Arc::new(facts)).await
    }

    async fn says(body: &str, name: &str, said: &str) -> Evaluation {
        asked(admit(&guest(body, name, said), Value::Null, None).unwrap(), "{}").await
    }

    async fn cleaned(body: &str, name: &str) -> Sanitised {
        let admitted = admit(&cleaner(body, name), Value::Null, None).unwrap();
        let target = Target { place: Place::Text, pointer: "/content/0/text".to_owned(), text: "a text".into() };
        let facts = OutputFacts {
            kind: Kind::Tool,
            tool: ToolRef::parse("test/any").unwrap(),
            identity: ServerIdentity(Digest::of(b"identity")),
            caller: Caller::local("tester"),
            is_error: false,
            targets: vec![target],
            labels: Arc::from([]),
            now_ms: 1_700_000_000_000,
        };
        admitted.sanitiser.unwrap().sanitise(Arc::new(facts)).await
    }

    fn code(evaluation: &Evaluation) -> FaultCode {
        evaluation.result.as_ref().expect_err("the adapter got around the check").code
    }

    /// Writes what a host function gave, an option at 128, to where the answer is read from.
    const ANSWER_WITH_IT: &str = "(i32.store (i32.const 64) (i32.load (i32.const 132)))
        (i32.store (i32.const 68) (i32.load (i32.const 136)))";

    #[tokio::test]
    async fn an_older_versions_component_is_asked_and_answers() {
        let said = says("", "", "deny old-rule one,two").await;
        assert!(matches!(&said.result, Ok(Verdict::Deny(why)) if why.rule.as_ref().unwrap().as_str() == "old-rule"));
        assert_eq!(said.labels.iter().map(|label| label.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        assert!(said.usage.fuel > 0 && said.usage.heard.is_some(), "{:?}", said.usage);
        assert!(matches!(cleaned("", "").await.result, Ok((Cleaned::Edit(edits), None)) if edits.is_empty()));
    }

    #[tokio::test]
    async fn no_adapter_hands_out_a_file_that_nobody_granted_or_one_outside_of_the_folder() {
        let read = "(call $read (i32.const 4096) (i32.const 6) (i32.const 128))";
        assert_eq!(code(&says(read, "inside", "abstain").await), FaultCode::MissingImport);
        let data = || Some(Arc::new(DataFiles::new([("inside".to_owned(), b"deny it".to_vec())].into())));
        let whole = format!("{read} {ANSWER_WITH_IT}");
        let granted = asked(admit(&guest(&whole, "inside", ""), Value::Null, data()).unwrap(), "{}").await;
        assert!(matches!(granted.result, Ok(Verdict::Deny(_))), "{:?}", granted.result);
        for outside in ["/passw", "../x/y", "./insi"] {
            let unless = format!("{read} (if (i32.load8_u (i32.const 128)) (then (unreachable)))");
            let component = admit(&guest(&unless, outside, "abstain"), Value::Null, data()).unwrap();
            assert_eq!(asked(component, "{}").await.result, Ok(Verdict::Abstain), "{outside}");
        }
    }

    #[tokio::test]
    async fn no_adapter_sets_labels_or_rules_that_are_none() {
        let many = format!("allow fine {}", ["a"; 17].join(","));
        for said in [many.as_str(), "allow fine NOT-A-LABEL", "deny Ignore", "allow \u{e9}"] {
            let evaluation = says("", "", said).await;
            assert_eq!(code(&evaluation), FaultCode::OutputInvalid, "{said}");
            assert!(evaluation.labels.is_empty());
        }
        assert_eq!(code(&says("", "", "what").await), FaultCode::Trap);
    }

    #[tokio::test]
    async fn no_adapter_reads_or_answers_more_than_the_bounds() {
        let big = format!(r#"{{"text":"{}"}}"#, "x".repeat(1 << 20));
        let arguments = "(call $arguments (i32.const 128))";
        for body in ["", arguments] {
            let component = admit(&guest(body, "", "abstain"), Value::Null, None).unwrap();
            assert_eq!(code(&asked(component, &big).await), FaultCode::InputTooLarge, "{body}");
        }
        let long = "(i32.store (i32.const 68) (i32.const 70000))";
        assert_eq!(code(&says(long, "", "abstain").await), FaultCode::OutputTooLarge);
        assert_eq!(
            code(&says("(call $note (i32.const 4096) (i32.const 70000))", "", "").await),
            FaultCode::OutputTooLarge
        );
    }

    #[tokio::test]
    async fn no_adapter_gives_more_of_the_host_more_log_or_more_time() {
        let forever = |call: &str| format!("(loop $l {call} (br $l))");
        for call in
            ["", "(call $note (i32.const 4096) (i32.const 1))", "(drop (call $count (i32.const 4096) (i32.const 1)))"]
        {
            let evaluation = says(&forever(call), "k", "abstain").await;
            assert!(matches!(code(&evaluation), FaultCode::Fuel | FaultCode::Deadline), "{:?}", evaluation.result);
            assert!(evaluation.log.len() <= 33);
        }
        let some = "(local $i i32) (loop $l (call $note (i32.const 4096) (i32.const 1)) (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $l (i32.lt_u (local.get $i) (i32.const 1000))))";
        let evaluation = says(some, "k", "abstain").await;
        assert_eq!((evaluation.result, evaluation.log.len()), (Ok(Verdict::Abstain), 33));
        let grow = "(drop (memory.grow (i32.const 2000)))";
        assert_eq!(code(&says(grow, "", "abstain").await), FaultCode::Memory);
        assert_eq!(
            code(&says("(drop (call $count (i32.const 4096) (i32.const 0)))", "", "abstain").await),
            FaultCode::OutputInvalid
        );
    }

    #[tokio::test]
    async fn no_adapter_looks_where_nothing_was_asked_about_or_for_what_no_pattern_may_be() {
        let find = "(call $find (i32.const 4096) (i32.const 6) (i32.const 128))";
        assert_eq!(code(&says(find, "a.text", "abstain").await), FaultCode::Trap, "there is no answer to look in");
        let fault = |said: Sanitised| said.result.expect_err("the adapter got around the check").code;
        assert_eq!(fault(cleaned(find, "(((((a").await), FaultCode::OutputInvalid);
        let bomb = "(call $find (i32.const 4096) (i32.const 15) (i32.const 128))";
        assert_eq!(fault(cleaned(bomb, "(\\\\w{100}){100}").await), FaultCode::OutputInvalid);
        assert_eq!(fault(cleaned("(call $arguments (i32.const 128))", "").await), FaultCode::Trap, "there is no call");
        let count = "(drop (call $count (i32.const 4096) (i32.const 1)))";
        assert_eq!(fault(cleaned(count, "k").await), FaultCode::MissingImport, "an answer is not counted");
        let edits = "(i32.store (i32.const 68) (i32.const 4097))";
        assert_eq!(fault(cleaned(edits, "").await), FaultCode::OutputTooLarge);
    }

    #[tokio::test]
    async fn no_adapter_takes_settings_that_are_none_or_shows_another_components() {
        let setting = format!("(call $setting (i32.const 4096) (i32.const 4) (i32.const 128)) {ANSWER_WITH_IT}");
        let bytes = guest(&setting, "says", "");
        for (text, rule) in [("deny one", "one"), ("deny two", "two")] {
            let component = admit(&bytes, json!({"says": text}), None).unwrap();
            let said = asked(component, "{}").await;
            assert!(matches!(&said.result, Ok(Verdict::Deny(why)) if why.rule.as_ref().unwrap().as_str() == rule));
        }
        for bad in [json!("text"), json!({"says": "x".repeat(1 << 20)})] {
            assert_eq!(admit(&bytes, bad, None).unwrap_err().code, FaultCode::Settings);
        }
    }

    #[tokio::test]
    async fn no_adapter_makes_an_allow_count_where_its_layer_may_not_allow() {
        let said = says("", "", "allow old-rule").await.result;
        assert!(matches!(said, Ok(Verdict::Allow(_))));
        let asks = says("", "", "ask baseline").await.result;
        let source = source();
        let opinion = |baseline_for, may_allow, said| Opinion {
            source: source.clone(),
            baseline_for,
            may_allow,
            on_failure: OnFailure::Deny,
            said,
        };
        let baseline = opinion(Some(source.layer.clone()), false, asks);
        for may_allow in [true, false] {
            let opinions = [baseline.clone(), opinion(None, may_allow, said.clone())];
            let (folded, _) = fold(&opinions, &[], None);
            assert_eq!(matches!(folded, Folded::Run { .. }), may_allow, "{folded:?}");
        }
    }

    #[test]
    fn a_component_that_mixes_versions_is_refused() {
        let text = r#"(component (import "portcullis:policy/host@0.1.0" (instance))
            (instance $i) (export "portcullis:policy/approval@0.0.1" (instance $i)))"#;
        let fault = admit(&wat::parse_str(text).unwrap(), Value::Null, None).unwrap_err();
        assert_eq!(fault.code, FaultCode::WrongVersion, "{fault}");
    }
}
