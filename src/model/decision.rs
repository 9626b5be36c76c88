//! A decision with everything that led to it, for records and `explain`.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::digest::Digest;
use super::layer::LayerRef;
use super::posture::Posture;
use super::verdict::{ConnectorAnswer, Fault, Folded, Source, Verdict};

/// What one component said about a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Voice {
    /// The component.
    pub source: Source,
    /// Its answer, or its failure.
    #[serde(flatten)]
    pub spoken: Spoken,
    /// For the baseline: the layer whose posture it was asked with, and that posture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posture: Option<(LayerRef, Posture)>,
    /// Whether it was only observed: recorded, never applied (R16).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub observed: bool,
    /// The fuel that it used.
    pub fuel: u64,
    /// The time that it took in the sandbox; written as whole microseconds.
    #[serde(rename = "time_us", serialize_with = "microseconds")]
    pub time: Duration,
    /// The digest of all that the host told it, in order: a replay that tells it the same must end the same (R35).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heard: Option<Digest>,
}

pub(super) fn microseconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// What one connector component said about an App tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConnectorVoice {
    /// The component.
    pub source: Source,
    /// Its answer, or its failure.
    #[serde(flatten)]
    pub spoken: ConnectorSpoken,
    /// Whether it was only observed: recorded, never applied (R16).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub observed: bool,
    /// The fuel that it used.
    pub fuel: u64,
    /// The time that it took in the sandbox; written as whole microseconds.
    #[serde(rename = "time_us", serialize_with = "microseconds")]
    pub time: Duration,
}

/// A connector component's answer or failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectorSpoken {
    /// It answered.
    Answer(ConnectorAnswer),
    /// It failed: the tool is disabled.
    Fault(Fault),
}

/// An answer or a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Spoken {
    /// It answered.
    Verdict(Verdict),
    /// It failed.
    Fault(Fault),
}

/// One evaluation of a call by all layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// For an App tool: what the connector components said, in order of trust, the baseline last. When they disable the tool,
    /// nothing else is asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connectors: Vec<ConnectorVoice>,
    /// The answers, in order of trust, the baseline last.
    pub voices: Vec<Voice>,
    /// What they say together.
    pub folded: Folded,
    /// The fold, step by step, a sentence each.
    pub steps: Vec<String>,
    /// The time that every component was told, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}
