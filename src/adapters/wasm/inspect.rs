//! What bytes say they are, before anything is compiled: a component, valid, importing only what we offer.
//!
//! Compilers are not built to be attacked for their time and memory; so counts are capped here first (wasm-limits section 5).

use wasmparser::{Encoding, Parser, Payload, Validator, WasmFeatures};

use super::bindings::{CURRENT, TRACKS, Track};
use super::hooks::Exports;
use super::limits::{MAX_FUNCTIONS, MAX_MEMORY, MAX_TABLE_ELEMENTS};
use crate::model::text::shown;
use crate::model::verdict::{Fault, FaultCode};

const PACKAGE: &str = "portcullis:policy/";
/// The decision points, as interfaces that a component exports.
const HOOKS: [&str; 3] = ["approval", "connector", "sanitiser"];
/// The first bytes of an ELF file, which precompiled code is.
const ELF: &[u8] = b"\x7fELF";

/// Checks that `bytes` are a component that this host can ask something, and returns the track that it was made for, and what
/// of it it exports.
///
/// # Errors
/// `missing` for what has none of the three decision points, `missing-import` and `wrong-version` for imports we do not offer, `memory` for
/// one that starts with more than any limit grants.
pub(super) fn check(bytes: &[u8]) -> Result<(&'static Track, Exports), Fault> {
    if bytes.starts_with(ELF) {
        return Err(missing("it is precompiled code, which is never loaded; give the component that it was made from"));
    }
    match Parser::new(0).parse_all(bytes).next() {
        Some(Ok(Payload::Version { encoding: Encoding::Component, .. })) => {}
        Some(Ok(Payload::Version { encoding: Encoding::Module, .. })) => {
            return Err(missing("it is a core module, not a component; make one with `wasm-tools component new`"));
        }
        _ => return Err(missing("it is not a WebAssembly component")),
    }
    Validator::new_with_features(features())
        .validate_all(bytes)
        .map_err(|e| missing(&format!("it is not a valid component: {}", e.message())))?;
    let found = Found::read(bytes).map_err(|e| missing(&format!("it is not a valid component: {}", e.message())))?;
    found.judge()
}

fn missing(why: &str) -> Fault {
    Fault::new(FaultCode::Missing, why)
}

/// The proposals that the engine has switched on.
fn features() -> WasmFeatures {
    let off = WasmFeatures::RELAXED_SIMD
        | WasmFeatures::THREADS
        | WasmFeatures::MULTI_MEMORY
        | WasmFeatures::MEMORY64
        | WasmFeatures::EXCEPTIONS
        | WasmFeatures::GC
        | WasmFeatures::GC_TYPES
        | WasmFeatures::FUNCTION_REFERENCES
        | WasmFeatures::CM_ASYNC;
    WasmFeatures::default().difference(off)
}

/// What a component declares.
#[derive(Default)]
struct Found {
    imports: Vec<String>,
    exports: Vec<String>,
    functions: u64,
    memory: u64,
    elements: u64,
}

impl Found {
    fn read(bytes: &[u8]) -> wasmparser::Result<Self> {
        let mut found = Self::default();
        // Only the outermost component imports from us; modules and components inside import from it.
        let mut depth = 0_usize;
        for payload in Parser::new(0).parse_all(bytes) {
            match payload? {
                Payload::Version { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(section) if depth == 1 => {
                    for import in section {
                        found.imports.push(import?.name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) if depth == 1 => {
                    for export in section {
                        found.exports.push(export?.name.name.to_owned());
                    }
                }
                Payload::FunctionSection(section) => found.functions += u64::from(section.count()),
                Payload::MemorySection(section) => {
                    for memory in section {
                        found.memory = found.memory.saturating_add(memory?.initial.saturating_mul(65536));
                    }
                }
                Payload::TableSection(section) => {
                    for table in section {
                        found.elements = found.elements.saturating_add(table?.ty.initial);
                    }
                }
                _ => {}
            }
        }
        Ok(found)
    }

    fn judge(&self) -> Result<(&'static Track, Exports), Fault> {
        for name in &self.imports {
            check_import(name, TRACKS)?;
        }
        let (track, exports) = self.exports()?;
        // Its types would not be those that it is asked with.
        for name in &self.imports {
            check_import(name, &[track])?;
        }
        if self.functions > MAX_FUNCTIONS {
            return Err(missing(&format!("it has {} functions, more than {MAX_FUNCTIONS}", self.functions)));
        }
        let too_much = |what: String| Err(Fault::new(FaultCode::Memory, what));
        if self.memory > MAX_MEMORY as u64 {
            return too_much(format!("it starts with {} bytes of memory, more than {MAX_MEMORY}", self.memory));
        }
        if self.elements > MAX_TABLE_ELEMENTS as u64 {
            return too_much(format!(
                "it starts with {} table elements, more than {MAX_TABLE_ELEMENTS}",
                self.elements
            ));
        }
        Ok((track, exports))
    }

    fn exports(&self) -> Result<(&'static Track, Exports), Fault> {
        // Exports that we do not know are left alone: interpreters have some of their own.
        let ours: Vec<_> = self.exports.iter().filter_map(|name| interface(name)).collect();
        for track in TRACKS {
            let has = |wanted: &str| ours.iter().any(|(name, version)| *name == wanted && track.has(version));
            let exports = Exports {
                approval: has("approval"),
                connector: has("connector"),
                sanitiser: has("sanitiser"),
                settings: has("settings"),
            };
            if exports.approval || exports.connector || exports.sanitiser {
                return Ok((track, exports));
            }
        }
        match ours.iter().find(|(name, _)| HOOKS.contains(name)) {
            Some((name, version)) => Err(wrong_version(name, version)),
            None => {
                let version = CURRENT.version();
                Err(missing(&format!(
                    "it exports none of `{PACKAGE}approval@{version}`, `{PACKAGE}connector@{version}` and \
                     `{PACKAGE}sanitiser@{version}`, so it decides nothing"
                )))
            }
        }
    }
}

fn check_import(name: &str, tracks: &[&Track]) -> Result<(), Fault> {
    let offers = |interface| move |track: &&&Track| track.offered.contains(&interface);
    match interface(name) {
        Some((interface, version)) if tracks.iter().filter(offers(interface)).any(|track| track.has(version)) => Ok(()),
        Some((interface, version)) if TRACKS.iter().any(|track| offers(interface)(&track)) => {
            Err(wrong_version(interface, version))
        }
        _ if name.starts_with("wasi:") => Err(Fault::new(
            FaultCode::MissingImport,
            format!(
                "it imports `{}`, but no policy gets WASI; build it with `--target wasm32-unknown-unknown`, or with your \
                 componentiser's option to stub WASI",
                shown(name, 128)
            ),
        )),
        _ => Err(Fault::new(
            FaultCode::MissingImport,
            format!("it imports `{}`, which this host does not offer", shown(name, 128)),
        )),
    }
}

fn wrong_version(interface: &str, version: &str) -> Fault {
    let (version, ours) = (shown(version, 32), CURRENT.version());
    Fault::new(
        FaultCode::WrongVersion,
        format!("it wants `{PACKAGE}{interface}@{version}`, this host offers `{PACKAGE}{interface}@{ours}`"),
    )
}

/// Splits the name of an interface of our package into its name and version.
fn interface(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(PACKAGE)?.split_once('@')
}
