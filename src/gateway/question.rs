//! A question as people read it, in a terminal and in a client's form, and the words that they answer with.
//!
//! Rules: everything that a server or a component wrote is bounded, with control characters visible; a text that was cut
//! says so (R22); what is not one of the offered words chooses nothing (R20).

use std::fmt::Write as _;

use crate::model::text::shown;
use crate::model::verdict::{MAX_REASON, Remember, StandingAsk};
use crate::pipeline::consent::ask::SHOWN_ASKS;
use crate::ports::approval::Kind;
use crate::ports::reviewer::{AskedFile, Question};

/// The most characters of a name that are shown.
const SHOWN_NAME: usize = 128;

/// What a person can choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The call may run, and this is how long that is remembered.
    Allow(Remember),
    /// The call is refused.
    Decline,
}

impl Choice {
    /// Returns the choices that a question offers, the narrowest first, refusing last.
    #[must_use]
    pub fn offered(question: &Question) -> Vec<Self> {
        question.options.iter().map(|option| Self::Allow(*option)).chain([Self::Decline]).collect()
    }

    /// Returns the choice that a word stands for, if the question offers it.
    #[must_use]
    pub fn parse(question: &Question, word: &str) -> Option<Self> {
        Self::offered(question).into_iter().find(|choice| choice.word() == word)
    }

    /// Returns the word that stands for this choice.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Allow(Remember::Never) => "allow",
            Self::Allow(Remember::Session) => "allow-for-session",
            Self::Allow(Remember::Always) => "always-allow",
            Self::Decline => "decline",
        }
    }

    /// Returns what choosing this means, and what is remembered.
    #[must_use]
    pub fn meaning(self, question: &Question) -> String {
        let bound = question.asks.iter().any(|ask| ask.ask.bind_arguments);
        let what = if bound { "calls of this tool with exactly these arguments" } else { "calls of this tool" };
        match self {
            Self::Allow(Remember::Never) if question.kind == Kind::Reply => "send this answer".to_owned(),
            Self::Decline if question.kind == Kind::Reply => "send no answer".to_owned(),
            Self::Allow(Remember::Never) => "run this call; nothing is remembered".to_owned(),
            Self::Allow(Remember::Session) => {
                format!("run this call, and do not ask again about {what} in this session")
            }
            Self::Allow(Remember::Always) => {
                format!(
                    "run this call, and do not ask again about {what} until the tool, its server or who asks changes"
                )
            }
            Self::Decline => "refuse this call".to_owned(),
        }
    }
}

/// The longest denial that is shown, in characters.
const MAX_DENIAL: usize = 2500;

/// Returns the whole question as text: the call, its arguments, who asks and why, and what each choice remembers.
///
/// Several lines; at most about 20,000 characters, and 35,000 more where a definition changed. Ends without a line feed.
#[must_use]
pub fn question_text(question: &Question) -> String {
    let tool = shown(question.tool.tool.as_str(), SHOWN_NAME);
    let mut out = match question.kind {
        Kind::Reply => {
            format!("Send this answer to the server `{}`, which asked during `{tool}`?\n", question.tool.server)
        }
        _ => format!("Allow the tool call `{tool}` on the server `{}`?\n", question.tool.server),
    };
    if let Some(title) = &question.title {
        line(&mut out, &format!("Title: {}", shown(title, SHOWN_NAME)));
    }
    let what = if question.kind == Kind::Reply { "Answer" } else { "Arguments" };
    line(&mut out, &format!("{what}: {}", question.arguments));
    for file in &question.files {
        let AskedFile { argument, path, length, sha256 } = file;
        line(&mut out, &format!("Uploads for {argument}: {path} ({length} bytes, SHA-256 {sha256})"));
    }
    if !question.changes.is_empty() {
        line(&mut out, "Changed since it was accepted; agreeing accepts what is shown here whole:");
    }
    for change in &*question.changes {
        line(&mut out, change);
    }
    if question.cut {
        line(&mut out, "There is more than this: the arguments or the files were cut, so nothing can be remembered.");
    }
    if let Some(denial) = &question.denial {
        line(&mut out, &format!("The automatic reviewer denied it: {}", shown(denial, MAX_DENIAL)));
    }
    line(&mut out, "Asked by:");
    for ask in question.asks.iter().take(SHOWN_ASKS) {
        line(&mut out, &format!("- {}", asker(ask)));
    }
    if let Some(more) = question.asks.len().checked_sub(SHOWN_ASKS).filter(|more| *more > 0) {
        line(&mut out, &format!("- and {more} more"));
    }
    for wanted in &question.roles {
        line(&mut out, &format!("Allowed only by: {} (the {} layer)", wanted.words(), wanted.layer));
    }
    line(&mut out, "Choices:");
    for choice in Choice::offered(question) {
        line(&mut out, &format!("- {}: {}", choice.word(), choice.meaning(question)));
    }
    out.truncate(out.trim_end().len());
    out
}

fn line(out: &mut String, text: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{text}");
}

fn asker(ask: &StandingAsk) -> String {
    let source = &ask.key.source;
    let mut out = format!("{}/{}", source.layer, shown(&source.component, SHOWN_NAME));
    if let Some(rule) = &ask.key.rule {
        let _ = write!(out, ", rule {rule}");
    }
    if !ask.ask.reason.text.is_empty() {
        let _ = write!(out, ": {}", shown(&ask.ask.reason.text, MAX_REASON));
    }
    if let Some(fault) = &ask.fault {
        let _ = write!(out, " (the component failed: {})", shown(&fault.to_string(), MAX_REASON));
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::layer::{LayerKind, LayerRef};
    use crate::model::name::{CallId, ToolRef};
    use crate::model::verdict::{Ask, AskKey, Fault, FaultCode, Reason, Reviewers, RuleId, Source};

    pub(in crate::gateway) fn question(options: &[Remember]) -> Question {
        let source = Source { layer: LayerRef::new(LayerKind::Managed), component: "guard".into(), digest: None };
        let reason = Reason { rule: RuleId::parse("writes"), text: "it writes".to_owned() };
        let ask = StandingAsk {
            key: AskKey { source, rule: reason.rule.clone() },
            ask: Ask { reason, remember: Remember::Always, bind_arguments: true, reviewers: Reviewers::PERSON },
            fault: None,
            strict: false,
        };
        Question {
            id: "ask_1".to_owned(),
            call: CallId::fresh(),
            kind: Kind::Tool,
            tool: ToolRef::parse("files/write\u{1b}[2J").unwrap(),
            title: Some("Write a file".to_owned()),
            description: None,
            connector: None,
            arguments: r#"{"path":"a"}"#.to_owned(),
            files: Vec::new(),
            changes: [].into(),
            agreement: crate::ports::reviewer::Agreement::to_nothing(&ToolRef::parse("files/write").unwrap()),
            denial: None,
            cut: false,
            asks: vec![ask],
            reviewers: Reviewers::PERSON,
            options: options.to_vec(),
            channels: crate::model::posture::Channel::ALL.into(),
            roles: Vec::new(),
            deadline: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_question_says_who_asks_why_and_what_each_choice_remembers() {
        let text = question_text(&question(&[Remember::Never, Remember::Session]));
        assert_eq!(
            text,
            "Allow the tool call `write\\u{1b}[2J` on the server `files`?\n\
             Title: Write a file\n\
             Arguments: {\"path\":\"a\"}\n\
             Asked by:\n\
             - managed/guard, rule writes: it writes\n\
             Choices:\n\
             - allow: run this call; nothing is remembered\n\
             - allow-for-session: run this call, and do not ask again about calls of this tool with exactly these \
             arguments in this session\n\
             - decline: refuse this call"
        );
    }

    #[test]
    fn r20_a_word_that_is_not_offered_chooses_nothing() {
        let question = question(&[Remember::Never]);
        assert_eq!(Choice::parse(&question, "allow"), Some(Choice::Allow(Remember::Never)));
        assert_eq!(Choice::parse(&question, "decline"), Some(Choice::Decline));
        for word in ["always-allow", "allow-for-session", "Allow", "", "yes"] {
            assert_eq!(Choice::parse(&question, word), None, "{word:?} chose something");
        }
    }

    #[test]
    fn r22_a_question_that_was_cut_says_so() {
        let mut question = question(&[Remember::Never]);
        question.cut = true;
        assert!(question_text(&question).contains("were cut, so nothing can be remembered"));
    }

    #[test]
    fn r20_a_question_says_which_roles_may_allow() {
        let mut question = question(&[Remember::Never]);
        let roles = crate::model::role::Role::of_groups(["ops", "security"]);
        question.roles =
            vec![crate::model::role::LayerRoles { layer: question.asks[0].key.source.layer.clone(), roles }];
        assert!(question_text(&question).contains("\nAllowed only by: `ops` or `security` (the managed layer)\n"));
    }

    #[test]
    fn r27_a_file_that_would_be_uploaded_is_shown_with_its_size_and_digest() {
        let mut question = question(&[Remember::Never]);
        let sha256 = crate::model::digest::Digest::of(b"x");
        let (argument, path) = ("file".to_owned(), "a.csv".to_owned());
        question.files = vec![AskedFile { argument, path, length: 1, sha256 }];
        let wanted = format!("\nUploads for file: a.csv (1 bytes, SHA-256 {sha256})\n");
        assert!(question_text(&question).contains(&wanted));
    }

    #[test]
    fn a_failure_behind_an_ask_is_shown() {
        let mut question = question(&[Remember::Never]);
        question.asks[0].fault = Some(Fault::new(FaultCode::Fuel, "all fuel used"));
        assert!(question_text(&question).contains("(the component failed: fuel: all fuel used)"));
    }
}
