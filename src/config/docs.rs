//! The reference of all keys, generated from the types: `docs/configuration.md`.

use std::fmt::Write as _;

use serde_json::Value;

use super::file::{NOT_ENFORCED, Settings};
use super::hook_keys::HookGroupTable;
use super::plugins::PluginTable;
use super::policy_keys::PolicyTable;
use super::server_keys::ServerTable;
use super::unknown::{schema_of, without_null};

const INTRODUCTION: &str = "\
# Configuration

This page is generated from the types; `BLESS=1 cargo test --test it configuration` writes it anew.

Layers are TOML files. From the weakest to the strongest for ordinary values:

| layer | where |
|---|---|
| builtin | compiled in |
| system | `/etc/portcullis/config.toml` |
| organisation | `/etc/portcullis/organisation.toml` |
| user | `$XDG_CONFIG_HOME/portcullis/config.toml`, else `~/.config/portcullis/config.toml` |
| project | `.portcullis/config.toml` from the repository's root down to the working directory; each needs `portcullis trust` |
| session | `--config FILE`, `-c key=value` |
| managed | `/etc/portcullis/managed.toml`; `--managed FILE` adds restrictions to it |

Trust runs otherwise: managed, system, organisation, user, session, project. What restricts is never replaced: a less trusted
layer may only tighten. Files must be owned by root or by you, and be writable by nobody else. An unknown key outside an
entry makes its layer unreadable; a layer that is there and cannot be read refuses every call, unless a project wrote it. A
mistake inside one server, policy or hook disables that server, makes that policy deny what it matches, or makes that hook one that
failed.

`${NAME}` in `args`, `env`, `url` and `http_headers` stands for an environment variable and is resolved when the server
starts; `$${` stands for `${` itself. A project's servers may name only what `portcullis trust` granted.
";

const LOCK: &str = "
## `policies.lock`

`portcullis policy lock` writes it beside layer files: one for all layer files of a folder, with an entry for each of their
policies. It is made, never edited.

| key of `[[policy]]` | meaning |
|---|---|
| `layer`, `name` | The layer file's name in the folder, and the policy's name in it. |
| `component`, `sha256`, `size` | The component's file as the layer names it, its SHA-256 and its bytes. |
| `signer` | The id of the key that signed it, if the requirements list that key. |
| `data` | The digest of its data folder, all paths and bytes. |

Where there is a lock, it counts for every layer file beside it. A policy whose `component`, `sha256` or `data` is not what the lock
records, or that is not in it, refuses what it matches; the other policies take their course. A lock that cannot be read, has a
newer version, holds an entry twice or may be written by others makes every policy beside it refuse. An entry without a policy is
a warning. No lock is no demand: `sha256` in the layer file binds without one.

A layer is locked whole or stays as it was. `--check` writes nothing and exits 3 at any disagreement, of `size` and `signer` too.
In a project, lock first and trust then: `portcullis trust` binds the lock.
";

/// Returns the reference as Markdown.
#[must_use]
pub fn reference_markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    section(&mut page, "Settings", &schema_of::<Settings>());
    section(&mut page, "`[mcp_servers.NAME]`", &schema_of::<ServerTable>());
    section(&mut page, "`[plugins.ID]`", &schema_of::<PluginTable>());
    section(&mut page, "`[[policies]]`", &schema_of::<PolicyTable>());
    let hooks = "`[[hooks.PreToolUse]]`, `[[hooks.PermissionRequest]]`, `[[hooks.PostToolUse]]`";
    section(&mut page, hooks, &schema_of::<HookGroupTable>());
    page.push_str("\n[hooks.md](hooks.md) says what hooks are told and what they may print.\n");
    page.push_str(LOCK);
    let sections: Vec<_> = NOT_ENFORCED.iter().map(|name| format!("`[{name}]`")).collect();
    page.push_str("\n## Not in this version\n\n");
    let _ = writeln!(page, "Refused, because nothing enforces it yet: {}.", sections.join(", "));
    page
}

fn section(page: &mut String, title: &str, schema: &Value) {
    let _ = write!(page, "\n## {title}\n\n");
    if let Some(text) = schema.get("description").and_then(Value::as_str) {
        let _ = write!(page, "{}\n\n", text.replace('\n', " ").replace("  ", " "));
    }
    page.push_str("| key | type | meaning |\n|---|---|---|\n");
    rows(page, "", schema);
}

fn rows(page: &mut String, path: &str, schema: &Value) {
    let required = schema.get("required").and_then(Value::as_array);
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let key = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let below = without_null(property);
        let needed = required.is_some_and(|names| names.iter().any(|n| n.as_str() == Some(name)));
        let text = property.get("description").or_else(|| below.get("description")).and_then(Value::as_str);
        let text = text.unwrap_or_default().replace('\n', " ").replace('|', "\\|");
        let needed = if needed { " (required)" } else { "" };
        let _ = writeln!(page, "| `{key}` | {}{needed} | {text} |", type_name(below).replace('|', "\\|"));
        if below.get("properties").is_some() {
            rows(page, &key, below);
        }
        if let Some(value) = below.get("additionalProperties").map(without_null)
            && value.get("properties").is_some()
        {
            rows(page, &format!("{key}.NAME"), value);
        }
        if let Some(item) = below.get("items").map(without_null)
            && item.get("properties").is_some()
        {
            rows(page, &format!("{key}[]"), item);
        }
    }
}

fn type_name(schema: &Value) -> String {
    if let Some(words) = words(schema) {
        return words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" \\| ").replace("\\|", "or");
    }
    if let Some(forms) = schema.get("anyOf").and_then(Value::as_array) {
        return forms.iter().map(type_name).collect::<Vec<_>>().join(" or ");
    }
    let kinds = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind.as_str()],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect(),
        _ => return "text or table".to_owned(),
    };
    match kinds.first().copied() {
        Some("string") => "text".to_owned(),
        Some("array") => format!("list of {}", schema.get("items").map_or_else(|| "values".to_owned(), type_name)),
        Some("object") => "table".to_owned(),
        Some(other) => other.to_owned(),
        None => "value".to_owned(),
    }
}

/// The words of an enum, in whichever of its forms the schema has it.
fn words(schema: &Value) -> Option<Vec<&str>> {
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        return Some(words.iter().filter_map(Value::as_str).collect());
    }
    let variants = schema.get("oneOf").and_then(Value::as_array)?;
    let mut found = Vec::new();
    for variant in variants {
        match (variant.get("const").and_then(Value::as_str), variant.get("enum").and_then(Value::as_array)) {
            (Some(word), _) => found.push(word),
            (None, Some(words)) => found.extend(words.iter().filter_map(Value::as_str)),
            (None, None) => return None,
        }
    }
    Some(found)
}
