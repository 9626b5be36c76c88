//! Builds policy components from source, so that two builds anywhere give the same bytes.
//!
//! Promises: the caller's compiler flags, wrappers and profiles have no influence; no path of the building machine and no
//! registry address is inside a component; a missing WebAssembly target is added, and one line says so. Builds of one process
//! run one after the other, each package once.
//!
//! It does not decide which components are shipped beyond the list [`SHIPPED`], and it never writes outside the target
//! folder; the binary `guest-builder` writes `policies/artifacts`.

mod cargo;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest as _, Sha256};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// The components that are committed as built artifacts.
pub const SHIPPED: [&str; 6] =
    ["approval-baseline", "connector-baseline", "demo-broken", "demo-managed", "demo-organisation", "sanitise-secrets"];

/// Why a guest could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A program could not be started.
    #[error("`{program}` cannot be started")]
    Start {
        /// The program.
        program: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// A program ended with an error.
    #[error("`{program}` failed while building `{package}`:\n{stderr}")]
    Failed {
        /// The program.
        program: &'static str,
        /// What was being built.
        package: String,
        /// What it printed.
        stderr: String,
    },
    /// A file could not be read.
    #[error("`{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The core module is not a component of our interface.
    #[error("`{package}` cannot be made a component: {message}")]
    Encode {
        /// The package.
        package: String,
        /// What the encoder says.
        message: String,
    },
}

/// Returns the workspace's root folder.
#[must_use]
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().and_then(Path::parent).unwrap_or(here).to_owned()
}

/// Returns the names of all guest packages under `policies/`, sorted: those that make a `cdylib`.
///
/// # Errors
/// [`BuildError::Read`] if the folder or a manifest cannot be read.
pub fn guests() -> Result<Vec<String>, BuildError> {
    let folder = workspace().join("policies");
    let read = |path: &Path, source| BuildError::Read { path: path.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(|e| read(&folder, e))? {
        let entry = entry.map_err(|e| read(&folder, e))?;
        let manifest = entry.path().join("Cargo.toml");
        if manifest.is_file() {
            let text = std::fs::read_to_string(&manifest).map_err(|e| read(&manifest, e))?;
            if text.contains("\"cdylib\"") {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
    }
    names.sort();
    Ok(names)
}

/// Builds one guest package and returns the component's bytes.
///
/// The first call for a package in a process builds it; later calls return the same bytes. Safe to call from many threads.
///
/// # Errors
/// A [`BuildError`] with what the compiler printed.
pub fn build(package: &str) -> Result<Arc<[u8]>, BuildError> {
    static BUILT: Mutex<BTreeMap<String, Arc<[u8]>>> = Mutex::new(BTreeMap::new());
    // A build that panicked left no entry behind, so a poisoned map is still right.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(bytes) = built.get(package) {
        return Ok(Arc::clone(bytes));
    }
    let bytes: Arc<[u8]> = encode(package, &cargo::core_module(package)?)?.into();
    built.insert(package.to_owned(), Arc::clone(&bytes));
    Ok(bytes)
}

/// A guest's name and its component.
pub type Built = (String, Arc<[u8]>);

/// Builds all guests, in the order of [`guests`].
///
/// # Errors
/// The first [`BuildError`].
pub fn build_all() -> Result<Vec<Built>, BuildError> {
    guests()?.into_iter().map(|name| build(&name).map(|bytes| (name, bytes))).collect()
}

/// Returns the SHA-256 of `bytes` in hex.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Makes a component of a core module that was written by hand for a world of an interface; `wit` is its folder, relative to
/// the workspace.
///
/// # Errors
/// [`BuildError::Encode`] if the interface cannot be read or the module does not fit it.
pub fn from_core_module(module: &[u8], wit: &str, world: &str) -> Result<Vec<u8>, BuildError> {
    let name = "a core module";
    let failed = |e: &dyn std::fmt::Display| BuildError::Encode { package: name.to_owned(), message: format!("{e:#}") };
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(workspace().join(wit)).map_err(|e| failed(&e))?;
    let mut module = module.to_vec();
    let settings = module.windows(SETTINGS.len()).any(|window| window == SETTINGS);
    for world in [world].into_iter().chain(settings.then_some("with-settings")) {
        let world = resolve.select_world(&[package], Some(world)).map_err(|e| failed(&e))?;
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).map_err(|e| failed(&e))?;
    }
    encode(name, &module)
}

/// What a module has that describes its settings, too.
const SETTINGS: &[u8] = b"portcullis:policy/settings@0.1.0#schema";

fn encode(package: &str, module: &[u8]) -> Result<Vec<u8>, BuildError> {
    let encoder = ComponentEncoder::default().validate(true);
    let encoded = encoder.module(module).and_then(|mut encoder| encoder.encode());
    encoded.map_err(|e| BuildError::Encode { package: package.to_owned(), message: format!("{e:#}") })
}
