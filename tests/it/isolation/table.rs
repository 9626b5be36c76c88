//! The table of hostile guests: one list drives the tests and `docs/hostile-guests.md`, so that the page cannot be false.
//!
//! Each guest is asked through its port and then through the whole pipeline, bound to a user's layer; after each, other
//! components of the same engine answer as always.

use std::fmt::Write as _;
use std::sync::Arc;

use portcullis::adapters::wasm::{Admission, Admitted};
use portcullis::config::data::DataFiles;
use portcullis::model::cleaning::SanitiserSaid;
use portcullis::model::decision::{ConnectorSpoken, Spoken};
use portcullis::model::layer::LayerKind;
use portcullis::model::verdict::{Fault, FaultCode, OnFailure, Verdict};
use portcullis::pipeline::Finished;
use portcullis::ports::approval::{ApprovalComponent as _, Bound, LogLine};
use portcullis::ports::connector::ConnectorComponent as _;
use portcullis::ports::sanitiser::{Place, SanitiserComponent as _, Target, Verdict as Cleaned};
use serde_json::json;

use super::{is_out_of_budget, neighbours_work};
use crate::fakes::bench::Bench;
use crate::fakes::policy::{Everything, Policies, Scripted, allow, source};
use crate::fakes::server::How;
use crate::support::policy::{engine, facts, handmade, handmade_for, output, patient, tool_facts};

/// The answer of the upstream that sanitisers see; the first character has two bytes.
const ANSWER: &str = r#"{"content":[{"type":"text","text":"é secret text"}]}"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hook {
    Approval,
    Connector,
    Sanitiser,
}

use Hook::{Approval, Connector, Sanitiser as Cleaner};

impl Hook {
    fn name(self) -> &'static str {
        match self {
            Approval => "approval",
            Connector => "connector",
            Cleaner => "sanitiser",
        }
    }

    /// A component of a core module in text; local 0 is the handle, and address 64 holds a decision that changes nothing.
    fn by_hand(self, memory: &str, body: &str, more: &str) -> Vec<u8> {
        match self {
            Approval => handmade(memory, body, more),
            Connector => handmade_for("connector-policy", "connector@0.1.0#evaluate", "app-tool", memory, body, more),
            Cleaner => handmade_for("output-sanitiser", "sanitiser@0.1.0#sanitise", "output", memory, body, more),
        }
    }
}

enum Guest {
    /// `policies/hostile`, told how.
    How(&'static str),
    /// The same, with a data folder that holds `lists/inside.txt`.
    WithData(&'static str),
    /// Made by hand: the body of its function, and what else is in its module.
    Hand(&'static str, String),
    /// A component as text.
    Text(String),
}

use Guest::{Hand, How as Told, Text, WithData};

/// What a guest must get.
#[derive(Debug, Clone, Copy)]
enum Got {
    /// A fault with this code.
    Code(FaultCode),
    /// Fuel and deadline race on a busy machine.
    FuelOrDeadline,
    /// It is let in, answers, and what it did came to this.
    Harmless(&'static str),
}

use FaultCode::{Memory, MissingImport, OutputInvalid, OutputTooLarge, Stack, Trap, WrongVersion};
use Got::{Code, FuelOrDeadline, Harmless};

/// Where a guest is stopped. The order is that of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    /// Before anything asks it.
    Load,
    /// While it runs, or when its answer is read.
    Call,
    /// Its answer is well formed, and does not fit what it was asked about.
    Applied,
    Nowhere,
}

impl Stopped {
    fn words(self) -> &'static str {
        match self {
            Self::Load => "when it is loaded",
            Self::Call => "when it is asked",
            Self::Applied => "when its edits are applied",
            Self::Nowhere => "nowhere",
        }
    }
}

struct Case {
    does: &'static str,
    hook: Hook,
    guest: Guest,
    at: Stopped,
    got: Got,
}

fn case(does: &'static str, hook: Hook, guest: Guest, at: Stopped, got: Got) -> Case {
    Case { does, hook, guest, at, got }
}

/// Puts 32-bit words at an address.
fn words(address: u32, words: &[u32]) -> String {
    let bytes: String = words.iter().flat_map(|word| word.to_le_bytes()).map(|byte| format!("\\{byte:02x}")).collect();
    format!(r#"(data (i32.const {address}) "{bytes}")"#)
}

/// Gives the handle back and answers with what lies at 1024.
const SAYS: &str = "(call $drop (local.get 0)) (i32.const 1024)";
const PASS: &str = "(call $drop (local.get 0)) (i32.const 64)";

/// What guests of every hook do.
fn everywhere(hook: Hook) -> Vec<Case> {
    let start = |body: &str| Hand(PASS, format!("(func $s {body}) (start $s)"));
    let table = "(loop $l (drop (table.grow $t (ref.null func) (i32.const 1000))) (br $l)) (unreachable)";
    let export = if hook == Cleaner { "sanitise" } else { "evaluate" };
    let post = format!("cabi_post_portcullis:policy/{}@0.1.0#{export}", hook.name());
    let version = |version: &str| {
        let name = hook.name();
        Text(format!(r#"(instance $i) (export "portcullis:policy/{name}@{version}" (instance $i))"#))
    };
    // A rule at an address that no memory has: the answer's first option is its rule, or its verdict is a denial.
    let rule =
        if hook == Approval { [3, 1, 0xffff_fff0, 64, 0, 0, 0, 0, 0] } else { [1, 0xffff_fff0, 64, 0, 0, 0, 0, 0, 0] };
    vec![
        case("loops", hook, Told("loop"), Stopped::Call, FuelOrDeadline),
        case("loops in its start function", hook, start("(loop $l (br $l))"), Stopped::Load, FuelOrDeadline),
        case(
            "loops when it is told that its answer was read",
            hook,
            Hand(PASS, format!(r#"(func (export "{post}") (param i32) (loop $l (br $l)))"#)),
            Stopped::Call,
            FuelOrDeadline,
        ),
        case("takes a gibibyte of memory", hook, Told("allocate-at-once"), Stopped::Call, Code(Memory)),
        case(
            "takes memory in its start function",
            hook,
            start("(drop (memory.grow (i32.const 2000)))"),
            Stopped::Load,
            Code(Memory),
        ),
        case(
            "grows a table without end",
            hook,
            Hand(table, "(table $t 1 funcref)".to_owned()),
            Stopped::Call,
            Code(Memory),
        ),
        case(
            "starts with a table of ten million",
            hook,
            Hand(PASS, "(table 10000000 funcref)".to_owned()),
            Stopped::Load,
            Code(Memory),
        ),
        case("recurses without end", hook, Told("recurse"), Stopped::Call, Code(Stack)),
        case("recurses in its start function", hook, start("(call $s)"), Stopped::Load, Code(Stack)),
        case("divides by zero", hook, Told("divide-by-zero"), Stopped::Call, Code(Trap)),
        case("panics", hook, Told("panic"), Stopped::Call, Code(Trap)),
        case("traps in its start function", hook, start("(unreachable)"), Stopped::Load, Code(Trap)),
        case("answers with a pointer to nowhere", hook, Hand(SAYS, words(1024, &rule)), Stopped::Call, Code(Trap)),
        case(
            "answers from an address that is not there",
            hook,
            Hand("(call $drop (local.get 0)) (i32.const -4)", String::new()),
            Stopped::Call,
            Code(Trap),
        ),
        case(
            "keeps the handle that it was lent",
            hook,
            Hand("(i32.const 64)", String::new()),
            Stopped::Call,
            Code(Trap),
        ),
        case("names a rule in prose", hook, Told("rule-of-prose"), Stopped::Call, Code(OutputInvalid)),
        case("logs without end", hook, Told("log-for-ever"), Stopped::Call, FuelOrDeadline),
        case("logs a mebibyte at once", hook, Told("log-a-megabyte"), Stopped::Call, Code(OutputTooLarge)),
        case("counts its calls", hook, Told("count-calls"), Stopped::Nowhere, Harmless("each call is its first")),
        case("reads a file that nobody granted", hook, Told("data"), Stopped::Call, Code(MissingImport)),
        case(
            "reads files by `..`, an absolute path and a folder's name",
            hook,
            WithData("data-everywhere"),
            Stopped::Nowhere,
            Harmless("only the file in its folder is there"),
        ),
        case("is made for version 0.2.0", hook, version("0.2.0"), Stopped::Load, Code(WrongVersion)),
        case("is made for version 9.9.9", hook, version("9.9.9"), Stopped::Load, Code(WrongVersion)),
        case(
            "imports version 0.2.0",
            hook,
            Text(r#"(import "portcullis:policy/host@0.2.0" (instance))"#.to_owned()),
            Stopped::Load,
            Code(WrongVersion),
        ),
        case("says 0.1.0 and has another shape", hook, version("0.1.0"), Stopped::Load, Code(WrongVersion)),
    ]
}

fn approvals() -> Vec<Case> {
    let told = |does, how, got| case(does, Approval, Told(how), Stopped::Call, got);
    vec![
        told("gives a reason of 65 KiB", "reason-of-65-kibibytes", Code(OutputTooLarge)),
        told("sets 5,000 labels", "labels-5000", Code(OutputTooLarge)),
        told("sets 17 labels", "labels-17", Code(OutputInvalid)),
        told("sets a label in prose", "label-of-prose", Code(OutputInvalid)),
        told("asks for texts by a glob that is none", "bad-glob", Code(OutputInvalid)),
        told("asks the host without end", "read-for-ever", FuelOrDeadline),
        case(
            "logs a thousand lines",
            Approval,
            Told("log-and-abstain"),
            Stopped::Nowhere,
            Harmless("32 lines are kept"),
        ),
    ]
}

fn connectors() -> Vec<Case> {
    let told = |does, how, got| case(does, Connector, Told(how), Stopped::Call, got);
    vec![
        told("names a rule of 100 KiB", "rule-of-100-kibibytes", Code(OutputTooLarge)),
        told("names a rule of 65 characters", "rule-of-65", Code(OutputInvalid)),
        told("counts what is no call", "count", Code(MissingImport)),
        told("asks the host without end", "read-for-ever", FuelOrDeadline),
        case(
            "logs a thousand lines",
            Connector,
            Told("log-and-abstain"),
            Stopped::Nowhere,
            Harmless("32 lines are kept"),
        ),
        case(
            "answers with a mode that is none",
            Connector,
            Hand(SAYS, words(1024, &[0, 0, 0, 0x0909_0000])),
            Stopped::Call,
            Code(Trap),
        ),
    ]
}

fn sanitisers() -> Vec<Case> {
    let told = |does, how, got| case(does, Cleaner, Told(how), Stopped::Call, got);
    let edits = |does, how| case(does, Cleaner, Told(how), Stopped::Applied, Code(OutputInvalid));
    // One edit at 2048: it replaces the bytes 0 to 2 of target 0, and its class is no class.
    let class = [words(1024, &[0, 0, 0, 1, 2048, 1, 0, 0]), words(2048, &[0, 0, 0, 2, 99])].concat();
    vec![
        told("makes 4,097 edits", "edits-4097", Code(OutputTooLarge)),
        told("makes 100,000 edits", "edits-100000", Code(OutputTooLarge)),
        told("withholds with a text of 600 KiB", "withhold-600-kibibytes", Code(OutputTooLarge)),
        told("sets 17 labels", "labels-17", Code(OutputInvalid)),
        told("sets a label in prose", "label-of-prose", Code(OutputInvalid)),
        case("names a class that is none", Cleaner, Hand(SAYS, class), Stopped::Call, Code(Trap)),
        told("looks for 257 patterns", "patterns-257", Code(OutputInvalid)),
        told("looks for a pattern that grows when it is compiled", "pattern-bomb", Code(OutputInvalid)),
        told("looks for a pattern that is none", "pattern-of-nothing", Code(OutputInvalid)),
        told("asks the host without end", "find-for-ever", FuelOrDeadline),
        edits("edits a span inside a character", "span-inside-a-character"),
        edits("edits a span beyond the end", "span-beyond-the-end"),
        edits("edits a span that ends before it starts", "span-backwards"),
        edits("edits a target that is not there", "edit-nowhere"),
        edits("drops a target that is not there", "drop-nowhere"),
        case(
            "edits spans that overlap",
            Cleaner,
            Told("spans-overlap"),
            Stopped::Nowhere,
            Harmless("they are one placeholder"),
        ),
        case(
            "asks for the text of a target that is not there",
            Cleaner,
            Told("target-nowhere"),
            Stopped::Nowhere,
            Harmless("there is none"),
        ),
        case("logs a thousand lines", Cleaner, Told("log-and-pass"), Stopped::Nowhere, Harmless("32 lines are kept")),
    ]
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (hook, own) in [(Approval, approvals()), (Connector, connectors()), (Cleaner, sanitisers())] {
        all.extend(everywhere(hook));
        all.extend(own);
    }
    all
}

fn admitted(case: &Case) -> Result<Admitted, Fault> {
    let mut wanted = Admission { limits: patient(), ..Admission::plain(source(LayerKind::User, "under-test")) };
    let bytes = match &case.guest {
        Told(how) => {
            wanted.settings = json!({"how": how});
            guest_builder::build("hostile").unwrap().to_vec()
        }
        WithData(how) => {
            wanted.settings = json!({"how": how});
            let files = [("lists/inside.txt".to_owned(), b"inside".to_vec())];
            wanted.data = Some(Arc::new(DataFiles::new(files.into())));
            guest_builder::build("hostile").unwrap().to_vec()
        }
        Hand(body, more) => case.hook.by_hand("1", body, more),
        Text(text) => wat::parse_str(format!("(component {text})")).unwrap(),
    };
    engine().admit(&bytes, wanted)
}

/// What a guest says when it is asked alone: a few words and its log, or its fault.
async fn asked(hook: Hook, component: &Admitted) -> (Result<String, Fault>, Vec<LogLine>) {
    match hook {
        Approval => {
            let said = component.approval.as_ref().unwrap().evaluate(Arc::new(facts("test/any", "{}"))).await;
            let text = |verdict| match verdict {
                Verdict::Deny(why) => why.text,
                other => format!("{other:?}"),
            };
            (said.result.map(text), said.log)
        }
        Connector => {
            let said = component.connector.as_ref().unwrap().evaluate(Arc::new(tool_facts("test/any"))).await;
            (said.result.map(|answer| answer.rule.map(|rule| rule.to_string()).unwrap_or_default()), said.log)
        }
        Cleaner => {
            let target = Target { place: Place::Text, pointer: "/content/0/text".to_owned(), text: "é secret".into() };
            let said = component.sanitiser.as_ref().unwrap().sanitise(Arc::new(output("test/any", target))).await;
            let text = |(verdict, _)| match verdict {
                Cleaned::Withhold(text) => text,
                other => format!("{other:?}"),
            };
            (said.result.map(text), said.log)
        }
    }
}

/// One call through the pipeline, in which the guest has its place, also if it could not be loaded.
async fn called(hook: Hook, component: Result<Admitted, Fault>) -> (Bench, Finished) {
    // A connector's tool has no mode of its server's: somebody else allows it.
    let others = Scripted::says(allow("fine"));
    let policies = Policies::open(&["files"]).with(LayerKind::User, "others", &others);
    let policies = match hook {
        Approval => policies.and(bound(component.map(|component| component.approval.unwrap() as _))),
        Connector => policies.and_app(bound(component.map(|component| component.connector.unwrap() as _))),
        Cleaner => policies.cleaning(bound(component.map(|component| component.sanitiser.unwrap() as _))),
    };
    let bench = Bench::new(&policies).await;
    if hook == Connector {
        bench.link("calendar").await;
    }
    bench.files.answers(How::Result(ANSWER));
    let finished = bench.write().await;
    (bench, finished)
}

fn bound<C: ?Sized>(component: Result<Arc<C>, Fault>) -> Bound<C> {
    Bound {
        source: source(LayerKind::User, "under-test"),
        may_allow: true,
        on_failure: OnFailure::Deny,
        observe: false,
        matches: Arc::new(Everything),
        component,
    }
}

/// The guest's fault, as the records of the call have it.
fn recorded(hook: Hook, bench: &Bench) -> Option<FaultCode> {
    if hook == Cleaner {
        let item = bench.tape.only_pair();
        let [voice] = item.sanitisers.as_slice() else { panic!("{:?}", item.sanitisers) };
        return match &voice.said {
            SanitiserSaid::Fault(fault) => Some(fault.code),
            _ => None,
        };
    }
    let decision = bench.tape.decisions().remove(0).decision;
    if hook == Connector {
        let [voice] = decision.connectors.as_slice() else { panic!("{:?}", decision.connectors) };
        return match &voice.spoken {
            ConnectorSpoken::Fault(fault) => Some(fault.code),
            ConnectorSpoken::Answer(_) => None,
        };
    }
    let voice = decision.voices.iter().find(|voice| &*voice.source.component == "under-test").unwrap();
    match &voice.spoken {
        Spoken::Fault(fault) => Some(fault.code),
        Spoken::Verdict(_) => None,
    }
}

/// What the caller got.
fn outcome(finished: &Finished) -> String {
    let failure = finished.item.failure().or_else(|| finished.clean.failure());
    failure
        .map_or_else(|| "runs".to_owned(), |failure| format!("`{}`", json!(failure.code).as_str().unwrap_or_default()))
}

/// Runs a case, and returns its line of the page.
async fn run(case: &Case) -> String {
    let Case { does, hook, at, got, .. } = case;
    let what = format!("{} ({})", does, hook.name());
    let component = admitted(case);
    neighbours_work().await;
    let then = match component {
        Err(fault) => {
            assert_eq!(*at, Stopped::Load, "{what}: {fault}");
            expect(&what, *got, fault.code);
            let (bench, finished) = called(*hook, Err(fault.clone())).await;
            assert_eq!(recorded(*hook, &bench), Some(fault.code), "{what}");
            fails_closed(*hook, &what, &finished);
            outcome(&finished)
        }
        Ok(component) => {
            assert_ne!(*at, Stopped::Load, "{what} was let in");
            let (alone, log) = asked(*hook, &component).await;
            assert!(log.len() <= 33, "{what} kept {} lines", log.len());
            neighbours_work().await;
            let (again, _) = asked(*hook, &component).await;
            if let (Ok(one), Ok(two)) = (&alone, &again) {
                assert_eq!(one, two, "{what}: the second call is not like the first");
            }
            let (bench, finished) = called(*hook, Ok(component)).await;
            neighbours_work().await;
            let code = recorded(*hook, &bench);
            match (at, &alone) {
                (Stopped::Call, Err(fault)) => expect(&what, *got, fault.code),
                (Stopped::Applied | Stopped::Nowhere, Ok(_)) => {}
                _ => panic!("{what}: {alone:?}"),
            }
            match (got, code) {
                (Harmless(_), None) => harmless(case, &alone.unwrap(), log.len(), &finished),
                (Code(_) | FuelOrDeadline, Some(code)) => {
                    expect(&what, *got, code);
                    fails_closed(*hook, &what, &finished);
                }
                (_, code) => panic!("{what}: the records have {code:?}"),
            }
            outcome(&finished)
        }
    };
    let got = match got {
        Code(code) => format!("`{code}`"),
        FuelOrDeadline => "`fuel` or `deadline`".to_owned(),
        Harmless(what) => format!("no fault: {what}"),
    };
    format!("| {does} | {} | {} | {got} | {then} | as always |\n", hook.name(), at.words())
}

fn expect(what: &str, got: Got, code: FaultCode) {
    match got {
        Code(wanted) => assert_eq!(code, wanted, "{what}"),
        FuelOrDeadline => assert!(is_out_of_budget(code), "{what}: {code}"),
        Harmless(_) => panic!("{what}: {code}"),
    }
}

/// A guest that failed lets nothing through.
fn fails_closed(hook: Hook, what: &str, finished: &Finished) {
    let shown = finished.clean.result().value().to_owned();
    assert!(!json!(shown).to_string().contains("secret"), "{what}: {shown:?}");
    let failed = if hook == Cleaner { finished.clean.failure() } else { finished.item.failure() };
    assert!(failed.is_some(), "{what}: the call went on");
}

/// What is not stopped is seen to have come to nothing.
fn harmless(case: &Case, alone: &str, lines: usize, finished: &Finished) {
    let (Told(how) | WithData(how)) = &case.guest else { panic!("{} is not told how", case.does) };
    match *how {
        "count-calls" => assert_eq!(alone.trim_start_matches("calls-"), "1"),
        "data-everywhere" => assert_eq!(alone.replace('-', " "), "6 no no no no no"),
        "log-and-abstain" | "log-and-pass" => assert_eq!(lines, 33, "and one line that says so"),
        "target-nowhere" => assert_eq!(alone, "None"),
        "spans-overlap" => {
            let text = &finished.clean.result().value()["content"][0]["text"];
            assert_eq!(text, "[redacted: secret]t text");
        }
        other => panic!("`{other}` is seen nowhere"),
    }
}

const INTRODUCTION: &str = "\
# Hostile guests

What components got that misbehave, each at the decision point in the second column. This page is written by the test that runs
them: `BLESS=1 cargo test --test it hostile_guests` writes it anew, and a difference fails the test.

Each guest is bound to a user's layer with the default limits, but for a time of one second, so that fuel decides. `fault` is the
code that item, record and `explain` show; which of `fuel` and `deadline` comes first depends on the machine. `its call` is what
the caller gets of a call in which the guest has its say. `next` is what other components of the same engine answer afterwards:
an approval component, a connector policy and a sanitiser, after each line of this table.

A data folder that is a link, or holds one, is refused when its layer is read, so no component is asked with it
(`config/data.rs`).

| what it does | decision point | stopped | fault | its call | next |
|---|---|---|---|---|---|
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_guests_get_what_the_page_says_and_others_take_their_usual_course() {
    let mut page = INTRODUCTION.to_owned();
    for case in cases() {
        write!(page, "{}", run(&case).await).unwrap();
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/hostile-guests.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == page, "docs/hostile-guests.md is not what was seen; run with BLESS=1 and look at the diff");
}
