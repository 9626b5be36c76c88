//! What a server asks in the middle of a call, and whoever answers.
//!
//! Both eras become this one: a request of a server with a handshake, and an entry of a stateless server's
//! `InputRequiredResult`. A question belongs to one call; what belongs to none never gets here.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use crate::model::answerable::{Answerable, QuestionKind};

/// The largest parameters of one question, in bytes of JSON.
pub const MAX_QUESTION: usize = 1024 * 1024;

/// Who asks a client something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedBy {
    /// The server of the call.
    Server,
    /// This host, for itself: an auto reviewer that asks the client's model. Nothing of it is the server's.
    Host,
}

/// One question.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerQuestion {
    /// Who asks.
    pub by: AskedBy,
    /// What is asked for.
    pub kind: QuestionKind,
    /// The parameters as the server spelled them: an object, at most [`MAX_QUESTION`] bytes; untrusted.
    pub params: Arc<str>,
}

impl ServerQuestion {
    /// Returns the parameters as a value; of a text that cannot be read, `null`.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.params).unwrap_or_default()
    }
}

/// A question that has no answer, in the words of JSON-RPC.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct NoAnswer {
    /// The code.
    pub code: i64,
    /// Why; fit to be sent to the server.
    pub message: String,
}

impl NoAnswer {
    /// The question may not be asked, or nobody is there: JSON-RPC's "method not found" is what a client without the
    /// capability says.
    #[must_use]
    pub fn not_offered(message: impl Into<String>) -> Self {
        Self { code: -32601, message: message.into() }
    }

    /// The question could be asked, and came to nothing.
    #[must_use]
    pub fn failed(message: impl Into<String>) -> Self {
        Self { code: -32603, message: message.into() }
    }
}

/// Answers the questions of one call. Contract: answers within a bound of its own; dropping the future withdraws the
/// question.
#[async_trait]
pub trait Questions: Send + Sync {
    /// What can be asked.
    fn answerable(&self) -> Answerable;

    /// While this is held, a question is open that may concern this call: the tool's time does not run.
    fn waits(&self) -> Box<dyn Send + Sync> {
        Box::new(())
    }

    /// Asks, and returns the text of the result: a JSON object.
    ///
    /// # Errors
    /// [`NoAnswer`].
    async fn ask(&self, question: ServerQuestion) -> Result<Arc<str>, NoAnswer>;
}
