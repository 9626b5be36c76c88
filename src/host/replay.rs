//! Recorded decisions taken again: by the policies in force, or by those of a candidate (R35).
//!
//! Promises: a decision whose inputs and host answers were kept comes out as it was, under the same policies; what cannot be
//! taken again is told as that, with the reason, and never guessed. Starts no server, asks nobody, keeps nothing.
//!
//! Compared are the outcome (run, ask, deny) and who stands behind it, by layer, component, rule and fault; texts and digests
//! of components are not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use super::past::{InputsFile, NotFound};
pub use super::recorded::Unreadable;
use super::recorded::{Decisions, Failed, Read, Recorded, Said, SaidVoice, Whose};
use crate::adapters::record::inputs::read;
use crate::adapters::record::jsonl::marked;
use crate::model::chain::Key;
use crate::model::digest::Digest;
use crate::model::verdict::FaultCode;
use crate::pipeline::consent::replay::replay;
use crate::ports::approval::PolicySet;

/// What a decision comes to, and who stands behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// `run`, `ask` or `deny`.
    pub verdict: String,
    /// Who asks or refuses; of a call that runs, who lifted the ask.
    pub by: BTreeSet<By>,
}

/// Who stands behind an outcome.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct By {
    /// The layer.
    pub layer: String,
    /// The component.
    pub component: String,
    /// The rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The code of the failure behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A component that said something else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The layer.
    pub layer: String,
    /// The component.
    pub component: String,
    /// What it said then; none: it was not asked.
    pub was: Option<String>,
    /// What it says now; none: it is not asked.
    pub now: Option<String>,
}

/// What became of one decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum Came {
    /// It comes to the same.
    Same,
    /// It comes to the same, by the same policies in the same engine, for another price: that should not be.
    OtherFuel {
        /// Whose fuel differs.
        components: Vec<String>,
    },
    /// It comes to something else.
    Changed {
        /// What it came to.
        was: Outcome,
        /// What it comes to now.
        now: Outcome,
        /// Who said something else.
        because: Vec<Difference>,
    },
    /// It cannot be taken again.
    NotReproducible {
        /// Why.
        why: String,
    },
}

/// One decision that was taken again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Retaken {
    /// The call; of a line that cannot be read, which line of its file it is.
    pub call: String,
    /// When it was decided.
    pub time: String,
    /// The server.
    pub server: Option<String>,
    /// The tool.
    pub tool: String,
    /// Whether the policies are those that decided then.
    pub same_policies: bool,
    /// What became of it.
    #[serde(flatten)]
    pub came: Came,
}

/// How many decisions came to what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// All.
    pub decisions: u64,
    /// To the same.
    pub same: u64,
    /// To something else.
    pub changed: u64,
    /// To the same for another price.
    pub other_fuel: u64,
    /// Those that cannot be taken again, by reason.
    pub not_reproducible: BTreeMap<String, u64>,
}

/// Takes every decision in these files again by these policies, and gives each to `each`. `inputs_key` is the one that the
/// tenants' marks are made under.
///
/// # Errors
/// [`Unreadable`]: a file of records. What is wrong with single decisions is told of them.
pub async fn retake(
    policies: &PolicySet,
    files: &[PathBuf],
    inputs_key: &Key,
    mut each: impl FnMut(&Retaken),
) -> Result<Totals, Unreadable> {
    let mut totals = Totals::default();
    for file in files {
        let mut inputs = InputsFile::beside(file);
        let mut decisions = Decisions::of(file)?;
        while let Some(read) = decisions.next()? {
            let retaken = match read {
                Read::Decision(recorded, kept) => {
                    let came = take(policies, &recorded, kept, &mut inputs, inputs_key).await;
                    let same_policies = recorded.policy_set == policies.digest.0;
                    let Recorded { call, time, server, tool, .. } = *recorded;
                    Retaken { call, time, server, tool, same_policies, came }
                }
                Read::Bad { line, why } => Retaken {
                    call: format!("line {line}"),
                    time: String::new(),
                    server: None,
                    tool: String::new(),
                    same_policies: false,
                    came: Came::NotReproducible { why: why.to_owned() },
                },
            };
            totals.decisions += 1;
            match &retaken.came {
                Came::Same => totals.same += 1,
                Came::Changed { .. } => totals.changed += 1,
                Came::OtherFuel { .. } => totals.other_fuel += 1,
                Came::NotReproducible { why } => *totals.not_reproducible.entry(why.clone()).or_default() += 1,
            }
            each(&retaken);
        }
    }
    Ok(totals)
}

async fn take(
    policies: &PolicySet,
    recorded: &Recorded,
    kept: Option<Digest>,
    inputs: &mut InputsFile,
    inputs_key: &Key,
) -> Came {
    let not = |why: String| Came::NotReproducible { why };
    if let Some((whose, code)) = chance(&recorded.said) {
        return not(format!("{whose} had ended with `{code}`, which the machine decided"));
    }
    let Some(kept) = kept else { return not("its inputs were not kept".to_owned()) };
    let tenant_key = inputs_key.of_tenant(&recorded.caller.tenant);
    let line = match inputs.find(kept, &tenant_key) {
        Ok(line) => line,
        Err(NotFound::NoFile) => return not("the file with its inputs is not there".to_owned()),
        Err(NotFound::Absent) => return not("its inputs are not in their file, or were changed there".to_owned()),
        Err(NotFound::Failed(error)) => return not(format!("the file with its inputs cannot be read: {error}")),
    };
    let inputs = match read(&line) {
        Ok(inputs) => inputs,
        Err(bad) => return not(bad.to_string()),
    };
    if inputs.masked {
        return not("the tool's title was masked: a sanitiser does not let it be shown".to_owned());
    }
    let again = replay(policies, &inputs).await;
    if again.unheard_of {
        return not("a component counts what nobody counted then".to_owned());
    }
    let now = serde_json::to_value(&again.decision).and_then(serde_json::from_value::<Said>);
    let now = match now {
        Ok(now) => now,
        Err(error) => return not(format!("the decision cannot be written: {error}")),
    };
    if let Some((whose, code)) = chance(&now) {
        return not(format!("{whose} ended with `{code}` now, which the machine decided"));
    }
    let (Some(was), Some(is)) = (outcome(&recorded.said.folded), outcome(&now.folded)) else {
        return not("its outcome is none that this version knows".to_owned());
    };
    if was != is {
        return Came::Changed { was, now: is, because: differences(&recorded.said, &now) };
    }
    let same = recorded.policy_set == policies.digest.0 && recorded.engine == policies.engine;
    match other_fuel(&recorded.said, &now, &tenant_key) {
        components if same && !components.is_empty() => Came::OtherFuel { components },
        _ => Came::Same,
    }
}

/// The first failure that depends on the machine and the moment.
fn chance(said: &Said) -> Option<(String, FaultCode)> {
    said.voices.iter().chain(&said.connectors).find_map(|voice| {
        let code = voice.fault.as_ref()?.code;
        let by_chance = matches!(code, FaultCode::Deadline | FaultCode::Budget | FaultCode::Circuit);
        by_chance.then(|| (format!("{}/{}", voice.source.layer, voice.source.component), code))
    })
}

fn outcome(folded: &Value) -> Option<Outcome> {
    let (verdict, what) = folded.as_object()?.iter().next()?;
    let by = match verdict.as_str() {
        "run" => what.get("lifted_by").and_then(|source| by(source, None, None)).into_iter().collect(),
        "ask" => all(what, |ask| by(ask.pointer("/key/source")?, ask.pointer("/key/rule"), ask.get("fault")))?,
        "deny" => all(what, |deny| by(deny.get("source")?, deny.pointer("/reason/rule"), deny.get("fault")))?,
        _ => return None,
    };
    Some(Outcome { verdict: verdict.clone(), by })
}

fn all(list: &Value, read: impl Fn(&Value) -> Option<By>) -> Option<BTreeSet<By>> {
    list.as_array()?.iter().map(read).collect()
}

fn by(source: &Value, rule: Option<&Value>, fault: Option<&Value>) -> Option<By> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    Some(By {
        layer: text(source.get("layer"))?,
        component: text(source.get("component"))?,
        rule: text(rule),
        fault: text(fault.and_then(|fault| fault.get("code"))),
    })
}

/// Who spoke: connectors apart, and the baseline once for each posture.
type Speaker = (bool, Whose, Option<String>);

fn speakers(said: &Said) -> BTreeMap<Speaker, &SaidVoice> {
    let of = |connector: bool| {
        move |voice: &'_ SaidVoice| {
            let posture = voice.posture.as_ref().map(|(layer, posture)| format!("{layer} {posture}"));
            (connector, voice.source.clone(), posture)
        }
    };
    let voices = said.voices.iter().filter(|voice| !voice.observed).map(|voice| (of(false)(voice), voice));
    voices.chain(said.connectors.iter().map(|voice| (of(true)(voice), voice))).collect()
}

fn differences(was: &Said, now: &Said) -> Vec<Difference> {
    let (was, now) = (speakers(was), speakers(now));
    let everybody: BTreeSet<&Speaker> = was.keys().chain(now.keys()).collect();
    let one = |speaker: &&Speaker| {
        let say = |said: &BTreeMap<Speaker, &SaidVoice>| said.get(*speaker).map(|voice| in_words(voice));
        let (then, today) = (say(&was), say(&now));
        let (_, Whose { layer, component }, _) = (*speaker).clone();
        (then != today).then_some(Difference { layer, component, was: then, now: today })
    };
    everybody.iter().filter_map(one).collect()
}

fn in_words(voice: &SaidVoice) -> String {
    if let Some(Failed { code }) = &voice.fault {
        return format!("failed ({code})");
    }
    if let Some(answer) = &voice.answer {
        return answer.to_string();
    }
    match &voice.verdict {
        Some(Value::String(word)) => word.clone(),
        Some(Value::Object(verdict)) => {
            let Some((word, what)) = verdict.iter().next() else { return String::new() };
            let rule = what.get("rule").or_else(|| what.pointer("/reason/rule")).and_then(Value::as_str);
            rule.map_or_else(|| word.clone(), |rule| format!("{word} by rule {rule}"))
        }
        _ => String::new(),
    }
}

/// Those who heard the same and needed other fuel for it.
fn other_fuel(was: &Said, now: &Said, key: &Key) -> Vec<String> {
    let now = speakers(now);
    let differs = |(speaker, voice): (&Speaker, &&SaidVoice)| {
        let again = now.get(speaker)?;
        let heard = again.heard.map(|heard| marked(key, heard));
        let other = heard != voice.heard || again.fuel != voice.fuel;
        other.then(|| format!("{}/{}", speaker.1.layer, speaker.1.component))
    };
    speakers(was).iter().filter(|(speaker, _)| !speaker.0).filter_map(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(value: Value) -> Said {
        serde_json::from_value(value).unwrap()
    }

    fn deny(rule: &str) -> Said {
        let source = json!({ "layer": "user", "component": "c" });
        let reason = json!({ "rule": rule, "text": "" });
        said(json!({
            "folded": { "deny": [{ "source": source, "reason": reason }] },
            "voices": [{ "source": source, "verdict": { "deny": reason }, "fuel": 1 }],
        }))
    }

    #[test]
    fn r35_another_rule_is_another_outcome_and_is_named_with_its_component() {
        let (one, other) = (deny("a"), deny("b"));
        assert_eq!(outcome(&one.folded), outcome(&deny("a").folded));
        assert_ne!(outcome(&one.folded), outcome(&other.folded));
        let differences = differences(&one, &other);
        let was = differences[0].was.as_deref();
        assert_eq!(
            (differences.len(), was, differences[0].now.as_deref()),
            (1, Some("deny by rule a"), Some("deny by rule b"))
        );
    }

    #[test]
    fn r35_what_a_deadline_a_budget_or_a_circuit_decided_is_chance_and_a_trap_is_not() {
        let with = |code: &str| {
            said(json!({ "folded": { "run": {} }, "voices": [{
                "source": { "layer": "user", "component": "c" }, "fault": { "code": code, "detail": "" }, "fuel": 0,
            }] }))
        };
        for code in ["deadline", "budget", "circuit"] {
            assert!(chance(&with(code)).is_some(), "{code}");
        }
        assert!(chance(&with("trap")).is_none() && chance(&with("fuel")).is_none());
    }
}
