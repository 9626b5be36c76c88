//! A reviewer that is a program: `{"action": {…}, "instructions": "…"}` on its input, its answer on its output.
//!
//! Promises: no shell; a process group of its own, which is killed when its leader has ended or the review is dropped; our
//! base environment and the key's variable, and nothing else of ours; at most [`MAX_REVIEW`] bytes of output; what trust bound
//! is compared again before each start (R7). Exit status 0 is an answer, 75 (`EX_TEMPFAIL`) says that it may be better the
//! next time, any other is a failure. The end of what it wrote to stderr is in the error, without the key.
//!
//! A program that leaves its group (`setsid`) is beyond this, as is one that outlives a host that was killed: it reads the
//! end of its input, and its output goes nowhere.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::adapters::children;
use crate::config::transport::BASE_ENVIRONMENT;
use crate::config::trust::first_changed;
use crate::model::digest::Digest;
use crate::model::text::shown;
use crate::ports::review::{AutoReviewer, MAX_REVIEW, NoReview, ReviewRequest};

/// What a program exits with that may succeed the next time (`sysexits.h`).
const TEMPORARY: i32 = 75;
/// How much of its stderr is read, in bytes; the rest is thrown away.
const MAX_STDERR: usize = 64 * 1024;
/// How much of it an error shows, in characters.
const SHOWN_STDERR: usize = 300;

type Look = dyn Fn(&str) -> Option<String> + Send + Sync;

/// How the program is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The program, absolute.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its working directory.
    pub folder: PathBuf,
    /// A variable of our environment that is handed on.
    pub key_env: Option<String>,
    /// What trust bound: every file must still be this. None: the file did not exist.
    pub bound: BTreeMap<PathBuf, Option<Digest>>,
}

/// A reviewer that is a program.
pub struct CommandReviewer {
    program: Program,
    variable: Arc<Look>,
}

impl CommandReviewer {
    /// Makes one; nothing is started before it is asked. `variable` reads our environment, at each start.
    #[must_use]
    pub fn new(program: Program, variable: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { program, variable: Arc::new(variable) }
    }

    /// R7: what was trusted may have changed since the configuration was read.
    async fn check_trusted(&self) -> Result<(), NoReview> {
        if self.program.bound.is_empty() {
            return Ok(());
        }
        let bound = self.program.bound.clone();
        match tokio::task::spawn_blocking(move || first_changed(&bound)).await {
            Ok(None) => Ok(()),
            Ok(Some(what)) => Err(NoReview::Failed(format!("{what}; run `portcullis trust`"))),
            Err(_) => Err(NoReview::Failed("comparing its files with what was trusted was broken off".to_owned())),
        }
    }

    fn key(&self) -> Result<Option<(&str, String)>, NoReview> {
        let Some(name) = self.program.key_env.as_deref() else { return Ok(None) };
        let missing = || NoReview::Failed(format!("the environment variable `{}` is not set", shown(name, 128)));
        (self.variable)(name).map(|value| Some((name, value))).ok_or_else(missing)
    }

    fn command(&self, key: Option<&(&str, String)>) -> Command {
        let base = BASE_ENVIRONMENT.into_iter().filter_map(|name| Some((name, (self.variable)(name)?)));
        let mut command = Command::new(&self.program.program);
        command
            .args(&self.program.args)
            .env_clear()
            .envs(base)
            .envs(key.map(|(name, value)| (*name, value)))
            .current_dir(&self.program.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        children::keep_nothing(command.as_std_mut());
        command
    }
}

/// The group of a child; dropping it kills what is left of it.
struct Group(Pid);

impl Group {
    /// Its number is not given away while a member lives, and this is called at once after the leader was reaped.
    fn kill(&self) {
        // One that is gone is no error.
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

#[async_trait]
impl AutoReviewer for CommandReviewer {
    async fn review(&self, request: &ReviewRequest) -> Result<String, NoReview> {
        self.check_trusted().await?;
        let key = self.key()?;
        let failed = |why: String| {
            let program = shown(&self.program.program.display().to_string(), 256);
            NoReview::Failed(format!("the reviewer `{program}` {why}"))
        };
        let action: Value = serde_json::from_str(&request.action).unwrap_or_else(|_| Value::from(&*request.action));
        let input = json!({ "action": action, "instructions": &*request.instructions }).to_string();
        let mut child = self.command(key.as_ref()).spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => failed("cannot be started: no such program or folder".to_owned()),
            std::io::ErrorKind::PermissionDenied => failed("cannot be started: not executable".to_owned()),
            _ => failed(format!("cannot be started: {}", shown(&error.to_string(), 200))),
        })?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).map(Group);
        let (Some(group), Some(mut stdin), Some(stdout), Some(stderr)) =
            (group, child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed("was started without its pipes".to_owned()));
        };
        let told = async move {
            // One that does not read all of it may know enough.
            let _ = stdin.write_all(input.as_bytes()).await;
            let _ = stdin.shutdown().await;
        };
        let ended = async {
            let status = child.wait().await;
            // A member that is left would hold the output open.
            group.kill();
            status
        };
        let read = async {
            let answer = answer_of(stdout).await;
            if answer.is_none() {
                group.kill();
            }
            answer
        };
        let ((), status, answer, words) = tokio::join!(told, ended, read, last_words(stderr));
        let Some(answer) = answer else {
            return Err(failed(format!("answered more than {MAX_REVIEW} bytes")));
        };
        match status {
            Ok(status) if status.success() => {
                String::from_utf8(answer).map_err(|_| failed("answered something that is no UTF-8".to_owned()))
            }
            Ok(status) => {
                let secret = key.map(|(_, value)| value).filter(|value| !value.is_empty());
                let words = secret.map_or(words.clone(), |secret| words.replace(&secret, "<key>"));
                let why = ending(status, &words);
                Err(match (failed(why), status.code()) {
                    (NoReview::Failed(why), Some(TEMPORARY)) => NoReview::Transient(why),
                    (failed, _) => failed,
                })
            }
            Err(error) => Err(failed(format!("cannot be waited for: {}", shown(&error.to_string(), 200)))),
        }
    }
}

fn ending(status: ExitStatus, words: &str) -> String {
    let words = words.trim();
    match words.char_indices().rev().nth(SHOWN_STDERR).map_or(0, |(at, c)| at + c.len_utf8()) {
        _ if words.is_empty() => format!("ended with {status}; nothing on stderr"),
        from => format!("ended with {status}; stderr: {}", shown(&words[from..], SHOWN_STDERR)),
    }
}

/// Reads an answer to its end; `None`: it is too long.
async fn answer_of(output: impl AsyncRead + Unpin) -> Option<Vec<u8>> {
    let mut answer = Vec::new();
    // What came before the pipe broke is judged like any other answer.
    let _ = output.take(MAX_REVIEW as u64 + 1).read_to_end(&mut answer).await;
    (answer.len() <= MAX_REVIEW).then_some(answer)
}

/// Reads stderr to its end, and returns the last of what was kept.
async fn last_words(mut errors: impl AsyncRead + Unpin) -> String {
    let (mut kept, mut chunk) = (Vec::new(), vec![0; 8 * 1024]);
    while let Ok(count @ 1..) = errors.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..count]);
        let surplus = kept.len().saturating_sub(MAX_STDERR);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
