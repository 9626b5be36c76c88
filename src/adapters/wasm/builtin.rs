//! The components that come with the host, as they are committed under `policies/artifacts`.
//!
//! The build check rebuilds them from source and compares byte for byte.

/// The baseline: allow or ask by mode, profile and hints (R10).
pub const APPROVAL_BASELINE: &[u8] = include_bytes!("../../../policies/artifacts/approval-baseline.wasm");

/// The answer about tools of Apps from one layer's `[apps]` and its requirements (rows A01 to A30).
pub const CONNECTOR_BASELINE: &[u8] = include_bytes!("../../../policies/artifacts/connector-baseline.wasm");

/// The demo's managed layer: what nobody may do.
pub const DEMO_MANAGED: &[u8] = include_bytes!("../../../policies/artifacts/demo-managed.wasm");

/// The demo's organisation layer: mail needs an agreement, reading files does not.
pub const DEMO_ORGANISATION: &[u8] = include_bytes!("../../../policies/artifacts/demo-organisation.wasm");

/// The demo's broken policy: it never ends.
pub const DEMO_BROKEN: &[u8] = include_bytes!("../../../policies/artifacts/demo-broken.wasm");

/// The sanitiser that takes secrets out of answers: keys, tokens, private keys, passwords.
pub const SANITISE_SECRETS: &[u8] = include_bytes!("../../../policies/artifacts/sanitise-secrets.wasm");
