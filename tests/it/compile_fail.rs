//! The proof chain cannot be forged: each program in `tests/compile_fail` fails to compile, with the error that its first
//! line names, and the control compiles.
//!
//! The compiler is run on the library that this very test is linked to, so nothing is built again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The folder of compiled dependencies that this test binary lies in.
fn dependencies() -> PathBuf {
    let binary = std::env::current_exe().expect("the test binary has a path");
    binary.parent().expect("it lies in a folder").to_owned()
}

/// The newest compiled library of this package.
fn library(folder: &Path) -> PathBuf {
    let named = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("libportcullis-") && name.ends_with(".rlib")
    };
    let changed = |path: &PathBuf| path.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let entries = std::fs::read_dir(folder).expect("the folder of dependencies can be read");
    let libraries = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(named);
    libraries.max_by_key(changed).expect("the library is compiled")
}

/// Compiles one program; returns the error codes, empty if it compiled.
fn compile(program: &Path) -> BTreeSet<String> {
    let folder = dependencies();
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let out = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(compiler)
        .args(["--edition", "2024", "--crate-type", "bin", "--emit=metadata", "--error-format=short"])
        .arg("--extern")
        .arg(format!("portcullis={}", library(&folder).display()))
        .arg("-L")
        .arg(format!("dependency={}", folder.display()))
        .arg("--out-dir")
        .arg(out.path())
        .arg(program)
        .output()
        .expect("the compiler can be started");
    let text = String::from_utf8_lossy(&output.stderr);
    let codes: BTreeSet<String> =
        text.split("error[").skip(1).filter_map(|rest| Some(rest.split_once(']')?.0.to_owned())).collect();
    assert!(output.status.success() || !codes.is_empty(), "{}: no error code in\n{text}", program.display());
    codes
}

#[test]
fn the_proof_chain_cannot_be_forged() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let mut programs: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().filter_map(|entry| Some(entry.ok()?.path())).collect();
    programs.sort();
    let (mut control, mut forgeries) = (0, 0);
    for program in programs {
        let source = std::fs::read_to_string(&program).unwrap();
        let first = source.lines().next().unwrap_or_default();
        let wanted: BTreeSet<String> = match first.strip_prefix("// error: ") {
            Some(codes) => codes.split(' ').map(str::to_owned).collect(),
            None => {
                assert_eq!(first, "// compiles", "{}: the first line says what is expected", program.display());
                BTreeSet::new()
            }
        };
        if wanted.is_empty() {
            control += 1
        } else {
            forgeries += 1
        }
        assert_eq!(compile(&program), wanted, "{}", program.display());
    }
    assert!(control >= 1 && forgeries >= 10, "{control} controls and {forgeries} forgeries");
}
