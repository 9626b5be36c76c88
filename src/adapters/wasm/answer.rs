//! What answers of components mean: our own values of what a guest wrote. What is illegal is a fault, not repaired.

use super::hooks::{RawApproval, RawConnector, RawOutcome, RawReason, RawSanitised, RawVerdict};
use crate::model::text::{prefix, shown};
use crate::model::verdict::{Ask, Fault, FaultCode, Label, MAX_REASON, Reason, RuleId, Source, Verdict};
use crate::ports::connector::ConnectorAnswer;
use crate::ports::sanitiser;

/// The most labels that one answer may set.
const MAX_LABELS: usize = 16;
/// The most edits that one answer may hold.
const MAX_EDITS: usize = 4096;

/// Reads an approval component's answer.
pub(super) fn approval(raw: RawApproval, source: &Source) -> Result<(Verdict, Vec<Label>), Fault> {
    let verdict = match raw.verdict {
        RawVerdict::Abstain => Verdict::Abstain,
        RawVerdict::Allow(why) => Verdict::Allow(reason(why)?),
        RawVerdict::Ask { reason: why, remember, bind_arguments, reviewers } => {
            Verdict::Ask(Ask { reason: reason(why)?, remember, bind_arguments, reviewers })
        }
        RawVerdict::Deny(why) => Verdict::Deny(reason(why)?),
    };
    Ok((verdict, labels(raw.labels, source)?))
}

/// Reads a connector policy's answer.
pub(super) fn connector(raw: RawConnector) -> Result<ConnectorAnswer, Fault> {
    Ok(ConnectorAnswer { rule: rule(raw.rule)?, enabled: raw.enabled, mode: raw.mode })
}

/// A sanitiser's verdict with its rule, and its labels.
pub(super) type ReadSanitised = ((sanitiser::Verdict, Option<RuleId>), Vec<Label>);

/// Reads a sanitiser's answer. Whether its edits fit the answer is for whoever applies them.
pub(super) fn sanitised(raw: RawSanitised, source: &Source) -> Result<ReadSanitised, Fault> {
    let verdict = match raw.outcome {
        RawOutcome::Pass => sanitiser::Verdict::Pass,
        RawOutcome::Edit(edits) if edits.len() > MAX_EDITS => {
            let detail = format!("it makes {} edits, more than {MAX_EDITS}", edits.len());
            return Err(Fault::new(FaultCode::OutputTooLarge, detail));
        }
        RawOutcome::Edit(edits) => sanitiser::Verdict::Edit(edits),
        RawOutcome::Withhold(text) => sanitiser::Verdict::Withhold(bounded(&text)),
    };
    Ok(((verdict, rule(raw.rule)?), labels(raw.labels, source)?))
}

fn labels(names: Vec<String>, source: &Source) -> Result<Vec<Label>, Fault> {
    if names.len() > MAX_LABELS {
        return Err(invalid(&format!("it sets {} labels, more than {MAX_LABELS}", names.len())));
    }
    // Labels follow the grammar of rule ids: both are compared and shown, neither is prose.
    let label = |name: String| match RuleId::parse(&name) {
        Some(_) => Ok(Label { name, source: source.clone() }),
        None => Err(invalid(&format!("`{}` is no label", shown(&name, 64)))),
    };
    names.into_iter().map(label).collect()
}

fn reason(raw: RawReason) -> Result<Reason, Fault> {
    Ok(Reason { rule: rule(raw.rule)?, text: bounded(&raw.text) })
}

fn rule(raw: Option<String>) -> Result<Option<RuleId>, Fault> {
    let parse =
        |rule: String| RuleId::parse(&rule).ok_or_else(|| invalid(&format!("`{}` is no rule id", shown(&rule, 64))));
    raw.map(parse).transpose()
}

/// Returns at most [`MAX_REASON`] bytes for people, with `…` where something was left out.
///
/// The one thing that is cut: a long explanation does not change what the component decided.
fn bounded(text: &str) -> String {
    let text = shown(text, MAX_REASON);
    if text.len() <= MAX_REASON { text } else { format!("{}…", prefix(&text, MAX_REASON - '…'.len_utf8())) }
}

fn invalid(detail: &str) -> Fault {
    Fault::new(FaultCode::OutputInvalid, detail)
}
