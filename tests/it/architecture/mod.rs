//! The sources keep to the architecture: one-way imports, short files, guests that are tested, tests that run.
//!
//! Each check is a function over texts, so that the tests below can show it failing. A check that cannot fail is a
//! defect.

mod house;
mod imports;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The files below a folder whose names end so, in order; none if there is no such folder.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let inside = |path: PathBuf| {
        if path.is_dir() {
            files(&path, ending)
        } else if path.to_string_lossy().ends_with(ending) {
            vec![path]
        } else {
            Vec::new()
        }
    };
    paths.into_iter().flat_map(inside).collect()
}

/// Names below a folder, with `/`, and texts.
fn texts(folder: &Path, ending: &str) -> Vec<(String, String)> {
    let name = |path: &Path| path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
    files(folder, ending).iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// The sources of the host and of all guests, by their names from the root.
fn sources() -> Vec<(String, String)> {
    let folders = std::fs::read_dir(root().join("policies")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let all = std::iter::once(root().join("src")).chain(folders);
    let sources = all.flat_map(|folder| {
        let name = folder.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        texts(&folder, ".rs").into_iter().map(move |(file, text)| (format!("{name}/{file}"), text))
    });
    let sources: Vec<_> = sources.collect();
    assert!(sources.len() > 20, "the sources were not found");
    sources
}

fn assert_none(found: impl IntoIterator<Item = String>) {
    let found: Vec<String> = found.into_iter().collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn imports_go_one_way() {
    assert_none(texts(&root().join("src"), ".rs").iter().flat_map(|(file, text)| imports::violations(file, text)));
}

#[test]
fn no_file_is_longer_than_500_lines_its_tests_aside() {
    assert_none(sources().iter().filter_map(|(file, text)| house::too_long(file, text)));
}

#[test]
fn a_versions_adapter_only_lifts() {
    let adapters = texts(&root().join("src/adapters/wasm/bindings"), ".rs");
    assert!(adapters.iter().any(|(file, _)| file == "v0_1.rs"), "the adapters were not found");
    assert_none(adapters.iter().flat_map(|(file, text)| house::reaches_beyond(file, text)));
}

#[test]
fn every_unsafe_has_a_reason() {
    assert_none(sources().iter().flat_map(|(file, text)| house::unexplained_unsafe(file, text)));
}

#[test]
fn every_crate_of_the_workspace_has_its_lints() {
    let manifests = texts(&root().join("policies"), "/Cargo.toml");
    assert!(manifests.len() >= 2, "the manifests were not found");
    let without = manifests.iter().filter(|(_, text)| !text.contains("[lints]\nworkspace = true"));
    assert_none(without.map(|(file, _)| format!("policies/{file}: does not take the lints of the workspace")));
}

#[test]
fn every_guest_is_named_by_a_test() {
    let guests: Vec<String> =
        texts(&root().join("policies"), "/Cargo.toml").iter().filter_map(|(_, text)| house::guest(text)).collect();
    let own = |file: &str| file.starts_with("architecture/");
    let tests = texts(&root().join("tests/it"), ".rs");
    let tests: Vec<String> = tests.into_iter().filter(|(file, _)| !own(file)).map(|(_, text)| text).collect();
    assert_none(house::untested(&guests, &tests).into_iter().map(|guest| format!("no test names `{guest}`")));
}

#[test]
fn every_test_file_is_run() {
    let folder = root().join("tests");
    let targets = house::targets(&std::fs::read_to_string(root().join("Cargo.toml")).unwrap());
    let mut all = texts(&folder, ".rs");
    all.retain(|(file, _)| file == "it/main.rs" || !targets.contains(&format!("tests/{file}")));
    assert_none(
        all.iter().filter(|(file, _)| !file.contains('/')).map(|(file, _)| format!("nothing runs tests/{file}")),
    );
    let roots = all.iter().filter(|(file, _)| *file == "it/main.rs" || file.ends_with("/mod.rs"));
    assert_none(roots.flat_map(|(file, text)| {
        let folder = file.rsplit_once('/').unwrap().0;
        let mut beside: Vec<String> = all
            .iter()
            .filter_map(|(other, _)| other.strip_prefix(folder)?.strip_prefix('/'))
            .map(|other| other.split('/').next().unwrap().trim_end_matches(".rs").to_owned())
            .filter(|name| name != "main" && name != "mod")
            .collect();
        beside.dedup();
        let unlisted = house::unlisted(text, &beside);
        unlisted.into_iter().map(|name| format!("tests/{file} does not list `{name}`")).collect::<Vec<_>>()
    }));
}

#[test]
fn committed_components_are_those_listed_and_hold_no_trace_of_the_machine() {
    for folder in ["policies/artifacts", "tests/it/golden/v0.1"] {
        let folder = root().join(folder);
        let name = |path: &Path| path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned();
        let components: BTreeMap<String, Vec<u8>> =
            files(&folder, ".wasm").iter().map(|path| (name(path), std::fs::read(path).unwrap())).collect();
        assert!(!components.is_empty(), "the components were not found");
        let sums = std::fs::read_to_string(folder.join("SHA256SUMS")).unwrap_or_default();
        assert_none(house::artifacts(&sums, &components));
    }
}

/// Each check, shown failing.
mod a_check_fails {
    use super::*;

    fn refused(file: &str, text: &str) -> usize {
        imports::violations(file, text).len()
    }

    #[test]
    fn on_an_import_against_the_table() {
        for (file, text) in [
            ("model/name.rs", "use crate::ports::clock::Clock;"),
            ("ports/clock.rs", "use crate::config::Stack;"),
            ("config/mod.rs", "use crate::ports::clock::Clock;"),
            ("pipeline/bind/mod.rs", "use crate::pipeline::consent::Approved;"),
            ("pipeline/bind/mod.rs", "use crate::adapters::wasm::Engine;"),
            ("pipeline/emit/views/model.rs", "use crate::pipeline::follow::Guard;"),
            ("pipeline/bind/mod.rs", "use crate::pipeline::Context;"),
            ("pipeline/mod.rs", "use crate::host::Host;"),
            ("adapters/mcp/mod.rs", "use crate::adapters::wasm::Engine;"),
            ("adapters/mcp/mod.rs", "use crate::pipeline::run;"),
            ("host/mod.rs", "use crate::gateway::Gateway;"),
            ("gateway/mod.rs", "use crate::cli::Exit;"),
            ("surprise/mod.rs", ""),
            ("host/mod.rs", "use crate::surprise::Thing;"),
        ] {
            assert_eq!(refused(file, text), 1, "{file}: {text}");
        }
    }

    #[test]
    fn on_the_same_import_in_any_spelling() {
        for text in [
            "use super::consent::Approved;",
            "use super::super::pipeline::consent::Approved;",
            "use super::{consent::Approved, admit::naming};",
            "use crate::{model::name::ToolRef, pipeline::{admit::naming, consent}};",
            "use super as up;",
            "use super::*;",
            "use crate as all;",
            "use crate::*;",
            "use crate::Approved;",
            "fn f(a: crate::pipeline::consent::Approved) {}",
            "fn f() { crate::pipeline\n  ::consent::approve() }",
            "mod inner { use super::super::consent::Approved; }",
            "use self::super::consent::Approved;",
            "#[serde(with = \"crate::pipeline::consent::form\")] struct S;",
            "macro_rules! m { () => { $crate::pipeline::consent::approve() } }",
            "#[path = \"../consent/mod.rs\"] mod consent;",
            "include!(\"../consent/mod.rs\");",
            "extern crate self as us;",
        ] {
            assert_ne!(refused("pipeline/bind/mod.rs", text), 0, "{text}");
        }
    }

    #[test]
    fn on_a_crate_that_belongs_to_an_edge() {
        assert_eq!(refused("pipeline/bind/mod.rs", "use wasmtime::Engine;"), 1);
        assert_eq!(refused("model/name.rs", "fn f() -> rmcp::model::Tool {}"), 1);
        assert_eq!(refused("model/name.rs", "use tokio;"), 1);
        assert_eq!(refused("cli/demo.rs", "use wasmtime::Engine;"), 1);
        assert_eq!(refused("adapters/wasm/engine.rs", "use wasmtime::Engine;"), 0);
        assert_eq!(refused("pipeline/run/mod.rs", "use opentelemetry::KeyValue;"), 1);
        assert_eq!(refused("adapters/telemetry/meter.rs", "use opentelemetry::KeyValue;"), 0);
        // The demo's servers are MCP servers: foreign to us, in the same process.
        assert_eq!(refused("cli/demo.rs", "use rmcp::ServerHandler;"), 0);
    }

    #[test]
    fn on_a_command_that_reaches_into_the_library() {
        assert_eq!(refused("cli/call.rs", "use crate::pipeline::run;"), 1);
        assert_eq!(refused("main.rs", "mod cli;\nuse crate::model::name::ToolRef;"), 1);
        assert_eq!(
            refused("cli/call.rs", "use portcullis::model::name::ToolRef;\nuse super::render;\nuse crate::cli::exit;"),
            0
        );
    }

    #[test]
    fn but_not_on_what_is_allowed() {
        for (file, text) in [
            ("model/tool.rs", "use super::name::ToolRef; use std::fmt;"),
            ("pipeline/bind/mod.rs", "use super::admit::naming; use crate::ports::{clock::Clock, upstream};"),
            ("pipeline/emit/views/model.rs", "pub(in crate::pipeline::emit) fn f() {}\nuse super::truncate;"),
            (
                "pipeline/bind/mod.rs",
                "// crate::host\n/* crate::host /* */ crate::host */ const A: &str = \"see crate::host\";",
            ),
            ("pipeline/bind/mod.rs", "#[cfg(test)]\nmod tests { use crate::adapters::clock::SystemClock; }"),
            ("pipeline/mod.rs", "use follow::lifecycle; use crate::pipeline::emit::views; mod x { use super::bind; }"),
            (
                "adapters/record/jsonl.rs",
                "use super::line; use crate::adapters::record::memory; use crate::config::file;",
            ),
            ("adapters/mod.rs", "pub use self::clock::SystemClock;"),
            ("gateway/mod.rs", "use crate::host::Host; use rmcp::model;"),
            ("lib.rs", "pub use crate::host::Host; pub use pipeline::run;"),
            ("model/text.rs", "fn f<'a>(x: &'a str) -> char { '\"' } // crate::host"),
        ] {
            assert_none(imports::violations(file, text));
        }
    }

    #[test]
    fn on_code_that_hides_behind_tests() {
        let text = "#[cfg(test)]\nmod tests { const A: &str = \"}\"; }\nuse crate::host::Host;";
        assert_eq!(refused("model/name.rs", text), 1);
        let text = "struct S {\n#[cfg(test)]\na: u8\n}\nuse crate::host::Host;";
        assert_eq!(refused("model/name.rs", text), 1);
        let text = "#[cfg(test)]\nconst A: [u8; 2] = [0; 2];\nuse crate::host::Host;";
        assert_eq!(refused("model/name.rs", text), 1);
    }

    #[test]
    fn on_a_long_file_wherever_its_tests_stand() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// a test\n".repeat(600));
        let code = |lines: usize| "const A: u8 = 1;\n".repeat(lines);
        assert!(house::too_long("a.rs", &(code(499) + &tests)).is_none());
        assert!(house::too_long("a.rs", &(code(250) + &tests + &code(251))).is_some());
        assert!(house::too_long("a.rs", &code(501)).is_some());
    }

    #[test]
    fn on_unsafe_without_a_reason() {
        let unexplained = |text: &str| house::unexplained_unsafe("a.rs", text).len();
        assert_eq!(unexplained("fn f() { unsafe { g() } }"), 1);
        assert_eq!(unexplained("#[allow(unsafe_code)]\nfn f() { unsafe { g() } }"), 1);
        assert_eq!(unexplained("#[allow(unsafe_code, reason = \"sound\")]\nfn f() { unsafe { g() } }"), 0);
        assert_eq!(unexplained("#![allow(unsafe_code, reason = \"sound\")]\nfn f() { unsafe { g() } }"), 0);
        assert_eq!(unexplained("// unsafe\nconst A: &str = \"unsafe\";"), 0);
        let far = format!("#[allow(unsafe_code, reason = \"sound\")]\n{}unsafe {{}}", "\n".repeat(20));
        assert_eq!(unexplained(&far), 1);
    }

    #[test]
    fn on_an_adapter_that_gives_its_guest_more() {
        let beyond = |text: &str| house::reaches_beyond("v9.rs", text).len();
        assert_eq!(beyond("fn f(store: &mut Store<State>) { store.set_fuel(u64::MAX); }"), 1);
        assert_eq!(beyond("fn f() { std::fs::read(path) }"), 1);
        assert_eq!(beyond("// store.set_fuel\nfn f() { store.data_mut().call_name() }"), 0);
    }

    #[test]
    fn on_a_guest_that_only_a_comment_names() {
        let manifest = "[package]\nname = \"hostile\"\n[lib]\ncrate-type = [\"cdylib\"]";
        assert_eq!(house::guest(manifest).as_deref(), Some("hostile"));
        assert_eq!(house::guest("[package]\nname = \"sdk\""), None);
        let guests = ["hostile".to_owned()];
        let untested = |test: &str| house::untested(&guests, &[test.to_owned()]).len();
        assert_eq!(untested("// \"hostile\""), 1);
        assert_eq!(untested("load(\"hostile-two\")"), 1);
        assert_eq!(untested("load(\"hostile\")"), 0);
        assert_eq!(untested("load(\"target/hostile.wasm\")"), 0);
    }

    #[test]
    fn on_a_test_file_that_is_not_listed() {
        let beside = ["order".to_owned(), "views".to_owned()];
        assert_eq!(house::unlisted("mod order;\n// mod views;", &beside), ["views"]);
        assert!(house::unlisted("mod order;\n#[cfg(unix)]\npub mod views;", &beside).is_empty());
    }

    #[test]
    fn but_not_on_a_program_that_tests_start() {
        let manifest = "[[example]]\nname = \"server\"\npath = \"tests/it/support/server.rs\"";
        assert_eq!(house::targets(manifest), ["tests/it/support/server.rs"]);
        assert!(house::targets("[package]\nname = \"p\"").is_empty());
    }

    #[test]
    fn on_a_component_that_is_unlisted_changed_missing_or_leaky() {
        let files = |bytes: &[u8]| BTreeMap::from([("a.wasm".to_owned(), bytes.to_vec())]);
        let sums = |bytes: &[u8]| format!("{}  a.wasm\n", portcullis::model::digest::Digest::of(bytes));
        assert_none(house::artifacts(&sums(b"good"), &files(b"good")));
        assert_eq!(house::artifacts("", &files(b"good")).len(), 1);
        assert_eq!(house::artifacts(&sums(b"other"), &files(b"good")).len(), 1);
        assert_eq!(house::artifacts(&sums(b"good"), &BTreeMap::new()).len(), 1);
        assert_eq!(house::artifacts("rubbish\n", &BTreeMap::new()).len(), 1);
        let leaky = b"x/home/me/x";
        assert_eq!(house::artifacts(&sums(leaky), &files(leaky)), ["a.wasm: holds `/home/`"]);
    }
}
