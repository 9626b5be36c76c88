//! Bytes that claim to be a component: admitted, or refused with a fault; what is admitted is asked and answers or fails.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{Corpus, fuzz_target};
use portcullis::adapters::wasm::{Engine, Limits};

#[path = "support.rs"]
mod support;

static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::on_demand().expect("an engine"));

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let admitted = ENGINE.load(bytes, None, serde_json::Value::Null, Limits::default(), support::source());
    let Ok(component) = admitted else { return Corpus::Keep };
    let _ = support::ask(&component, "{}");
    Corpus::Keep
});
