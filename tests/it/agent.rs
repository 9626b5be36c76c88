//! The example of a whole agent goes as its transcript says: search, a call, arguments that do not fit, a question that a
//! person answers, one that is declined, a tool that is not there, and a secret that the model never reads.

use std::process::Command;

use crate::support::example;

#[test]
fn the_examples_agent_has_the_transcript_that_is_kept() {
    let ran = Command::new(example("agent", "examples/agent.rs")).env_clear().output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let transcript = String::from_utf8(ran.stdout).unwrap();
    assert!(!transcript.contains("tr0ub4dor"), "{transcript}");
    insta::assert_snapshot!("agent", transcript);
}
