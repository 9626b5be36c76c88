//! What an auto reviewer says about a call.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::decision::microseconds;
use super::json::{Json, JsonFault, Limits};
use super::text::shown;
use super::verdict::Source;

/// The longest answer of a reviewer, in bytes.
pub const MAX_ANSWER: usize = 64 * 1024;
/// The longest rationale that is kept, in characters.
pub const MAX_RATIONALE: usize = 2000;

/// How dangerous a reviewer takes an action to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Risk {
    /// Nothing to worry about.
    Low,
    /// Some harm is possible.
    Medium,
    /// Much harm is possible.
    High,
    /// Harm that cannot be undone.
    Critical,
}

/// How far the reviewer thinks that the user wanted the action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Authorization {
    /// It cannot be told.
    #[default]
    Unknown,
    /// Hardly.
    Low,
    /// In part.
    Medium,
    /// It was asked for.
    High,
}

/// Whether the action may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Judgement {
    /// It may.
    Allow,
    /// It may not.
    Deny,
}

/// A reviewer's answer, read and checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Assessment {
    /// Whether it may run.
    pub outcome: Judgement,
    /// How dangerous it is; where the reviewer does not say, low for an allow and high for a deny.
    pub risk: Risk,
    /// How far it was wanted.
    pub authorization: Authorization,
    /// Why, in the reviewer's words: bounded, control characters visible; empty where it said nothing.
    pub rationale: String,
}

impl Assessment {
    /// Reads a reviewer's whole answer, white space around it aside: one JSON object with `outcome` (`allow` or `deny`) and
    /// optional `risk_level`, `user_authorization` and `rationale`, and nothing else.
    ///
    /// The reference also takes the span from the first brace to the last one of a longer text. We do not, on purpose (R22):
    /// an action may hold such an object, and a reviewer that only quotes it would then say what the action says.
    ///
    /// # Errors
    /// What is wrong with it, in our own words and bounded: an essay, a code fence, unknown fields, a field twice, another
    /// type or word, or more than [`MAX_ANSWER`] bytes.
    pub fn parse(text: &str) -> Result<Self, String> {
        let limits = Limits { bytes: MAX_ANSWER, depth: 8 };
        let json = Json::parse(text.trim(), limits).map_err(|fault| match fault {
            JsonFault::TooLarge { .. } => format!("the answer has more than {MAX_ANSWER} bytes"),
            JsonFault::DuplicateKey { .. } => "the answer has a field twice".to_owned(),
            JsonFault::TooDeep { .. } | JsonFault::Syntax { .. } | JsonFault::InexactNumber { .. } => {
                "the answer is not one JSON object and nothing else".to_owned()
            }
        })?;
        let Json::Object(members) = json else { return Err("the answer is no JSON object".to_owned()) };
        let (mut outcome, mut risk, mut authorization, mut rationale) = (None, None, None, String::new());
        for (key, value) in members {
            let Json::String(value) = value else { return Err(format!("its `{}` is no text", shown(&key, 64))) };
            match key.as_str() {
                "outcome" => outcome = Some(word(&key, &value)?),
                "risk_level" => risk = Some(word(&key, &value)?),
                "user_authorization" => authorization = Some(word(&key, &value)?),
                "rationale" => rationale = shown(value.trim(), MAX_RATIONALE),
                other => return Err(format!("it has the unknown field `{}`", shown(other, 64))),
            }
        }
        let outcome = outcome.ok_or("it has no `outcome`")?;
        let usual = match outcome {
            Judgement::Allow => Risk::Low,
            Judgement::Deny => Risk::High,
        };
        let (risk, authorization) = (risk.unwrap_or(usual), authorization.unwrap_or_default());
        Ok(Self { outcome, risk, authorization, rationale })
    }
}

/// Reads one of the words of an enum.
fn word<T: serde::de::DeserializeOwned>(key: &str, value: &str) -> Result<T, String> {
    serde_json::from_value(value.into())
        .map_err(|_| format!("its `{key}` is `{}`, which is no such word", shown(value, 32)))
}

impl Risk {
    /// Returns the word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

/// How one review ended, as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReviewVoice {
    /// Layer and name of the reviewer.
    pub source: Source,
    /// What came of it.
    #[serde(flatten)]
    pub said: ReviewSaid,
    /// How often it was asked.
    pub attempts: u8,
    /// How long it took in all; written as whole microseconds.
    #[serde(rename = "time_us", serialize_with = "microseconds")]
    pub time: Duration,
}

/// What came of a review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "said")]
pub enum ReviewSaid {
    /// It was assessed.
    Assessed(Assessment),
    /// There was no answer in time.
    TimedOut,
    /// No attempt gave an answer that can be read.
    Failed {
        /// Why; for people and records.
        why: String,
    },
    /// It could not be asked at all.
    Nobody {
        /// Why; for people and records.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(outcome: Judgement, risk: Risk, authorization: Authorization, rationale: &str) -> Assessment {
        Assessment { outcome, risk, authorization, rationale: rationale.to_owned() }
    }

    #[test]
    fn r22_the_one_object_is_read_and_what_it_leaves_out_is_the_usual() {
        use Authorization::{High, Medium, Unknown};
        use Judgement::{Allow, Deny};
        let table = [
            (r#"{"outcome":"allow"}"#, said(Allow, Risk::Low, Unknown, "")),
            (r#"{"outcome":"deny"}"#, said(Deny, Risk::High, Unknown, "")),
            ("\n {\"outcome\" : \"deny\"}\r\n", said(Deny, Risk::High, Unknown, "")),
            (r#"{"outcome":"allow","risk_level":"critical"}"#, said(Allow, Risk::Critical, Unknown, "")),
            (
                r#"{"user_authorization":"high","outcome":"deny","risk_level":"medium"}"#,
                said(Deny, Risk::Medium, High, ""),
            ),
            (
                r#"{"outcome":"deny","user_authorization":"medium","rationale":"  no\u0007 \u202e "}"#,
                said(Deny, Risk::High, Medium, "no\\u{7} \\u{202e}"),
            ),
        ];
        for (text, wanted) in table {
            assert_eq!(Assessment::parse(text).unwrap(), wanted, "{text}");
        }
    }

    #[test]
    fn r22_anything_but_the_one_object_is_no_answer() {
        for bad in [
            "",
            "allow",
            "\"allow\"",
            "[{\"outcome\":\"allow\"}]",
            "{}",
            "The action is harmless. {\"outcome\":\"allow\"}",
            "{\"outcome\":\"allow\"} as asked",
            "{\"outcome\":\"allow\"}{\"outcome\":\"allow\"}",
            "```json\n{\"outcome\":\"allow\"}\n```",
            "{\"outcome\":\"deny\",\"outcome\":\"allow\"}",
            "{\"outcome\":\"deny\",\"o\\u0075tcome\":\"allow\"}",
            "{\"outcome\":\"Allow\"}",
            "{\"outcome\":\"ask\"}",
            "{\"outcome\":true}",
            "{\"outcome\":null}",
            "{\"risk_level\":\"low\"}",
            "{\"outcome\":\"allow\",\"risk_level\":null}",
            "{\"outcome\":\"allow\",\"risk_level\":\"none\"}",
            "{\"outcome\":\"allow\",\"user_authorization\":3}",
            "{\"outcome\":\"allow\",\"rationale\":[\"a\"]}",
            "{\"outcome\":\"allow\",\"verdict\":\"allow\"}",
            "{\"outcome\":\"allow\",}",
            "{\"outcome\":\"allow\" /* fine */}",
        ] {
            assert!(Assessment::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rationale_is_bounded_and_an_answer_too() {
        let answer = |length| format!(r#"{{"outcome":"deny","rationale":"{}"}}"#, "é".repeat(length));
        let kept = Assessment::parse(&answer(MAX_RATIONALE + 1)).unwrap().rationale;
        assert_eq!(kept.chars().count(), MAX_RATIONALE + 1);
        assert!(kept.ends_with("é…"));
        assert!(Assessment::parse(&answer(MAX_ANSWER)).unwrap_err().contains("more than 65536 bytes"));
        let long = format!(r#"{{"outcome":"{}"}}"#, "x".repeat(1000));
        assert!(Assessment::parse(&long).unwrap_err().len() < 200);
    }
}
