//! The keys of `[hooks]`: commands that are run around calls, in the form that users of agents know.

use schemars::JsonSchema;
use serde::Deserialize;

use super::policy_keys::is_policy_name;
use crate::model::hook::{HookEvent, HookFailureMeans};
use crate::model::text::shown;

/// The events, in the order in which they come in a call.
pub const EVENTS: [HookEvent; 3] = [HookEvent::PreToolUse, HookEvent::PermissionRequest, HookEvent::PostToolUse];
/// The longest matcher, in bytes.
const MAX_MATCHER: usize = 1024;
/// How large a compiled matcher may be, in bytes.
const MAX_COMPILED: usize = 1024 * 1024;
/// The most words of a command.
const MAX_WORDS: usize = 256;
/// The longest command, in bytes.
const MAX_COMMAND: usize = 32 * 1024;
/// The longest time that a hook may be given, in seconds.
const MAX_TIMEOUT: u32 = 3600;
/// What a shell would make something of, where it stands alone.
const OPERATORS: [&str; 11] = ["|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1", "<<"];

/// One entry of `[[hooks.PreToolUse]]`, `[[hooks.PermissionRequest]]` or `[[hooks.PostToolUse]]`: hooks for the same tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HookGroupTable {
    /// For which tools, by hook name (`mcp__SERVER__TOOL`). Absent, empty or `*`: all. Of ASCII letters, digits, `_` and `|` alone: these names. Else a regex that may match anywhere in the name.
    pub matcher: Option<String>,
    /// The hooks, at least one; all that match a call run side by side.
    #[serde(default)]
    pub hooks: Vec<HookTable>,
}

/// One hook: a command.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HookTable {
    /// `command`.
    #[serde(rename = "type")]
    pub kind: HookKind,
    /// The program and its arguments: a list of words, or a text that is split at spaces by the quoting rules of shells. No shell runs it. A program with a `/` is relative to the folder of this file, any other one is looked for on `PATH`.
    pub command: CommandLine,
    /// How long it may run, in seconds, 1 to 3,600. Default: 600.
    pub timeout: Option<u32>,
    /// The hook's name, unique in its layer: letters, digits, `_`, `-`, `.`; at most 64. Default: event, group and place in the group, such as `PreToolUse.1.2`.
    pub name: Option<String>,
    /// `PreToolUse` alone: what a failure of the hook means for the call: `block` (default) or `continue`.
    pub on_failure: Option<HookFailureMeans>,
}

/// What a hook is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HookKind {
    /// A command.
    Command,
}

/// A command as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "must be a text or a list of words")]
pub enum CommandLine {
    /// A text that is split into words.
    Text(String),
    /// The words.
    Words(Vec<String>),
}

impl CommandLine {
    /// Returns the program and its arguments; the program is never empty.
    ///
    /// # Errors
    /// What is wrong with the command.
    pub fn words(&self) -> Result<Vec<String>, String> {
        let words = match self {
            Self::Words(words) => words.clone(),
            Self::Text(text) if text.len() > MAX_COMMAND => return Err(format!("has more than {MAX_COMMAND} bytes")),
            Self::Text(text) => shlex::split(text).ok_or("has a quote or a `\\` that nothing closes")?,
        };
        let Some(program) = words.first().filter(|program| !program.is_empty()) else {
            return Err("names no program".to_owned());
        };
        if words.len() > MAX_WORDS || words.iter().map(String::len).sum::<usize>() > MAX_COMMAND {
            return Err(format!("has more than {MAX_WORDS} words or {MAX_COMMAND} bytes"));
        }
        if words.iter().any(|word| word.contains('\0')) {
            return Err("has a NUL character".to_owned());
        }
        // Handed over as words these would do nothing of what they are meant to; a list of words says that they are meant so.
        let sign = words.iter().find(|word| OPERATORS.contains(&word.as_str()));
        let sign = sign.or_else(|| Some(program).filter(|program| program.starts_with(['~', '$'])));
        match (self, sign) {
            (Self::Text(_), Some(sign)) => Err(format!(
                "has `{}`, and no shell reads it; name the shell yourself, as in [\"sh\", \"-c\", \"…\"]",
                shown(sign, 64)
            )),
            _ => Ok(words),
        }
    }
}

impl HookTable {
    /// Returns what is wrong with the values: key below the entry, and message.
    pub(crate) fn faults(&self, event: HookEvent) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        let mut fault = |key: &str, message: String| faults.push((key.to_owned(), message));
        if let Err(message) = self.command.words() {
            fault("command", message);
        }
        if self.timeout.is_some_and(|timeout| !(1..=MAX_TIMEOUT).contains(&timeout)) {
            fault("timeout", format!("must lie between 1 and {MAX_TIMEOUT} seconds"));
        }
        if let Some(name) = self.name.as_ref().filter(|name| !is_policy_name(name)) {
            fault("name", format!("`{}` must have 1 to 64 of a-z A-Z 0-9 _ - .", shown(name, 64)));
        }
        if self.on_failure.is_some() && event != HookEvent::PreToolUse {
            let message = "is for PreToolUse: a failure of any other hook blocks nothing and agrees to nothing";
            fault("on_failure", message.to_owned());
        }
        faults
    }
}

/// Which tools a hook is run for, by hook name.
#[derive(Debug, Clone)]
pub enum HookMatcher {
    /// All.
    Every,
    /// Those of exactly these names.
    Names(Vec<String>),
    /// Those in whose name the regex finds something. Linear in time, bounded when compiled.
    Regex(regex::Regex),
}

impl HookMatcher {
    /// Reads a matcher as it is written.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text == "*" {
            return Ok(Self::Every);
        }
        if text.len() > MAX_MATCHER {
            return Err(format!("has more than {MAX_MATCHER} bytes"));
        }
        if text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '|')) {
            return Ok(Self::Names(text.split('|').map(str::to_owned).collect()));
        }
        let regex = regex::RegexBuilder::new(text).size_limit(MAX_COMPILED).dfa_size_limit(MAX_COMPILED).build();
        regex.map(Self::Regex).map_err(|error| format!("is no regex: {}", shown(&error.to_string(), 200)))
    }

    /// Whether a tool of this hook name is meant.
    #[must_use]
    pub fn matches(&self, hook_name: &str) -> bool {
        match self {
            Self::Every => true,
            Self::Names(names) => names.iter().any(|name| name == hook_name),
            Self::Regex(regex) => regex.is_match(hook_name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Result<Vec<String>, String> {
        CommandLine::Text(text.to_owned()).words()
    }

    #[test]
    fn a_text_is_split_by_the_quoting_rules_of_shells_and_nothing_in_it_is_expanded() {
        assert_eq!(
            split("hooks/check --as 'a b' \"c d\" e\\ f").unwrap(),
            ["hooks/check", "--as", "a b", "c d", "e f"]
        );
        assert_eq!(split("check $HOME *.md `id`").unwrap(), ["check", "$HOME", "*.md", "`id`"]);
    }

    #[test]
    fn what_only_a_shell_would_understand_is_refused_in_a_text() {
        for text in ["check | tee log", "~/check", "$HOME/check", "a && b"] {
            assert!(split(text).unwrap_err().contains("no shell"), "{text}");
        }
        let words = CommandLine::Words(vec!["grep".to_owned(), "|".to_owned()]);
        assert_eq!(words.words().unwrap(), ["grep", "|"]);
    }

    #[test]
    fn a_command_has_a_program_and_ends_its_quotes() {
        assert!(split("check 'a").unwrap_err().contains("nothing closes"));
        for text in ["", "  ", "''"] {
            assert_eq!(split(text).unwrap_err(), "names no program", "{text:?}");
        }
        assert!(CommandLine::Words(vec![]).words().is_err());
    }

    #[test]
    fn a_matcher_is_everything_exact_names_or_a_regex_that_is_not_anchored() {
        let matches = |text: &str, name: &str| HookMatcher::parse(text).unwrap().matches(name);
        assert!(matches("", "mcp__a__b") && matches("*", "mcp__a__b"));
        assert!(matches("mcp__a__b|mcp__c__d", "mcp__c__d"));
        assert!(!matches("mcp__a__b", "mcp__a__bc"));
        assert!(matches("mcp__a-b__c", "mcp__a-b__cd"), "not of letters, digits, `_` and `|` alone: a regex");
        assert!(matches("__(read|write)$", "mcp__files__write"));
        assert!(!matches("^files", "mcp__files__write"));
    }

    #[test]
    fn a_matcher_that_is_too_large_or_none_is_refused() {
        assert!(HookMatcher::parse("mcp__(").unwrap_err().contains("is no regex"));
        assert!(HookMatcher::parse(r"(\w{1000}){1000}").is_err());
        assert!(HookMatcher::parse(&"a".repeat(MAX_MATCHER + 1)).is_err());
    }
}
