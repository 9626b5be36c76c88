//! What `serve` does to the streams that it was given.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use rustix::fs::{OFlags, fcntl_getfl};
use serde_json::Value;

#[test]
fn serve_answers_over_pipes_and_leaves_those_who_share_them_as_they_were() {
    let home = tempfile::tempdir().unwrap();
    let (near_out, mut near_in) = std::io::pipe().unwrap();
    let (far_out, far_in) = std::io::pipe().unwrap();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    serve.arg("serve").current_dir(home.path()).env("HOME", home.path()).env_remove("XDG_CONFIG_HOME");
    // Our clones stand for a shell that started it: they are the same open files.
    serve.stdin(near_out.try_clone().unwrap()).stdout(far_in.try_clone().unwrap()).stderr(Stdio::null());
    let mut child = serve.spawn().unwrap();
    drop(serve);
    let mut lines = BufReader::new(far_out).lines();
    for id in 1..=2 {
        near_in.write_all(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}\n").as_bytes()).unwrap();
        let answer: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"], id);
    }
    for flags in [fcntl_getfl(&near_out).unwrap(), fcntl_getfl(&far_in).unwrap()] {
        assert!(!flags.contains(OFlags::NONBLOCK), "{flags:?}");
    }
    drop((near_in, near_out));
    assert!(child.wait().unwrap().success(), "the end of the input ends it");
}
