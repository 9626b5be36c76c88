//! The configuration reference is the types' own words.

use portcullis::config::docs::reference_markdown;

#[test]
fn the_configuration_page_is_what_the_types_say() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let generated = reference_markdown();
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "docs/configuration.md is not what the types say; run with BLESS=1 and look at the diff"
    );
}
