//! TLS: a certificate that cannot be verified is refused with the reason, and the roots of trust can be named.

use std::fs;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::*;
use crate::support::http_server::legacy;

/// A server with a certificate of its own for this name, and that certificate.
fn with_certificate(name: &str) -> (HttpServer, String) {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let server = HttpServer::start_with(None, Some(TlsAcceptor::from(Arc::new(config))), legacy, async |_| None);
    (server, made.cert.pem())
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused_before_anything_is_sent() {
    let (server, _) = with_certificate("127.0.0.1");
    let why = How { bearer: Some(Secret::new(HUSH)), ..How::default() }.refused(&server.url()).await;
    assert!(why.contains(&format!("cannot connect to `{}`", server.address)), "{why}");
    assert!(why.contains("certificate"), "{why}");
    assert!(server.asked().is_empty());
}

/// What `tools` prints for this server where this file holds the roots of trust.
fn tools(server: &HttpServer, roots: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("roots.pem");
    fs::write(&file, roots).unwrap();
    let table = format!("url = {:?}\n", server.url());
    command(&table, &["tools", "--format", "json"], &[("SSL_CERT_FILE", file.to_str().unwrap())]).1
}

#[test]
fn the_roots_of_trust_can_be_named_and_the_name_of_the_server_must_be_in_its_certificate() {
    let (server, certificate) = with_certificate("127.0.0.1");
    let text = tools(&server, &certificate);
    assert!(text.contains("\"t\"") || text.contains("web/t"), "{text}");
    let (_, another) = with_certificate("127.0.0.1");
    let text = tools(&server, &another);
    assert!(text.contains("certificate"), "{text}");
    let (elsewhere, certificate) = with_certificate("example.test");
    let text = tools(&elsewhere, &certificate);
    assert!(text.contains("certificate"), "{text}");
}
