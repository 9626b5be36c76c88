//! How this process speaks HTTP: TLS by rustls with ring, and the roots of the system.

use std::sync::Once;

/// Returns a builder for clients. Decides who does the cryptography, once for the process; what an embedder has installed
/// before stays. The transport of HTTP servers builds its own client, with the same provider.
pub fn client_builder() -> reqwest::ClientBuilder {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // It fails only if there is one already, which then does the work.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    reqwest::Client::builder()
}
