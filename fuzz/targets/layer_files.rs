//! Layer files: read or refused, with a problem that names the layer; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis::config::parse::parse;
use portcullis::model::layer::{LayerKind, LayerRef};

const KINDS: [LayerKind; 6] = [
    LayerKind::Managed,
    LayerKind::System,
    LayerKind::Organisation,
    LayerKind::User,
    LayerKind::Session,
    LayerKind::Project,
];

fuzz_target!(|input: (u8, &str)| {
    let (kind, text) = input;
    let kind = KINDS[usize::from(kind) % KINDS.len()];
    match parse(text, &LayerRef::from_file(kind, "layer.toml".into())) {
        Ok(file) => assert!(file.policies.iter().all(|policy| !policy.name.is_empty())),
        Err(problems) => assert!(!problems.is_empty(), "a layer is refused without a reason"),
    }
});
