//! A decision in words: who said what, and how the answers fold.

use anstyle::Style;
use portcullis::model::decision::{ConnectorSpoken, ConnectorVoice, Decision, Spoken, Voice};
use portcullis::model::layer::LayerRef;
use portcullis::model::text::shown;
use portcullis::model::verdict::{MAX_REASON, Reason, Remember, Source, Verdict};

use super::render::{self, BAD, FAINT, GOOD, WARN, field, styled};

/// Returns every voice and every step of the fold, wrapped, each on lines of its own.
pub(crate) fn describe(decision: &Decision, width: usize) -> String {
    let mut out = String::new();
    if !decision.connectors.is_empty() {
        out.push_str(&format!("{}\n", styled(render::STRONG, "app")));
    }
    for voice in &decision.connectors {
        out.push_str(&field(2, &format!("{}:", source(&voice.source)), &said_of_app(voice), width));
        file(&mut out, &voice.source, width);
    }
    if !decision.voices.is_empty() {
        out.push_str(&format!("{}\n", styled(render::STRONG, "verdicts")));
    }
    for voice in &decision.voices {
        out.push_str(&field(2, &format!("{}:", source(&voice.source)), &said(voice), width));
        out.push_str(&field(4, "cost", &format!("{} fuel, {} µs", voice.fuel, voice.time.as_micros()), width));
        if let Some(digest) = &voice.source.digest {
            out.push_str(&field(4, "digest", &digest.to_string(), width));
        }
        file(&mut out, &voice.source, width);
    }
    out.push_str(&format!("{}\n", styled(render::STRONG, "fold")));
    for (number, step) in decision.steps.iter().enumerate() {
        out.push_str(&field(2, &format!("{}.", number + 1), &shown(step, 1000), width));
    }
    out
}

/// Returns layer/component.
pub(crate) fn source(source: &Source) -> String {
    format!("{}/{}", source.layer, shown(&source.component, 128))
}

fn file(out: &mut String, source: &Source, width: usize) {
    if let Some(file) = source.layer.file() {
        out.push_str(&field(4, "file", &shown(&file.display().to_string(), 300), width));
    }
}

fn said_of_app(voice: &ConnectorVoice) -> String {
    let mut out = match &voice.spoken {
        ConnectorSpoken::Answer(answer) => {
            let mut out = match answer.enabled {
                Some(true) => styled(GOOD, "enabled"),
                Some(false) => styled(BAD, "disabled"),
                None => styled(FAINT, "no opinion"),
            };
            if let Some(mode) = answer.mode {
                out.push_str(&format!(", mode {}", mode.as_str()));
            }
            if let Some(rule) = &answer.rule {
                out.push_str(&format!(", rule {rule}"));
            }
            out
        }
        ConnectorSpoken::Fault(fault) => {
            format!("{} ({})", styled(BAD, "failed, so disabled"), shown(&fault.to_string(), MAX_REASON))
        }
    };
    if voice.observed {
        out.push_str(" (only observed)");
    }
    out
}

fn said(voice: &Voice) -> String {
    let mut out = match &voice.spoken {
        Spoken::Verdict(Verdict::Abstain) => styled(FAINT, "no opinion"),
        Spoken::Verdict(Verdict::Allow(reason)) => with_reason(GOOD, "allow", reason),
        Spoken::Verdict(Verdict::Ask(ask)) => {
            let remember = match ask.remember {
                Remember::Never => "not to be remembered",
                Remember::Session => "may be remembered for the session",
                Remember::Always => "may be remembered",
            };
            let bound = if ask.bind_arguments { ", for these arguments" } else { "" };
            format!("{} ({remember}{bound})", with_reason(WARN, "ask", &ask.reason))
        }
        Spoken::Verdict(Verdict::Deny(reason)) => with_reason(BAD, "deny", reason),
        Spoken::Fault(fault) => format!("{} ({})", styled(BAD, "failed"), shown(&fault.to_string(), MAX_REASON)),
    };
    if let Some((layer, posture)) = &voice.posture {
        let word = |value: serde_json::Result<serde_json::Value>| {
            value.ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let (mode, policy) = (word(serde_json::to_value(posture.mode)), word(serde_json::to_value(posture.policy)));
        let profile = word(serde_json::to_value(posture.profile));
        out.push_str(&format!(" (posture of {}: mode {mode}, policy {policy}, profile {profile})", whose(layer)));
    }
    if voice.observed {
        out.push_str(" (only observed)");
    }
    out
}

fn with_reason(style: Style, word: &str, reason: &Reason) -> String {
    let mut out = styled(style, word);
    if let Some(rule) = &reason.rule {
        out.push_str(&format!(", rule {rule}"));
    }
    if !reason.text.is_empty() {
        out.push_str(&format!(": {}", shown(&reason.text, MAX_REASON)));
    }
    out
}

fn whose(layer: &LayerRef) -> String {
    match layer.file() {
        Some(file) => format!("{layer} ({})", shown(&file.display().to_string(), 300)),
        None => layer.to_string(),
    }
}
