//! Arguments as a client sends them: parsed or refused, and what is parsed stays the same value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis::model::arguments::Arguments;

fuzz_target!(|text: &str| {
    let Ok(arguments) = Arguments::parse(text) else { return };
    let Some(object) = arguments.object() else { return };
    // What is sent is the serialisation of the value that was decided about (R26): it must read back as the same value.
    let sent = serde_json::Value::Object(object.clone()).to_string();
    let again = Arguments::parse(&sent).expect("what was taken once is taken again");
    assert_eq!(again.object(), Some(object));
    assert_eq!(again.digest(), arguments.digest(), "one value, two digests: {sent}");
    let _ = arguments.at(text);
});
