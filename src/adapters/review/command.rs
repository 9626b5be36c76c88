//! A reviewer that is a program: `{"action": {…}, "instructions": "…"}` on its input, its answer on its output. Where
//! scripts of the session were answered before, `"evidence": {"text": "…", "images": [{"image_url": "data:…", "detail": …}]}` is there too.
//!
//! Promises: no shell; a process group of its own, which is killed when its leader has ended or the review is dropped; our
//! base environment and the key's variable, and nothing else of ours; at most [`MAX_REVIEW`] bytes of output; what was bound
//! is compared again before each start (R7). Exit status 0 is an answer, 75 (`EX_TEMPFAIL`) says that it may be better the
//! next time, any other is a failure. The end of what it wrote to stderr is in the error. The key is neither there nor in the answer.
//!
//! A program that leaves its group (`setsid`) is beyond this.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::process::Command;

use super::without_key;
use crate::adapters::children::once;
use crate::config::transport::BASE_ENVIRONMENT;
use crate::config::trust::first_changed;
use crate::model::digest::Digest;
use crate::model::evidence::EvidenceImage;
use crate::model::text::shown;
use crate::ports::review::{AutoReviewer, MAX_REVIEW, NoReview, ReviewRequest};

/// What a program exits with that may succeed the next time (`sysexits.h`).
const TEMPORARY: i32 = 75;
/// How much it may write to stderr, in bytes.
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
    /// What must still be this: the program, and what trust bound. None: the file did not exist.
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

    /// R7: what was bound may have changed since the configuration was read.
    async fn check(&self) -> Result<(), NoReview> {
        if self.program.bound.is_empty() {
            return Ok(());
        }
        let bound = self.program.bound.clone();
        match tokio::task::spawn_blocking(move || first_changed(&bound)).await {
            Ok(None) => Ok(()),
            Ok(Some(what)) => {
                Err(NoReview::Failed(format!("{what}; load the configuration anew, or trust the project again")))
            }
            Err(_) => Err(NoReview::Failed("comparing its files with what was bound was broken off".to_owned())),
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
            .current_dir(&self.program.folder);
        command
    }
}

#[async_trait]
impl AutoReviewer for CommandReviewer {
    async fn review(&self, request: &ReviewRequest) -> Result<String, NoReview> {
        self.check().await?;
        let key = self.key()?;
        let failed = |why: String| {
            let program = shown(&self.program.program.display().to_string(), 256);
            NoReview::Failed(format!("the reviewer `{program}` {why}"))
        };
        let action: Value = serde_json::from_str(&request.action).unwrap_or_else(|_| Value::from(&*request.action));
        let mut input = json!({ "action": action, "instructions": &*request.instructions });
        if let (Some(evidence), Value::Object(members)) = (request.evidence.after(0), &mut input) {
            let image = |image: &EvidenceImage| json!({ "image_url": &*image.url, "detail": image.detail });
            let images: Vec<Value> = evidence.images.iter().map(image).collect();
            members.insert("evidence".to_owned(), json!({ "text": evidence.text, "images": images }));
        }
        let input = input.to_string();
        let run = once::run(self.command(key.as_ref()), input, (MAX_REVIEW, MAX_STDERR));
        let ended = run.await.map_err(|why| failed(why.to_string()))?;
        let secret = key.as_ref().map(|(_, value)| value.as_str());
        if ended.status.success() {
            let said = String::from_utf8(ended.stdout)
                .map_err(|_| failed("answered something that is no UTF-8".to_owned()))?;
            return Ok(without_key(said, secret));
        }
        let words = without_key(String::from_utf8_lossy(&ended.stderr).into_owned(), secret);
        let why = ending(ended.status, &words);
        Err(match (failed(why), ended.status.code()) {
            (NoReview::Failed(why), Some(TEMPORARY)) => NoReview::Transient(why),
            (failed, _) => failed,
        })
    }
}

fn ending(status: ExitStatus, words: &str) -> String {
    let words = words.trim();
    match words.char_indices().rev().nth(SHOWN_STDERR).map_or(0, |(at, c)| at + c.len_utf8()) {
        _ if words.is_empty() => format!("ended with {status}; nothing on stderr"),
        from => format!("ended with {status}; stderr: {}", shown(&words[from..], SHOWN_STDERR)),
    }
}
