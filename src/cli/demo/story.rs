//! The demo's story: each call, and what must come of it.

use portcullis::gateway::question::Choice;
use portcullis::model::verdict::Remember;

/// One call of the story.
pub(crate) struct Scene {
    /// What it shows.
    pub title: &'static str,
    /// The tool.
    pub tool: &'static str,
    /// The arguments.
    pub arguments: &'static str,
    /// What happens before the call.
    pub before: Before,
    /// What the person answers, if one is asked. None: nobody must be asked.
    pub answer: Option<Choice>,
    /// How the call must end.
    pub outcome: &'static str,
    /// Who must have decided, as layer/component and rule.
    pub by: Option<&'static str>,
    /// What the answer must contain.
    pub says: &'static str,
}

/// What happens before a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nothing.
    Nothing,
    /// The file store gives `write_file` another definition after it was listed.
    WriteFileChanges,
}

const ONCE: Option<Choice> = Some(Choice::Allow(Remember::Never));
const SESSION: Option<Choice> = Some(Choice::Allow(Remember::Session));
const NO: Option<Choice> = Some(Choice::Decline);

const fn scene(title: &'static str, tool: &'static str, arguments: &'static str) -> Scene {
    Scene { title, tool, arguments, before: Before::Nothing, answer: None, outcome: "answered", by: None, says: "" }
}

/// The story, in order: later calls build on earlier answers.
pub(crate) const STORY: [Scene; 13] = [
    Scene {
        by: Some("builtin/approval-baseline read-only-hint"),
        says: "notes.txt, plan.txt",
        ..scene("A tool that says it only reads runs without asking.", "files/list_files", "{}")
    },
    Scene {
        by: Some("organisation/office file-store-is-open"),
        says: "Water the plants",
        ..scene(
            "This one says nothing about itself, so the baseline would ask. The organisation's allow lifts that.",
            "files/read_file",
            r#"{"path":"notes.txt"}"#,
        )
    },
    Scene {
        answer: ONCE,
        by: Some("builtin/approval-baseline may-destroy-or-reach-out"),
        says: "wrote 5 bytes",
        ..scene(
            "Writing must be agreed to. The demo's person agrees, once.",
            "files/write_file",
            r#"{"path":"todo.txt","text":"plant"}"#,
        )
    },
    Scene {
        answer: SESSION,
        by: Some("organisation/office mail-needs-consent"),
        says: "sent to ada@example.org",
        ..scene(
            "Mail needs consent. The person agrees for the whole session.",
            "mail/send_mail",
            r#"{"to":"ada@example.org","subject":"Friday"}"#,
        )
    },
    Scene {
        by: Some("organisation/office mail-needs-consent"),
        says: "sent to bob@example.org",
        ..scene(
            "The agreement is remembered: nobody is asked again.",
            "mail/send_mail",
            r#"{"to":"bob@example.org","subject":"Friday"}"#,
        )
    },
    Scene {
        outcome: "denied",
        by: Some("managed/house-rules mail-stays-inside"),
        says: "refused by policy",
        ..scene(
            "No agreement beats the managed layer: mail stays inside.",
            "mail/send_mail",
            r#"{"to":"eve@example.com","subject":"Plans"}"#,
        )
    },
    Scene {
        outcome: "denied",
        by: Some("managed/house-rules root-key-is-sealed"),
        says: "refused by policy",
        ..scene("Nobody reads the root key.", "vault/read_secret", r#"{"name":"root-key"}"#)
    },
    Scene {
        answer: NO,
        outcome: "declined",
        by: Some("builtin/approval-baseline may-destroy-or-reach-out"),
        says: "it was not approved",
        ..scene(
            "Other secrets are asked about. The person says no, and nothing is sent.",
            "vault/read_secret",
            r#"{"name":"wifi"}"#,
        )
    },
    Scene {
        outcome: "component-failed",
        by: Some("organisation/broken"),
        says: "a policy component failed",
        ..scene(
            "The policy for this tool never ends. The sandbox stops it, and a broken guard is no open door.",
            "files/delete_file",
            r#"{"path":"notes.txt"}"#,
        )
    },
    Scene {
        before: Before::WriteFileChanges,
        outcome: "stale",
        says: "the catalog changed",
        ..scene(
            "The server changes a tool after it was listed. What was seen is what is called, or nothing is.",
            "files/write_file",
            r#"{"path":"todo.txt","text":"plant"}"#,
        )
    },
    Scene {
        outcome: "not-available",
        says: "is not available",
        ..scene("This tool's server is down. The others do not mind.", "calendar/list_events", "{}")
    },
    Scene {
        outcome: "invalid-arguments",
        says: "not usable JSON",
        ..scene(
            "Arguments must be strict JSON: a key given twice could mean two things.",
            "files/read_file",
            r#"{"path":"notes.txt","path":"plan.txt"}"#,
        )
    },
    Scene {
        outcome: "tool-error",
        by: Some("organisation/office file-store-is-open"),
        ..scene(
            "Policy lets this through; the file store itself refuses to leave its folder.",
            "files/read_file",
            r#"{"path":"../secrets.txt"}"#,
        )
    },
];
