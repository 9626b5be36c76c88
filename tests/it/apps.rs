//! The built-in connector policy, through the real component: rows A01 to A30 of approval-results 2.3, with our deviations.
//!
//! A mode that no row's settings write is none here: `auto` is what the host takes where every layer is silent.

use std::sync::Arc;

use portcullis::model::caller::Caller;
use portcullis::model::digest::Digest;
use portcullis::model::name::ToolRef;
use portcullis::model::posture::ApprovalMode::{self, Approve, Prompt, Writes};
use portcullis::model::tool::{Connector, Hints, ServerIdentity};
use portcullis::ports::connector::{AppToolFacts, ConnectorAnswer, ConnectorComponent as _};
use serde_json::{Value, json};

use crate::support::policy::load_connector;

/// One row: the settings, the tool, and what is answered.
struct Row {
    id: &'static str,
    apps: Value,
    managed: Value,
    tool: Tool,
    enabled: bool,
    mode: Option<ApprovalMode>,
}

/// A tool of the connector `calendar`, `events` unless said.
#[derive(Clone, Copy)]
struct Tool {
    connector: bool,
    name: &'static str,
    title: Option<&'static str>,
    destructive: Option<bool>,
    open_world: Option<bool>,
}

const ANY: Tool = Tool { connector: true, name: "events", title: None, destructive: None, open_world: None };
const BY_TITLE: Tool = Tool { name: "calendar_events/create", title: Some("events/create"), ..ANY };

fn hinted(destructive: Option<bool>, open_world: Option<bool>) -> Tool {
    Tool { destructive, open_world, ..ANY }
}

fn rows() -> Vec<Row> {
    let (yes, no) = (Some(true), Some(false));
    let row = |id, apps, managed, tool, enabled, mode| Row { id, apps, managed, tool, enabled, mode };
    let none = || json!({});
    let calendar = |table: Value| json!({ "calendar": table });
    let default = |table: Value| json!({ "_default": table });
    let tool = |name: &str, table: Value| json!({ "tools": { name: table } });
    let bare = Tool { connector: false, ..ANY };
    vec![
        row("A01", none(), none(), ANY, true, None),
        row("A02", none(), calendar(tool("events", json!({ "approval_mode": "approve" }))), ANY, true, Some(Approve)),
        row("A03", none(), calendar(json!({ "enabled": false })), ANY, false, None),
        row("A04", calendar(json!({ "enabled": true })), calendar(json!({ "enabled": false })), ANY, false, None),
        row("A05", calendar(json!({ "enabled": false })), calendar(json!({ "enabled": true })), ANY, false, None),
        row("A06", default(json!({ "enabled": false })), none(), ANY, false, None),
        row(
            "A07",
            json!({ "_default": { "enabled": false }, "calendar": { "enabled": true } }),
            none(),
            ANY,
            true,
            None,
        ),
        // Ours: what is switched off stays off unless `enabled = true` is written. The reference enables it.
        row(
            "A08",
            json!({ "_default": { "enabled": false }, "calendar": { "default_tools_approval_mode": "prompt" } }),
            none(),
            ANY,
            false,
            Some(Prompt),
        ),
        row("A09", default(json!({ "destructive_enabled": false })), none(), hinted(yes, None), false, None),
        row("A10", default(json!({ "destructive_enabled": false })), none(), hinted(None, no), false, None),
        row("A11", default(json!({ "destructive_enabled": false })), none(), hinted(no, None), true, None),
        row("A12", default(json!({ "open_world_enabled": false })), none(), hinted(no, None), false, None),
        row("A13", default(json!({ "open_world_enabled": false })), none(), hinted(None, no), true, None),
        row(
            "A14",
            json!({ "_default": { "destructive_enabled": false }, "calendar": { "destructive_enabled": true } }),
            none(),
            hinted(yes, None),
            true,
            None,
        ),
        row(
            "A15",
            calendar(json!({ "destructive_enabled": false, "open_world_enabled": false,
                "tools": { "events": { "enabled": true } } })),
            none(),
            hinted(yes, yes),
            true,
            None,
        ),
        row(
            "A16",
            calendar(
                json!({ "destructive_enabled": false, "open_world_enabled": false, "default_tools_enabled": true }),
            ),
            none(),
            hinted(yes, yes),
            true,
            None,
        ),
        row(
            "A17",
            calendar(json!({ "destructive_enabled": true, "open_world_enabled": true,
                "default_tools_enabled": false, "default_tools_approval_mode": "approve" })),
            none(),
            ANY,
            false,
            Some(Approve),
        ),
        row(
            "A18",
            calendar(json!({ "default_tools_enabled": false,
                "tools": { "events": { "enabled": true, "approval_mode": "prompt" } } })),
            none(),
            ANY,
            true,
            Some(Prompt),
        ),
        row(
            "A19",
            calendar(tool("events/create", json!({ "approval_mode": "approve" }))),
            none(),
            BY_TITLE,
            true,
            Some(Approve),
        ),
        row(
            "A20",
            none(),
            calendar(tool("events/create", json!({ "approval_mode": "approve" }))),
            BY_TITLE,
            true,
            None,
        ),
        row(
            "A21",
            calendar(tool("events", json!({ "approval_mode": "prompt" }))),
            calendar(tool("events", json!({ "approval_mode": "approve" }))),
            ANY,
            true,
            Some(Approve),
        ),
        row("A22", default(json!({ "default_tools_approval_mode": "prompt" })), none(), ANY, true, Some(Prompt)),
        row("A23", default(json!({ "default_tools_approval_mode": "prompt" })), none(), bare, true, None),
        row(
            "A24",
            json!({ "_default": { "default_tools_approval_mode": "approve" },
                "calendar": { "default_tools_approval_mode": "prompt" } }),
            none(),
            ANY,
            true,
            Some(Prompt),
        ),
        row(
            "A25",
            calendar(json!({ "default_tools_approval_mode": "approve",
                "tools": { "events": { "approval_mode": "writes" } } })),
            none(),
            ANY,
            true,
            Some(Writes),
        ),
        row(
            "A26",
            calendar(json!({ "default_tools_approval_mode": "prompt",
                "tools": { "calendar_events/create": {}, "events/create": { "approval_mode": "approve" } } })),
            none(),
            BY_TITLE,
            true,
            Some(Prompt),
        ),
        row(
            "A27",
            calendar(json!({ "enabled": false, "tools": { "events": { "enabled": true } } })),
            none(),
            ANY,
            false,
            None,
        ),
        row("A28", default(json!({ "enabled": false })), none(), bare, false, None),
        row(
            "A29",
            calendar(tool("events", json!({ "enabled": false, "approval_mode": "approve" }))),
            none(),
            ANY,
            false,
            Some(Approve),
        ),
        // Ours: what cannot be read disables. The reference takes it for no configuration at all.
        row("A30", json!("rubbish"), none(), ANY, false, None),
    ]
}

fn facts(tool: Tool) -> Arc<AppToolFacts> {
    let connector = Connector { id: "calendar".to_owned(), name: None, account: None, description: None };
    Arc::new(AppToolFacts {
        connector: tool.connector.then_some(connector),
        tool: ToolRef::parse(&format!("apps/{}", tool.name)).unwrap(),
        identity: ServerIdentity(Digest::of(b"apps")),
        title: tool.title.map(str::to_owned),
        hints: Hints { destructive: tool.destructive, open_world: tool.open_world, ..Hints::default() },
        caller: Caller::local("tester"),
        now_ms: 0,
    })
}

async fn answer(settings: Value, tool: Tool) -> ConnectorAnswer {
    load_connector(settings).evaluate(facts(tool)).await.result.unwrap()
}

#[tokio::test]
async fn a01_to_a30_through_the_real_component() {
    for Row { id, apps, managed, tool, enabled, mode } in rows() {
        let said = answer(json!({ "apps": apps, "managed": managed }), tool).await;
        assert_eq!((said.enabled, said.mode), (Some(enabled), mode), "{id}: {said:?}");
        assert!(said.rule.is_some(), "{id} names no rule");
    }
}

#[tokio::test]
async fn r33_the_real_component_reads_no_clock_so_that_its_answers_may_be_kept() {
    let said = load_connector(json!({})).evaluate(facts(ANY)).await;
    assert!(said.result.is_ok() && said.usage.timeless, "{:?}", said.usage);
}

#[tokio::test]
async fn without_settings_an_app_is_enabled_and_no_mode_is_contributed() {
    let said = answer(Value::Null, ANY).await;
    assert_eq!((said.enabled, said.mode), (Some(true), None));
}
