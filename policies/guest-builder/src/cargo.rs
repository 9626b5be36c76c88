//! Runs cargo for a guest: which flags, which environment, from where.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{BuildError, workspace};

const TARGET: &str = "wasm32-unknown-unknown";

/// Builds `package` with the profile `guest` and returns its core module.
pub(crate) fn core_module(package: &str) -> Result<Vec<u8>, BuildError> {
    add_missing_target()?;
    // The registry's folders must exist before their names can be remapped.
    finished("cargo", package, command("cargo").args(["fetch", "--locked", "--target", TARGET]))?;
    let target = target_folder();
    let mut build = command("cargo");
    build.args(["build", "--locked", "--target", TARGET, "--profile", "guest", "-p", package]);
    build.arg("--target-dir").arg(&target).env("CARGO_ENCODED_RUSTFLAGS", flags()?);
    finished("cargo", package, &mut build)?;
    let path = target.join(TARGET).join("guest").join(format!("{}.wasm", package.replace('-', "_")));
    std::fs::read(&path).map_err(|source| BuildError::Read { path, source })
}

/// A target folder of our own: the host's build and ours do not wait for, or rebuild, each other.
fn target_folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    workspace().join(target).join("guests")
}

/// A command in the workspace without what the caller set for its own build: flags, wrappers, profiles, coverage.
///
/// What cargo and rustup need to find files and to reach their servers stays.
fn command(program: &str) -> Command {
    const KEPT: [&str; 5] = ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "RUSTUP_"];
    // The toolchain file decides, not the toolchain that runs this program.
    const DROPPED: [&str; 6] = ["RUSTUP_TOOLCHAIN", "RUSTFLAGS", "RUSTDOCFLAGS", "LLVM_", "RUSTC", "SOURCE_DATE_EPOCH"];
    let mut command = Command::new(program);
    command.current_dir(workspace());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let ours = text.starts_with("CARGO") && !KEPT.iter().any(|kept| text.starts_with(kept));
        if ours || text.starts_with("__CARGO") || DROPPED.iter().any(|dropped| text.starts_with(dropped)) {
            command.env_remove(&name);
        }
    }
    command
}

/// The compiler flags: a small stack, and every folder of this machine under a fixed name.
///
/// The last matching prefix wins, so the wider folders come first.
fn flags() -> Result<OsString, BuildError> {
    let sysroot = PathBuf::from(printed(&["--print", "sysroot"])?);
    let version = printed(&["-vV"])?;
    let commit = version.lines().find_map(|line| line.strip_prefix("commit-hash: ")).unwrap_or("unknown").to_owned();
    let mut remaps: Vec<(PathBuf, String)> = Vec::new();
    if let Some(home) = cargo_home() {
        remaps.push((home.clone(), "/cargo".to_owned()));
        // The folder of a registry is named after its host.
        for folder in folders(&home.join("registry/src")) {
            remaps.push((folder, "/crates".to_owned()));
        }
    }
    remaps.push((sysroot.clone(), "/rust".to_owned()));
    // As the compiler calls the standard library's sources where they are not installed.
    remaps.push((sysroot.join("lib/rustlib/src/rust"), format!("/rustc/{commit}")));
    remaps.push((workspace(), "/portcullis".to_owned()));
    let mut flags = OsString::from("-Clink-arg=-zstack-size=65536");
    for (from, to) in remaps {
        flags.push("\u{1f}--remap-path-prefix=");
        flags.push(from);
        flags.push("=");
        flags.push(to);
    }
    Ok(flags)
}

fn cargo_home() -> Option<PathBuf> {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    set.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
}

fn folders(parent: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

fn add_missing_target() -> Result<(), BuildError> {
    let libraries = printed(&["--print", "target-libdir", "--target", TARGET])?;
    if Path::new(&libraries).is_dir() {
        return Ok(());
    }
    eprintln!("guest-builder: adding the missing Rust target {TARGET} (rustup target add {TARGET})");
    finished("rustup", TARGET, command("rustup").args(["target", "add", TARGET])).map(drop)
}

fn printed(arguments: &[&str]) -> Result<String, BuildError> {
    let output = finished("rustc", TARGET, command("rustc").args(arguments))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn finished(program: &'static str, package: &str, command: &mut Command) -> Result<Output, BuildError> {
    let output = command.output().map_err(|source| BuildError::Start { program, source })?;
    if output.status.success() {
        return Ok(output);
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(BuildError::Failed { program, package: package.to_owned(), stderr })
}
