//! One call of the story: played, put into words, and held against what the story says.

use portcullis::host::session::SessionCall;
use portcullis::model::decision::{Decision, Spoken};
use portcullis::model::layer::LayerKind;
use portcullis::model::name::{Target, ToolRef};
use portcullis::model::outcome::{Outcome, Stage};
use portcullis::model::text::shown;
use portcullis::model::verdict::{Folded, RuleId, Source, Verdict};
use portcullis::pipeline::Finished;
use portcullis::ports::recorder::Consent;
use serde_json::{Value, json};

use super::house::House;
use super::story::{Before, Scene};
use crate::cli::exit::Exit;

/// The most characters of an answer that are shown.
const ANSWER: usize = 200;
/// The phases that a call goes through.
const PHASES: [&str; 5] = ["arguments", "bind", "consent", "dispatch", "emit"];

/// What came of a call.
pub(crate) struct Played {
    /// The phases that it went through; the last one may be where it stopped.
    pub path: String,
    /// What the layers said together: allow, ask, deny, or not decided.
    pub verdict: &'static str,
    /// Who decided: layer/component and rule.
    pub by: Option<String>,
    /// How an ask was settled.
    pub consent: Option<String>,
    /// How the call ended, as a code.
    pub outcome: String,
    /// The exit code that `call` would give.
    pub exit: Exit,
    /// The answer's text.
    pub answer: String,
    /// How long it took, people's time included.
    pub milliseconds: f64,
    /// How often the person was asked.
    pub asked: usize,
    /// What did not go as the story says.
    pub fault: Option<String>,
}

/// Plays a scene.
pub(crate) async fn play(house: &House, scene: &Scene) -> Played {
    match scene.before {
        Before::Nothing => {}
        Before::WriteFileChanges => house.change_write_file().await,
    }
    house.person.will_answer(scene.answer);
    let Ok(reference) = ToolRef::parse(scene.tool) else { return Played::nowhere(scene) };
    let call = SessionCall::new(Target::from(reference), scene.arguments);
    let finished = house.session.call(call).await;
    let consent = house.recorder.decisions().into_iter().rev().find(|record| record.call == finished.item.call.id);
    let mut played = Played::of(&finished, consent.map(|record| record.consent), house.person.asked());
    played.fault = differs(scene, &played);
    played
}

/// Holds what happened against the story.
fn differs(scene: &Scene, played: &Played) -> Option<String> {
    let asked = usize::from(scene.answer.is_some());
    if played.outcome != scene.outcome {
        return Some(format!("the call should have ended as {}", scene.outcome));
    }
    if scene.by.is_some() && played.by.as_deref() != scene.by {
        return Some(format!("{} should have decided", scene.by.unwrap_or_default()));
    }
    if played.asked != asked {
        return Some(format!("the person was asked {} times instead of {asked}", played.asked));
    }
    (!played.answer.contains(scene.says)).then(|| format!("the answer should say `{}`", scene.says))
}

impl Played {
    fn of(finished: &Finished, consent: Option<Consent>, asked: usize) -> Self {
        let outcome = &finished.item.outcome;
        let (word, stage) = match outcome {
            Outcome::Answered => ("answered".to_owned(), None),
            Outcome::ToolError => ("tool-error".to_owned(), None),
            Outcome::Failed(failure) => (failure.code.as_str().to_owned(), Some(failure.stage)),
        };
        let (verdict, by) = finished.decision.as_ref().map_or(("not decided", None), decided);
        Self {
            // A call that is stale before anybody decided was stopped where it was bound.
            path: path(stage.map(|stage| {
                if finished.decision.is_none() && stage == Stage::Lease { Stage::Prepare } else { stage }
            })),
            verdict,
            by,
            consent: consent.and_then(|consent| settled(&consent, outcome)),
            outcome: word,
            exit: Exit::of(outcome),
            answer: answer(finished),
            milliseconds: finished.item.durations.wall.as_secs_f64() * 1000.0,
            asked,
            fault: None,
        }
    }

    fn nowhere(scene: &Scene) -> Self {
        Self {
            path: String::new(),
            verdict: "not decided",
            by: None,
            consent: None,
            outcome: "no-call".to_owned(),
            exit: Exit::Failed,
            answer: String::new(),
            milliseconds: 0.0,
            asked: 0,
            fault: Some(format!("`{}` is no tool", scene.tool)),
        }
    }

    /// One line of `--format json`.
    pub(crate) fn as_json(&self, scene: &Scene) -> Value {
        json!({
            "tool": scene.tool,
            "arguments": scene.arguments,
            "title": scene.title,
            "path": self.path,
            "verdict": self.verdict,
            "by": self.by,
            "consent": self.consent,
            "asked": self.asked,
            "outcome": self.outcome,
            "exit": self.exit as u8,
            "answer": self.answer,
            "wall_ms": self.milliseconds,
            "as_told": self.fault.is_none(),
        })
    }
}

fn path(stopped: Option<Stage>) -> String {
    let last = match stopped {
        None => return PHASES.join(" > "),
        Some(Stage::Payload | Stage::Hook | Stage::Arguments) => 0,
        Some(Stage::Prepare) => 1,
        Some(Stage::Connector | Stage::Approval) => 2,
        Some(Stage::Files | Stage::Lease | Stage::Record | Stage::Call) => 3,
        Some(Stage::Sanitise) => 4,
    };
    let passed: Vec<&str> = PHASES.iter().copied().take(last + 1).collect();
    format!("{} | stopped", passed.join(" > "))
}

/// What the layers said together, and who is behind it: of several, the most trusted.
fn decided(decision: &Decision) -> (&'static str, Option<String>) {
    match &decision.folded {
        Folded::Deny(refusals) => {
            let first = refusals.iter().max_by(|a, b| a.source.layer.cmp(&b.source.layer));
            ("deny", first.map(|refusal| origin(&refusal.source, refusal.reason.rule.as_ref())))
        }
        Folded::Ask(asks) => {
            let first = asks.iter().max_by(|a, b| a.key.source.layer.cmp(&b.key.source.layer));
            ("ask", first.map(|ask| origin(&ask.key.source, ask.key.rule.as_ref())))
        }
        Folded::Run { lifted_by } => {
            let allowing = decision.voices.iter().filter_map(|voice| match &voice.spoken {
                Spoken::Verdict(Verdict::Allow(reason)) => Some((&voice.source, reason.rule.as_ref())),
                Spoken::Verdict(Verdict::Abstain | Verdict::Ask(_) | Verdict::Deny(_)) | Spoken::Fault(_) => None,
            });
            let who = |(source, _): &(&Source, Option<&RuleId>)| match lifted_by {
                Some(lifting) => *source == lifting,
                None => source.layer.kind() == LayerKind::Builtin,
            };
            let first = allowing.into_iter().find(who);
            ("allow", first.map(|(source, rule)| origin(source, rule)))
        }
    }
}

fn origin(source: &Source, rule: Option<&RuleId>) -> String {
    match rule {
        Some(rule) => format!("{source} {rule}"),
        None => source.to_string(),
    }
}

/// Layer/component and rule, for people.
pub(crate) fn spelled(by: &str) -> String {
    match by.split_once(' ') {
        Some((source, rule)) => format!("{source}, rule {rule}"),
        None => by.to_owned(),
    }
}

fn settled(consent: &Consent, outcome: &Outcome) -> Option<String> {
    use portcullis::model::verdict::Remember;

    match consent {
        Consent::Unasked => None,
        Consent::Grant { .. } => Some("agreed to earlier in this session".to_owned()),
        Consent::Hook { source } => Some(format!("allowed by the hook {source}")),
        Consent::Reviewed { source } => Some(format!("allowed by the automatic reviewer {source}")),
        Consent::Agreed { remember, .. } => Some(match remember {
            Remember::Never => "the person agreed, for this call".to_owned(),
            Remember::Session => "the person agreed, for the session".to_owned(),
            Remember::Always => "the person agreed, until something changes".to_owned(),
        }),
        Consent::Refused => match outcome {
            Outcome::Failed(failure) if failure.code == portcullis::model::outcome::Code::Declined => {
                Some("the person said no".to_owned())
            }
            Outcome::Failed(failure) => failure.detail.as_deref().map(|detail| {
                // The detail begins with who refused, which stands before it already.
                let text = detail.split_once(": ").map_or(detail, |(_, text)| text);
                shown(text, ANSWER)
            }),
            Outcome::Answered | Outcome::ToolError => None,
        },
    }
}

fn answer(finished: &Finished) -> String {
    let texts = finished.clean.result().content().iter().filter_map(|block| block.get("text")?.as_str());
    shown(&texts.collect::<Vec<_>>().join(" "), ANSWER)
}
