//! `guest-builder update` rebuilds the shipped components; `guest-builder check` compares them with what is committed.

use std::fmt::Write as _;
use std::process::ExitCode;

use guest_builder::{SHIPPED, build, sha256, workspace};

fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        Some("update") => update(),
        Some("check") => check(),
        _ => Err("usage: guest-builder update | check".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("guest-builder: {error}");
            ExitCode::FAILURE
        }
    }
}

fn update() -> Result<(), Box<dyn std::error::Error>> {
    let folder = workspace().join("policies/artifacts");
    std::fs::create_dir_all(&folder)?;
    let mut sums = String::new();
    for name in SHIPPED {
        let bytes = build(name)?;
        std::fs::write(folder.join(format!("{name}.wasm")), &bytes)?;
        writeln!(sums, "{}  {name}.wasm", sha256(&bytes))?;
        println!("{name}: {} bytes", bytes.len());
    }
    std::fs::write(folder.join("SHA256SUMS"), sums)?;
    Ok(())
}

fn check() -> Result<(), Box<dyn std::error::Error>> {
    let folder = workspace().join("policies/artifacts");
    let sums = std::fs::read_to_string(folder.join("SHA256SUMS"))?;
    let mut differing = Vec::new();
    for name in SHIPPED {
        let bytes = build(name)?;
        let committed = std::fs::read(folder.join(format!("{name}.wasm")))?;
        if committed != *bytes {
            differing.push(format!("`{name}.wasm` is not what its source gives"));
        }
        if !sums.lines().any(|line| line == format!("{}  {name}.wasm", sha256(&committed))) {
            differing.push(format!("`{name}.wasm` is not what SHA256SUMS says"));
        }
    }
    if differing.is_empty() { Ok(()) } else { Err(differing.join("; ").into()) }
}
