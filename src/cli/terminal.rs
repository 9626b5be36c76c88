//! Asking the person at the terminal.
//!
//! The controlling terminal is asked, not stdin: a pipe cannot answer for a person. Without one, a terminal on stdin serves;
//! without that, nobody can be asked, and what needs an answer is refused. Only a line that is one of the offered answers
//! chooses anything (R20). Nothing that a server wrote reaches the terminal with control characters in it.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Read, Write as _};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use portcullis::gateway::question::{Choice, question_text};
use portcullis::host::user::local_roles;
use portcullis::model::posture::Channel;
use portcullis::model::role::Role;
use portcullis::model::verdict::Remember;
use portcullis::ports::reviewer::{NobodyThere, Question, Reply, Reviewer, Roles};

/// How many lines that choose nothing are taken before the question counts as declined.
const TRIES: usize = 3;
/// The longest line that is read, in bytes.
const MAX_LINE: u64 = 1024;

/// A terminal that a person sits at.
pub(crate) struct Terminal {
    read: BufReader<Box<dyn Read + Send>>,
    write: File,
}

impl Terminal {
    /// Opens the controlling terminal. `None`: this process has none.
    pub(crate) fn controlling() -> Option<Self> {
        let write = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        let read = write.try_clone().ok()?;
        Some(Self { read: BufReader::new(Box::new(read)), write })
    }

    /// Opens the controlling terminal, or takes stdin if that is one.
    pub(crate) fn any() -> Option<Self> {
        Self::controlling().or_else(|| {
            let stdin = io::stdin();
            let write = rustix::io::dup(&stdin).ok().filter(|_| stdin.is_terminal())?;
            Some(Self { read: BufReader::new(Box::new(stdin)), write: File::from(write) })
        })
    }

    /// A terminal for tests.
    #[cfg(test)]
    pub(crate) fn over(read: impl Read + Send + 'static, write: File) -> Self {
        Self { read: BufReader::new(Box::new(read)), write }
    }

    /// Prints text as it is.
    pub(crate) fn say(&mut self, text: &str) -> io::Result<()> {
        self.write.write_all(text.as_bytes())?;
        self.write.flush()
    }

    /// Reads a line without its end. `None` at the end of the input.
    pub(crate) fn line(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        let length = self.read.by_ref().take(MAX_LINE).read_line(&mut line)?;
        Ok((length > 0).then(|| line.trim().to_owned()))
    }

    /// Shows the text and a fresh code, and takes the code only. `what` says what the code does ("trust this").
    pub(crate) fn confirms(&mut self, text: &str, what: &str) -> io::Result<bool> {
        let code = code();
        self.say(&format!("{text}\nType {code} to {what}, anything else to leave it: "))?;
        Ok(self.line()?.is_some_and(|line| line == code))
    }

    fn ask(&mut self, question: &Question, roles: &BTreeSet<Role>) -> io::Result<Reply> {
        let offered = Choice::offered(question);
        let letters: Vec<String> =
            offered.iter().map(|choice| format!("{} = {}", letter(*choice), choice.word())).collect();
        self.say(&format!("\n{}\n", question_text(question)))?;
        // What was typed before the question was seen is no answer to it. Fails where there is no terminal, as in tests.
        let _ = rustix::termios::tcflush(&self.write, rustix::termios::QueueSelector::IFlush);
        for _ in 0..TRIES {
            self.say(&format!("[{}] > ", letters.join(", ")))?;
            let Some(line) = self.line()? else { return Ok(Reply::Cancelled) };
            let chosen = offered.iter().find(|choice| line == letter(**choice) || line == choice.word());
            match chosen {
                Some(Choice::Allow(remember)) => {
                    return Ok(Reply::Allowed {
                        remember: *remember,
                        approver: question.named("terminal", roles),
                        channel: Channel::Terminal,
                        roles: Roles::Of(roles.clone()),
                    });
                }
                Some(Choice::Decline) => return Ok(Reply::Declined),
                None => self.say("That is none of the answers.\n")?,
            }
        }
        Ok(Reply::Declined)
    }
}

/// Six digits that nobody can know before they are shown.
fn code() -> String {
    let random = uuid::Uuid::new_v4().as_u128();
    format!("{:06}", random % 1_000_000)
}

fn letter(choice: Choice) -> &'static str {
    match choice {
        Choice::Allow(Remember::Never) => "a",
        Choice::Allow(Remember::Session) => "s",
        Choice::Allow(Remember::Always) => "w",
        Choice::Decline => "d",
    }
}

/// Asks at the terminal, one question at a time. Whoever sits there has the roles of the system's user.
pub(crate) struct TerminalReviewer {
    terminal: Arc<Mutex<Terminal>>,
    roles: BTreeSet<Role>,
}

#[async_trait]
impl Reviewer for TerminalReviewer {
    async fn ask(&self, question: &Question) -> Reply {
        if !question.may_be_answered_by(Channel::Terminal) || question.wants_other_than(&self.roles).is_some() {
            return Reply::Nobody;
        }
        let (terminal, question, roles) = (Arc::clone(&self.terminal), question.clone(), self.roles.clone());
        // A thread that waits for a key cannot be interrupted; it ends with the process.
        let asked = tokio::task::spawn_blocking(move || terminal.lock().ask(&question, &roles)).await;
        match asked {
            Ok(Ok(reply)) => reply,
            // A terminal that cannot be read or written has nobody behind it.
            Ok(Err(_)) | Err(_) => Reply::Nobody,
        }
    }
}

/// Whoever can be asked by this process.
pub(crate) fn reviewer() -> Arc<dyn Reviewer> {
    match Terminal::any() {
        Some(terminal) => Arc::new(TerminalReviewer { terminal: Arc::new(Mutex::new(terminal)), roles: local_roles() }),
        None => Arc::new(NobodyThere),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portcullis::model::caller::Caller;
    use portcullis::model::digest::Digest;
    use portcullis::model::layer::{LayerKind, LayerRef};
    use portcullis::model::name::{CallId, ToolRef};
    use portcullis::model::tool::ServerIdentity;
    use portcullis::model::verdict::{Ask, AskKey, Reason, Reviewers, Source, StandingAsk};
    use portcullis::ports::approval::Kind;
    use portcullis::ports::grants::GrantSubject;
    use portcullis::ports::reviewer::Agreement;

    use super::*;

    fn question() -> Question {
        let source = Source { layer: LayerRef::new(LayerKind::Managed), component: "guard".into(), digest: None };
        let reason = Reason { rule: None, text: "it writes\u{1b}[2J".to_owned() };
        let ask = Ask { reason, remember: Remember::Session, bind_arguments: false, reviewers: Reviewers::PERSON };
        Question {
            id: "ask_1".to_owned(),
            call: CallId::fresh(),
            kind: Kind::Tool,
            tool: ToolRef::parse("files/write").unwrap(),
            title: None,
            description: None,
            connector: None,
            arguments: "{}".to_owned(),
            files: Vec::new(),
            changes: [].into(),
            agreement: Arc::new(Agreement {
                subject: GrantSubject {
                    caller: Caller::local("me"),
                    tool: ToolRef::parse("files/write").unwrap(),
                    identity: ServerIdentity(Digest::of(b"server")),
                    definition: Digest::of(b"definition"),
                    connector: None,
                },
                answered: [].into(),
                arguments: Digest::of(b"{}"),
                bind_arguments: false,
                lasts: true,
            }),
            denial: None,
            cut: false,
            asks: vec![StandingAsk { key: AskKey { source, rule: None }, ask, fault: None, strict: false }],
            reviewers: Reviewers::PERSON,
            options: vec![Remember::Never, Remember::Session],
            channels: Channel::ALL.into(),
            roles: Vec::new(),
            deadline: Duration::from_secs(1),
        }
    }

    fn answered(typed: &'static str) -> (Reply, String) {
        let mut shown = tempfile::tempfile().unwrap();
        let reply =
            Terminal::over(typed.as_bytes(), shown.try_clone().unwrap()).ask(&question(), &BTreeSet::new()).unwrap();
        let mut text = String::new();
        io::Seek::rewind(&mut shown).unwrap();
        shown.read_to_string(&mut text).unwrap();
        (reply, text)
    }

    #[test]
    fn r20_only_an_offered_answer_chooses() {
        let allowed = |remember| Reply::Allowed {
            remember,
            approver: "terminal".to_owned(),
            channel: Channel::Terminal,
            roles: Roles::none(),
        };
        assert_eq!(answered("a\n").0, allowed(Remember::Never));
        assert_eq!(answered("allow-for-session\n").0, allowed(Remember::Session));
        assert_eq!(answered("yes\n\ns\n").0, allowed(Remember::Session));
        assert_eq!(answered("d\n").0, Reply::Declined);
        assert_eq!(answered("w\ny\nalways-allow\na\n").0, Reply::Declined, "an answer that was not offered counted");
        assert_eq!(answered("").0, Reply::Cancelled);
    }

    /// Types what `answer` makes of the code that is on the screen.
    struct Typist {
        screen: File,
        answer: fn(&str) -> String,
        typed: bool,
    }

    impl Read for Typist {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.typed, true) {
                return Ok(0);
            }
            let mut text = String::new();
            io::Seek::rewind(&mut self.screen)?;
            self.screen.read_to_string(&mut text)?;
            let code = text.split("Type ").nth(1).and_then(|rest| rest.get(..6)).unwrap();
            let line = format!("{}\n", (self.answer)(code));
            buffer[..line.len()].copy_from_slice(line.as_bytes());
            Ok(line.len())
        }
    }

    fn confirmed(answer: fn(&str) -> String) -> bool {
        let screen = tempfile::tempfile().unwrap();
        let typist = Typist { screen: screen.try_clone().unwrap(), answer, typed: false };
        Terminal::over(typist, screen).confirms("what it means", "do this").unwrap()
    }

    #[test]
    fn r20_only_the_code_on_the_screen_confirms() {
        assert!(confirmed(str::to_owned));
        for wrong in [|_: &str| String::new(), |_: &str| "yes".to_owned(), |code: &str| format!("{code}0")] {
            assert!(!confirmed(wrong));
        }
    }

    #[test]
    fn r20_a_code_is_six_digits_and_fresh() {
        let codes: BTreeSet<String> = (0..32).map(|_| code()).collect();
        assert!(codes.iter().all(|code| code.len() == 6 && code.bytes().all(|c| c.is_ascii_digit())));
        assert!(codes.len() > 16, "codes repeat");
    }

    #[test]
    fn nothing_that_a_component_wrote_moves_the_cursor() {
        let (_, text) = answered("d\n");
        assert!(!text.contains('\u{1b}') && text.contains("\\u{1b}[2J"), "{text}");
    }
}
