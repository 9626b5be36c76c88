//! The real servers' tools are found by what a model asks for, and called by what it was given.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::servers::NEEDED;
use super::{Direct, Place, flat, serve, servers, start};
use crate::support::PATIENCE;
use crate::support::installed::Installed;
use crate::support::raw_client::{RawClient, Reply};

const CORPUS: &str = include_str!("../corpus/real_tools.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Corpus {
    question: Vec<Question>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    query: String,
    kind: String,
    tool: String,
    arguments: Option<String>,
}

/// A tool that was found: its reference, its server's name and its own.
struct Found {
    reference: String,
    server: String,
    name: String,
}

async fn search(gateway: &mut RawClient, query: &str) -> Vec<Found> {
    let reply = gateway.call("search_tools", &json!({ "query": query }).to_string()).await;
    let result: Value = serde_json::from_str(reply.text()).unwrap();
    let rows = result["structuredContent"]["tools"].as_array().unwrap_or_else(|| panic!("{query}: {reply:?}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let found = |row: &Value| Found {
        reference: text(&row["tool"]),
        server: text(&row["server"]),
        name: text(&row["definition"]["name"]),
    };
    rows.iter().map(found).collect()
}

/// Waits until every tool of every server can be found: the search tool says how many there are.
async fn settled(directs: &mut [Direct], gateway: &mut RawClient) {
    let give_up = Instant::now() + PATIENCE * 2;
    loop {
        let listed = gateway.tools().await;
        assert_eq!(listed.iter().map(|tool| tool.name()).collect::<Vec<_>>(), ["search_tools", "call_tool"]);
        let said: String = serde_json::from_str(&listed[0].members["description"]).unwrap();
        let mut missing = Vec::new();
        for direct in directs.iter_mut() {
            direct.tools = direct.client.tools().await;
            let tools = if direct.tools.len() == 1 { "tool" } else { "tools" };
            let line = format!("(server {}): {} {tools}", direct.server.name, direct.tools.len());
            if !said.lines().any(|other| other.ends_with(&line)) {
                missing.push(line);
            }
        }
        if missing.is_empty() {
            return;
        }
        assert!(Instant::now() < give_up, "{missing:?} is not in {said}");
        sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Calls by the reference, and the server directly. Returns what differs.
async fn compare(
    direct: &mut Direct,
    gateway: &mut RawClient,
    found: &Found,
    tool: &str,
    arguments: &str,
) -> Option<String> {
    let [ours, theirs] = [0, 1].map(|side| arguments.replace("{folder}", direct.folders[side].to_str().unwrap()));
    let answer = direct.client.call(tool, &ours).await;
    let reference = Value::from(found.reference.as_str());
    let through = gateway.call("call_tool", &format!(r#"{{"tool":{reference},"arguments":{theirs}}}"#)).await;
    let plain = |reply: &Reply, side: usize| reply.text().replace(direct.folders[side].to_str().unwrap(), "{folder}");
    let good = matches!((&answer, &through), (Reply::Result(_), Reply::Result(_)))
        && !answer.text().contains("isError\":true");
    (!good || plain(&answer, 0) != plain(&through, 1))
        .then(|| format!("{}\n  direct:  {answer:?}\n  gateway: {through:?}", found.name))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_models_questions_find_the_right_ones_of_the_real_tools_and_what_is_found_is_called() {
    let Some(installed) = Installed::with(&NEEDED) else { return };
    let place = Place(tempfile::tempdir().unwrap());
    let (mut directs, config) = start(&place, &installed, servers::real()).await;
    let mut gateway = serve(&place, &format!("[gateway]\nsearch = \"always\"\n\n{config}")).await;
    settled(&mut directs, &mut gateway).await;
    let tools: BTreeSet<(&str, String)> =
        directs.iter().flat_map(|direct| direct.tools.iter().map(|tool| (direct.server.kind, tool.name()))).collect();
    assert!(tools.len() >= 60, "only {} different tools", tools.len());

    let Corpus { question: questions } = toml::from_str(CORPUS).unwrap();
    let asked_for: BTreeSet<_> = questions.iter().map(|question| (&question.kind, &question.tool)).collect();
    assert_eq!((questions.len(), asked_for.len()), (20, 20), "twenty questions about different tools");
    let (mut not_first, mut lost, mut wrong, mut called) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for Question { query, kind, tool, arguments } in &questions {
        assert!(tools.contains(&(kind.as_str(), tool.clone())), "no server has {kind}/{tool}");
        let hits = search(&mut gateway, query).await;
        assert!(hits.len() <= 8, "{query}: {} found", hits.len());
        let right = |direct: &Direct, found: &Found| {
            (direct.server.kind, direct.server.name) == (kind.as_str(), found.server.as_str())
                && flat(direct.server, tool) == found.name
        };
        let place = hits.iter().position(|found| directs.iter().any(|direct| right(direct, found)));
        let names: Vec<&str> = hits.iter().map(|found| found.name.as_str()).collect();
        match place {
            Some(0..3) => {}
            Some(place) => not_first.push(format!("{query}: {tool} is number {} of {names:?}", place + 1)),
            None => lost.push(format!("{query}: {tool} is none of {names:?}")),
        }
        if let (Some(place), Some(arguments)) = (place, arguments) {
            let found = &hits[place];
            let direct = directs.iter_mut().find(|direct| right(direct, found)).unwrap();
            wrong.extend(compare(direct, &mut gateway, found, tool, arguments).await);
            called += 1;
        }
    }
    println!("{} questions about {} tools: {} beyond the third place", questions.len(), tools.len(), not_first.len());
    for line in &not_first {
        println!("{line}");
    }
    assert!(lost.is_empty(), "not found:\n{}", lost.join("\n"));
    assert!(not_first.len() <= 2, "not among the first three:\n{}", not_first.join("\n"));
    assert!(called > 0, "nothing was called");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
