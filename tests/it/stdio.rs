//! The real program between a client and real processes, all over stdio: what passes does so byte by byte, what is bad is
//! bounded, reported once by its server's name and without a word of it, and no other server notices.

use serde_json::json;

use crate::support::served::Served;
use crate::support::{eventually, scripted_server};

const SECRET: &str = "swordfish4711";

/// A server of the configuration: the scripted one, with all its tools.
fn server(name: &str, flags: &str, keys: &str) -> String {
    let command = scripted_server();
    let approve = "default_tools_approval_mode = \"approve\"";
    format!("[mcp_servers.{name}]\ncommand = {command:?}\nargs = [\"--all\"{flags}]\n{approve}\n{keys}\n")
}

async fn lives(served: &mut Served, server: &str) {
    let answer = served.call(&format!("{server}__add"), &json!({ "a": 2, "b": 3 })).await;
    assert_eq!(answer["result"]["content"][0]["text"], "5", "{answer}");
}

/// The most memory that a process has had so far, in bytes.
#[cfg(target_os = "linux")]
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn pitfall_2_twenty_megabytes_pass_byte_by_byte_and_what_is_over_the_limit_fails_its_own_call() {
    let config = server("s", "", "") + &server("small", "", "message_limit = 1048576");
    let mut served = Served::greeted(&config, &[]).await;
    lives(&mut served, "small").await;
    let arguments = json!({ "where": "head", "bytes": 20_000_000 });
    served.request("big", "tools/call", &json!({ "name": "s__oversized", "arguments": arguments }).to_string()).await;
    let expected = format!(r#"{{"jsonrpc":"2.0","id":"big","result":{{"a":"{}"}}}}"#, "x".repeat(20_000_000));
    assert!(served.line(json!("big")).await == expected, "not the same bytes");

    let hanging = json!({ "name": "small__slow", "arguments": { "steps": 1, "ms": 300 } });
    served.request("other", "tools/call", &hanging.to_string()).await;
    let over = served.call("small__oversized", &json!({ "where": "head", "bytes": 2_000_000 })).await;
    assert_eq!(over["error"]["message"], "the server's answer has more than 1048576 bytes", "{over}");
    assert_eq!(served.answer(json!("other")).await["result"]["content"][0]["text"], "done");
    lives(&mut served, "small").await;
    assert!(served.finish().await.success());
    assert_eq!(served.stderr(), "", "the connection was not lost");
}

#[tokio::test]
async fn pitfall_4_an_answer_of_any_shape_reaches_the_client_byte_by_byte() {
    let mut served = Served::greeted(&server("s", "", ""), &[]).await;
    let odd = r#"{ "content":[{"type":"hologram","beam":1.50,"annotations":{"odd":[1e2]}},{"type":"text","text":"\u0041","x":null}],"structuredContent":[1,"two",123456789012345678901234567890],"_meta":{"b":{"z":-0.0,"a":1},"a":2},"resultType":"new", "isError" : false}"#;
    lives(&mut served, "s").await;
    let params = json!({ "name": "s__raw", "arguments": { "text": odd } });
    served.request("odd", "tools/call", &params.to_string()).await;
    assert_eq!(served.line(json!("odd")).await, format!(r#"{{"jsonrpc":"2.0","id":"odd","result":{odd}}}"#));
    let error = r#"{"data":{"z":1.50,"a":[2e0]},"code":-32050, "message":"no","odd":[]}"#;
    let line = format!(r#"{{"error":{error},"id":$ID}}"#);
    served.request("e", "tools/call", &json!({ "name": "s__line", "arguments": { "text": line } }).to_string()).await;
    assert_eq!(served.line(json!("e")).await, format!(r#"{{"jsonrpc":"2.0","id":"e","error":{error}}}"#));
}

#[tokio::test]
async fn pitfalls_5_and_6_progress_arrives_whole_in_order_and_before_its_answer() {
    let mut served = Served::greeted(&server("s", "", ""), &[]).await;
    lives(&mut served, "s").await;
    for (id, tool, steps) in [("a", "slow", 200), ("b", "together", 200), ("c", "together", 1), ("d", "slow", 1)] {
        let params = json!({ "name": format!("s__{tool}"), "arguments": { "steps": steps },
            "_meta": { "progressToken": id } });
        served.request(id, "tools/call", &params.to_string()).await;
        assert_eq!(served.answer(json!(id)).await["result"]["content"][0]["text"], "done");
        assert_eq!(served.steps(), (1..=steps).map(f64::from).collect::<Vec<_>>(), "{tool}");
    }
}

#[tokio::test]
async fn pitfall_16_servers_that_wait_for_each_other_all_become_ready() {
    let names = ["a", "b", "c"];
    let command = scripted_server();
    let all = "until [ -e $PLACE/a ] && [ -e $PLACE/b ] && [ -e $PLACE/c ]; do sleep 0.02; done";
    let config: String = names
        .map(|name| {
            let script = format!("touch $PLACE/{name}; {all}; exec '{}'", command.display());
            format!(
                "[mcp_servers.{name}]\ncommand = \"/bin/sh\"\nargs = [\"-c\", '''{script}''']\n\
                 default_tools_approval_mode = \"approve\"\n"
            )
        })
        .concat();
    let mut served = Served::greeted(&config, &[]).await;
    for name in names {
        lives(&mut served, name).await;
    }
}

#[tokio::test]
async fn pitfall_18_no_argument_and_no_answer_is_logged_at_any_level() {
    let config = server("s", ", \"--early\", \"swordfish4711\"", "") + &server("other", "", "");
    let mut served = Served::greeted(&config, &[("PORTCULLIS_LOG", "trace")]).await;
    lives(&mut served, "s").await;
    let answer = served.call("s__echo", &json!({ "password": SECRET })).await;
    assert!(answer.to_string().contains(SECRET));
    let raw = format!(r#"{{"content":[{{"type":"odd","text":"{SECRET}"}}],"structuredContent":["{SECRET}"]}}"#);
    for (tool, arguments) in [
        ("s__raw", json!({ "text": raw })),
        ("s__raw", json!({ "text": format!(r#"["{SECRET}"]"#) })),
        ("s__line", json!({ "text": format!(r#"{{"id":$ID,"error":{{"code":7,"message":"{SECRET}"}}}}"#) })),
        ("s__line", json!({ "text": format!(r#"{{"id":$ID,"error":"{SECRET}"}}"#) })),
        ("s__line", json!({ "text": format!("{SECRET}\n{{\"method\":\"{SECRET}\"}}\n{{\"id\":$ID,\"{SECRET}\":1}}") })),
        ("s__protocol_error", json!({ "a": SECRET })),
        ("s__slow", json!({ SECRET: SECRET, "_meta": { "progressToken": SECRET } })),
        ("s__no-such-tool", json!({ "a": SECRET })),
        ("other__die", json!({ "a": SECRET })),
    ] {
        served.call(tool, &arguments).await;
    }
    for line in [
        format!(r#"{{"jsonrpc":"2.0","id":"{SECRET}","method":"{SECRET}","params":{{"a":"{SECRET}"}}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":7,"{SECRET}":1}}}}"#),
        format!(r#"{{"jsonrpc":"2.0","method":"{SECRET}","params":{{"a":"{SECRET}"}}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":"{SECRET}","result":{{"a":"{SECRET}"}}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":"{SECRET}","error":{{"code":1,"message":"{SECRET}"}}}}"#),
        SECRET.to_owned(),
    ] {
        served.send(&line).await;
    }
    lives(&mut served, "s").await;
    assert!(served.finish().await.success());
    let stderr = served.stderr();
    assert!(stderr.contains("TRACE") || stderr.contains("DEBUG") || stderr.contains("INFO"), "nothing was logged");
    let telling: Vec<&str> = stderr.lines().filter(|line| line.contains(SECRET)).collect();
    assert!(telling.is_empty(), "{telling:#?}");
}

/// The lines of stderr that report a skipped line of `server`, and nothing else is there.
fn reports<'a>(stderr: &'a str, server: &str) -> Vec<&'a str> {
    let of_server = format!("server={server}");
    for line in stderr.lines() {
        assert!(line.contains("WARN") && line.contains(&of_server) && line.contains("was skipped"), "{line}");
        assert!(!line.contains(SECRET), "{line}");
    }
    stderr.lines().collect()
}

#[tokio::test]
async fn what_is_no_message_or_nobodys_answer_is_reported_once_a_kind_and_no_other_server_notices() {
    let mut served = Served::greeted(&(server("bad", "", "") + &server("good", "", "")), &[]).await;
    lives(&mut served, "bad").await;
    let line = |text: &str| text.replace("SECRET", SECRET);
    let answer = r#"{"id":$ID,"result":{"content":[{"type":"text","text":"once"}]}}"#;
    let before = [
        r#"{"jsonrpc":"2.0","id":999999,"result":{"SECRET":"SECRET"}}"#,
        r#"{"jsonrpc":"2.0","id":"SECRET","error":{"code":1,"message":"SECRET"}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"SECRET"}}"#,
        "SECRET",
        r#"{"SECRET"#,
        r#"{"SECRET":1}"#,
        r#"["SECRET"]"#,
        answer,
        // Twice.
        &answer.replace("once", "SECRET"),
    ]
    .map(line);
    for _ in 0..50 {
        let called = served.call("bad__line", &json!({ "text": before.join("\n") })).await;
        assert_eq!(called["result"]["content"][0]["text"], "once", "{called}");
        // Invalid UTF-8 among it.
        assert_eq!(served.call("bad__rubbish", &json!({})).await["result"]["content"][0]["text"], "fine");
    }
    lives(&mut served, "good").await;
    lives(&mut served, "bad").await;
    assert!(served.finish().await.success());
    let stderr = served.stderr();
    let reports = reports(&stderr, "bad");
    for kind in [
        "an answer to a request that was never made",
        "a second answer to one request",
        "an answer without a usable id",
        "no JSON object",
        "no JSON was",
        "JSON, but no JSON-RPC message",
        "a JSON-RPC batch",
        "not UTF-8",
    ] {
        let count = reports.iter().filter(|line| line.contains(kind)).count();
        assert_eq!(count, 1, "{kind}: {reports:#?}");
    }
    assert_eq!(reports.len(), 8);
}

#[tokio::test]
async fn what_comes_before_the_handshake_is_over_does_no_harm_and_is_reported_once_a_kind() {
    let config = server("bad", ", \"--early\", \"swordfish4711\"", "") + &server("good", "", "");
    let mut served = Served::greeted(&config, &[]).await;
    lives(&mut served, "bad").await;
    lives(&mut served, "good").await;
    assert!(served.finish().await.success());
    let stderr = served.stderr();
    let reports = reports(&stderr, "bad");
    assert_eq!(reports.len(), 6, "{reports:#?}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_line_of_a_hundred_megabytes_fails_its_call_alone_in_bounded_memory() {
    const LIMIT: u64 = 32 << 20;
    let keys = format!("message_limit = {LIMIT}");
    let mut served = Served::greeted(&(server("bad", "", &keys) + &server("good", "", "")), &[]).await;
    lives(&mut served, "bad").await;
    let before = peak(served.pid());
    let over = served.call("bad__oversized", &json!({ "where": "head", "bytes": 100_000_000 })).await;
    assert_eq!(over["error"]["message"], format!("the server's answer has more than {LIMIT} bytes"));
    lives(&mut served, "bad").await;
    lives(&mut served, "good").await;
    let grown = peak(served.pid()) - before;
    assert!(grown < 4 * LIMIT, "{grown} bytes");
    assert!(served.finish().await.success());
    assert_eq!(served.stderr(), "");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_endless_line_costs_its_server_the_connection_in_bounded_memory() {
    const LIMIT: u64 = 8 << 20;
    let keys = format!("message_limit = {LIMIT}");
    let mut served = Served::greeted(&(server("bad", "", &keys) + &server("good", "", "")), &[]).await;
    lives(&mut served, "bad").await;
    let before = peak(served.pid());
    let lost = served.call("bad__endless", &json!({ "a": SECRET })).await;
    assert_eq!(lost["result"]["_meta"]["portcullis/refusal"]["code"], "ambiguous", "{lost}");
    lives(&mut served, "good").await;
    lives(&mut served, "bad").await;
    let grown = peak(served.pid()) - before;
    assert!(grown < 4 * LIMIT, "{grown} bytes");
    assert!(lost["result"]["content"][0]["text"].as_str().unwrap().contains("bad/endless"), "{lost}");
    eventually("the reason is reported", || served.stderr().contains("a line without end").then_some(())).await;
    assert!(served.stderr().contains("server=bad") && !served.stderr().contains(SECRET), "{}", served.stderr());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_endless_line_on_stderr_is_read_away_in_bounded_memory() {
    let mut served = Served::greeted(&(server("bad", "", "") + &server("good", "", "")), &[]).await;
    let pid = served.call("bad__pid", &json!({})).await["result"]["content"][0]["text"].take();
    let before = peak(served.pid());
    assert_eq!(served.call("bad__endless_errors", &json!({})).await["result"]["content"][0]["text"], "begun");
    eventually("much has been written", || {
        let io = std::fs::read_to_string(format!("/proc/{}/io", pid.as_str().unwrap())).unwrap();
        let written: u64 = io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok()).unwrap();
        (written > 200_000_000).then_some(())
    })
    .await;
    lives(&mut served, "bad").await;
    lives(&mut served, "good").await;
    let grown = peak(served.pid()) - before;
    assert!(grown < 32 << 20, "{grown} bytes");
    assert!(served.finish().await.success());
    assert!(served.stderr().len() < 100_000);
}
