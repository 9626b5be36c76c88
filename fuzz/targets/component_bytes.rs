//! Bytes that claim to be a component: admitted, or refused with a fault; what is admitted is asked and answers or fails.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{Corpus, fuzz_target};
use portcullis::adapters::wasm::{Admission, Engine};

#[path = "support.rs"]
mod support;

static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::on_demand().expect("an engine"));

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let admitted = ENGINE.admit(bytes, Admission::plain(support::source()));
    if let Ok(Some(component)) = admitted.map(|admitted| admitted.approval) {
        let _ = support::ask(&component, "{}");
    }
    Corpus::Keep
});
