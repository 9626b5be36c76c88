//! A configuration that changes under a running host: what enters, what stays as it was, and for how long (R8, R19).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis::adapters::wasm::{Engine, builtin};
use portcullis::config::{Places, SessionSources};
use portcullis::host::reload::{Loaded, MAX_KEPT, Reloader};
use portcullis::model::digest::Digest;
use portcullis::model::layer::LayerKind;
use portcullis::model::posture::{ApprovalPolicy, LayerPosture};
use portcullis::model::verdict::FaultCode;
use portcullis::ports::approval::BoundComponent;
use serde_json::json;
use tempfile::TempDir;

use crate::fakes::bench::Bench;
use crate::fakes::policy::{Policies, Scripted, allow};
use crate::support::served::Served;
use crate::support::{eventually, scripted_server, write_owned};

const MANAGED: &str = "etc/managed.toml";
const ORGANISATION: &str = "etc/organisation.toml";
const USER: &str = "home/config.toml";

/// A machine of its own in a temporary folder, and a host's reloader on it.
struct Machine {
    dir: TempDir,
    reloader: Reloader,
    now: Instant,
}

impl Machine {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let places = Places { etc: Some(root.join("etc")), user_config: Some(root.join("home")), ..Places::nowhere() };
        let reloader = Reloader::new(places, SessionSources::default(), Engine::on_demand().unwrap());
        let machine = Self { dir, reloader, now: Instant::now() };
        machine.write("etc/p.wasm", builtin::DEMO_MANAGED);
        machine.write("home/p.wasm", builtin::DEMO_ORGANISATION);
        for (path, text) in files {
            machine.write(path, text);
        }
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(path)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        write_owned(&self.path(path), text);
    }

    fn load(&mut self) -> Loaded {
        self.reloader.load(self.now)
    }
}

fn entry(name: &str) -> String {
    format!("[[policies]]\nname = '{name}'\ncomponent = 'p.wasm'\n")
}

fn pinned(name: &str) -> String {
    format!("{}sha256 = '{}'\n", entry(name), Digest::of(builtin::DEMO_MANAGED))
}

/// Every policy as `LAYER/NAME`, with what is wrong with it.
fn policies(loaded: &Loaded) -> Vec<(String, Option<FaultCode>)> {
    let said = |bound: &BoundComponent| (bound.source.to_string(), bound.component.as_ref().err().map(|f| f.code));
    loaded.policies.components.iter().map(said).collect()
}

fn posture(loaded: &Loaded, kind: LayerKind) -> LayerPosture {
    let found = loaded.policies.postures.layers().iter().find(|posture| posture.layer.kind() == kind);
    found.cloned().unwrap_or_else(|| panic!("no {kind:?} layer"))
}

fn good(names: &[&str]) -> Vec<(String, Option<FaultCode>)> {
    names.iter().map(|name| ((*name).to_owned(), None)).collect()
}

#[test]
fn r8_at_start_a_bad_entry_fails_alone_and_there_is_nothing_to_keep() {
    let text = format!("{}[[policies]]\nname = 'b'\ncomponent = 'nowhere.wasm'\n", entry("a"));
    let mut machine = Machine::new(&[(USER, &text)]);
    for _ in 0..2 {
        let loaded = machine.load();
        assert_eq!(policies(&loaded), [("user/a".into(), None), ("user/b".into(), Some(FaultCode::Missing))]);
        assert!(loaded.kept.is_empty() && loaded.resolved.refusals.is_empty());
    }
}

#[test]
fn r8_a_layer_that_cannot_be_read_any_more_stays_as_it_was_and_the_others_change() {
    let mut machine = Machine::new(&[(ORGANISATION, &pinned("o")), (USER, "approval_policy = 'untrusted'\n")]);
    let first = machine.load();
    assert_eq!(policies(&first), good(&["organisation/o"]));

    machine.write(USER, "approval_policy = \n");
    machine.write(MANAGED, pinned("m"));
    let loaded = machine.load();
    // The more trusted layer's change enters whatever is broken below it.
    assert_eq!(policies(&loaded), good(&["managed/m", "organisation/o"]));
    assert_eq!(posture(&loaded, LayerKind::User).policy, Some(ApprovalPolicy::Untrusted));
    assert!(loaded.resolved.refusals.is_empty(), "{:?}", loaded.resolved.refusals);
    let [kept] = loaded.kept.as_slice() else { panic!("{:?}", loaded.kept) };
    assert_eq!((kept.layer.kind(), kept.expired), (LayerKind::User, false));
    assert!(kept.why.contains("config.toml"), "{}", kept.why);

    machine.write(USER, "approval_policy = 'never'\n");
    let loaded = machine.load();
    assert_eq!(posture(&loaded, LayerKind::User).policy, Some(ApprovalPolicy::Never));
    assert!(loaded.kept.is_empty());
}

#[test]
fn r8_one_bad_entry_keeps_its_whole_layer_with_the_bytes_that_it_had() {
    let mut machine = Machine::new(&[(ORGANISATION, &pinned("o")), (USER, &entry("u"))]);
    let first = machine.load();
    let digest = |loaded: &Loaded| loaded.policies.components[1].source.digest;

    // The component itself goes bad on disk; the text of the layer changes as well.
    machine.write("home/p.wasm", "rubbish");
    machine.write(USER, format!("approval_policy = 'never'\n{}", entry("u")));
    let loaded = machine.load();
    assert_eq!(policies(&loaded), good(&["organisation/o", "user/u"]));
    assert_eq!(digest(&loaded), digest(&first));
    assert_eq!(posture(&loaded, LayerKind::User).policy, None, "half of the layer entered");
    assert_eq!(loaded.policies.digest, first.policies.digest);
    assert!(loaded.kept[0].why.contains("`u`"), "{}", loaded.kept[0].why);
    // A layer that pins is as good as its pin.
    machine.write("etc/p.wasm", builtin::DEMO_ORGANISATION);
    let loaded = machine.load();
    assert_eq!(policies(&loaded), good(&["organisation/o", "user/u"]));
    assert_eq!(loaded.kept.len(), 2);
}

#[test]
fn r8_what_is_kept_too_long_fails_closed() {
    let mut machine = Machine::new(&[(ORGANISATION, "approval_policy = 'untrusted'\n"), (USER, &entry("u"))]);
    machine.load();
    machine.write("home/p.wasm", "rubbish");
    machine.write(ORGANISATION, "nonsense = 1\n");
    machine.load();
    machine.now += MAX_KEPT - Duration::from_secs(1);
    let loaded = machine.load();
    assert!(loaded.resolved.refusals.is_empty() && policies(&loaded) == good(&["user/u"]));
    machine.now += Duration::from_secs(1);
    let loaded = machine.load();
    assert_eq!(policies(&loaded)[0].1, Some(FaultCode::Missing));
    assert!(loaded.resolved.refusals[0].text.contains("nonsense"), "{:?}", loaded.resolved.refusals);
    assert!(loaded.kept.len() == 2 && loaded.kept.iter().all(|kept| kept.expired));
    // Once it is in order it counts, and the next failure is kept for as long again.
    machine.write(ORGANISATION, "");
    machine.write("home/p.wasm", builtin::DEMO_ORGANISATION);
    assert!(machine.load().kept.is_empty());
    machine.write(ORGANISATION, "nonsense = 1\n");
    assert!(machine.load().resolved.refusals.is_empty());
}

#[test]
fn r8_what_is_kept_is_held_to_what_more_trusted_layers_demand_by_now() {
    let mut machine = Machine::new(&[(USER, &entry("u"))]);
    machine.load();
    machine.write(USER, "nonsense = 1\n");
    machine.write(MANAGED, format!("[requirements.components]\nsha256 = ['{}']\n", Digest::of(b"another")));
    let loaded = machine.load();
    assert_eq!(policies(&loaded), [("user/u".into(), Some(FaultCode::Digest))]);
}

#[test]
fn r8_only_absence_is_absence() {
    let mut machine = Machine::new(&[(USER, &entry("u"))]);
    machine.load();
    std::fs::remove_file(machine.path(USER)).unwrap();
    let loaded = machine.load();
    assert!(policies(&loaded).is_empty() && loaded.kept.is_empty());
    // It was taken away on purpose, so nothing of it comes back.
    machine.write(USER, "nonsense = 1\n");
    assert!(!machine.load().resolved.refusals.is_empty());
}

#[test]
fn r19_a_component_or_a_file_of_its_data_that_changes_makes_another_policy_set() {
    let mut machine = Machine::new(&[(USER, &format!("{}data = 'lists'\n", entry("u"))), ("home/lists/a", "1")]);
    let first = machine.load().policies.digest;
    assert_eq!(machine.load().policies.digest, first);
    machine.write("home/lists/a", "2");
    let second = machine.load().policies.digest;
    machine.write("home/p.wasm", builtin::DEMO_MANAGED);
    let third = machine.load().policies.digest;
    assert!(first != second && second != third);
    for read in ["home/lists", "home/p.wasm", USER, ORGANISATION] {
        assert!(machine.reloader.read_from().contains(&machine.path(read)), "{read} is not watched");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r19_every_decision_under_load_belongs_to_exactly_one_policy_set() {
    // Two components of each set: a decision that mixed sets would have a voice of each.
    let of = |set: &'static str| {
        let one = Scripted::says(allow(set));
        Policies::open(&["files"]).with(LayerKind::Managed, set, &one).with(LayerKind::User, set, &one)
    };
    let sets = [of("even"), of("odd")];
    let bench = Arc::new(Bench::new(&sets[0]).await);
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move {
                for _ in 0..50 {
                    bench.write().await;
                }
            })
        })
        .collect();
    let now = || bench.catalog().current().policies().digest.0;
    let mut names = BTreeMap::from([(now(), "even")]);
    let mut round = 0;
    while calling.iter().any(|task| !task.is_finished()) {
        round += 1;
        let (set, name) = if round % 2 == 0 { (&sets[0], "even") } else { (&sets[1], "odd") };
        bench.decide_by(set).await;
        names.insert(now(), name);
        // Calls get on between two changes, too.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    for task in calling {
        task.await.unwrap();
    }
    let decisions = bench.tape.decisions();
    let mut seen = BTreeSet::new();
    for record in &decisions {
        let name = names[&record.policy_set.0];
        let voices = record.decision.voices.iter().filter(|voice| voice.posture.is_none());
        assert!(voices.map(|voice| &*voice.source.component).eq([name; 2]), "a decision of two sets: {record:?}");
        seen.insert(record.policy_set.0);
    }
    assert!(seen.len() > 2, "the sets never changed under load");
}

/// Waits until the program has said this on stderr.
async fn said(served: &Served, what: &str) {
    eventually(what, || served.stderr().contains(what).then_some(())).await;
}

#[tokio::test]
async fn a_running_gateway_takes_up_a_changed_layer_and_a_new_server() {
    let server = format!("[mcp_servers.s]\ncommand = {:?}\nargs = ['--all']\n", scripted_server());
    let mut served = Served::greeted("", &[("PORTCULLIS_LOG", "info")]).await;
    let file = served.path("config/portcullis/config.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    served.request("empty", "tools/list", "{}").await;
    assert_eq!(served.answer(json!("empty")).await["result"]["tools"], json!([]));

    // A new server, which may be called.
    write(&format!("{server}default_tools_approval_mode = 'approve'\n"));
    said(&served, "ready").await;
    let sum = json!({ "a": 2, "b": 3 });
    assert_eq!(served.call("s__add", &sum).await["result"]["content"][0]["text"], "5");

    // A rule against it.
    write(&format!("approval_policy = 'never'\n{server}default_tools_approval_mode = 'prompt'\n"));
    eventually("two changes", || (served.stderr().matches("the configuration changed").count() >= 2).then_some(()))
        .await;
    let answer = served.call("s__add", &sum).await;
    assert!(answer["result"]["isError"] == true && answer.to_string().contains("never-asks"), "{answer}");

    // Nonsense changes nothing, and says so.
    write("nonsense = 1\n");
    said(&served, "it stays as it was").await;
    let answer = served.call("s__add", &sum).await;
    assert!(answer.to_string().contains("never-asks"), "{answer}");

    // The server goes.
    write("");
    said(&served, "in order again").await;
    // It ends beside what goes on.
    while !served.call("s__add", &sum).await.to_string().contains("not-available") {}
    assert!(served.finish().await.success());
}
