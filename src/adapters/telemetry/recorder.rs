//! Counts what is recorded: how calls end, what components, hooks and reviewers said, what is remembered.
//!
//! What a call was decided by in the end is counted, as the record has it; what was decided before the policies changed is
//! not. The record before an upload is left out: another one follows it.

use std::sync::Arc;

use super::meter::Instruments;
use crate::model::cleaning::{SanitiserSaid, SanitiserVoice};
use crate::model::decision::{ConnectorSpoken, ConnectorVoice, Spoken, Voice};
use crate::model::hook::{HookSaid, HookVoice};
use crate::model::item::Item;
use crate::model::review::{Judgement, ReviewSaid, ReviewVoice};
use crate::model::verdict::{Remember, Source, Verdict};
use crate::ports::recorder::{Consent, DecisionRecord, ObservedRecord, RecordFailed, Recorder};
use crate::ports::telemetry::{outcome_word, scope_word};

/// A recorder that counts.
pub(super) struct Counting {
    instruments: Arc<Instruments>,
}

/// What somebody said: a verdict, or a failure.
enum Said {
    Verdict(&'static str),
    Fault(&'static str),
}

impl Counting {
    pub(super) fn new(instruments: Arc<Instruments>) -> Self {
        Self { instruments }
    }

    fn said(&self, source: &Source, hook: &'static str, said: &Said, observed: bool) {
        let layer = source.layer.kind().as_str();
        match said {
            Said::Verdict(verdict) => self.instruments.verdict(layer, hook, verdict, observed),
            Said::Fault(code) => self.instruments.fault(layer, hook, code),
        }
    }

    fn voices(&self, voices: &[Voice]) {
        for voice in voices {
            let said = match &voice.spoken {
                Spoken::Verdict(Verdict::Abstain) => Said::Verdict("abstain"),
                Spoken::Verdict(Verdict::Allow(_)) => Said::Verdict("allow"),
                Spoken::Verdict(Verdict::Ask(_)) => Said::Verdict("ask"),
                Spoken::Verdict(Verdict::Deny(_)) => Said::Verdict("deny"),
                Spoken::Fault(fault) => Said::Fault(fault.code.as_str()),
            };
            self.said(&voice.source, "approval", &said, voice.observed);
        }
    }

    fn connectors(&self, voices: &[ConnectorVoice]) {
        for voice in voices {
            let said = match &voice.spoken {
                ConnectorSpoken::Answer(answer) => Said::Verdict(match answer.enabled {
                    Some(true) => "enabled",
                    Some(false) => "disabled",
                    None => "abstain",
                }),
                ConnectorSpoken::Fault(fault) => Said::Fault(fault.code.as_str()),
            };
            self.said(&voice.source, "connector", &said, voice.observed);
        }
    }

    fn sanitisers(&self, voices: &[SanitiserVoice]) {
        for voice in voices {
            let said = match &voice.said {
                SanitiserSaid::Pass { .. } => Said::Verdict("pass"),
                SanitiserSaid::Edit { .. } => Said::Verdict("edit"),
                SanitiserSaid::Withhold { .. } => Said::Verdict("withhold"),
                SanitiserSaid::Fault(fault) => Said::Fault(fault.code.as_str()),
            };
            self.said(&voice.source, "sanitise", &said, voice.observed);
        }
    }

    fn hooks(&self, voices: &[HookVoice]) {
        for voice in voices {
            let said = match &voice.said {
                HookSaid::Nothing => Said::Verdict("nothing"),
                HookSaid::Allow { .. } => Said::Verdict("allow"),
                HookSaid::Deny { .. } => Said::Verdict("deny"),
                HookSaid::Block { .. } => Said::Verdict("block"),
                HookSaid::Change { .. } => Said::Verdict("change"),
                HookSaid::Failed(fault) => Said::Fault(fault.code.as_str()),
            };
            self.said(&voice.source, voice.event.as_str(), &said, false);
        }
    }

    fn reviews(&self, voices: &[ReviewVoice]) {
        for voice in voices {
            let said = match &voice.said {
                ReviewSaid::Assessed(assessment) => Said::Verdict(match assessment.outcome {
                    Judgement::Allow => "allow",
                    Judgement::Deny => "deny",
                }),
                ReviewSaid::TimedOut => Said::Fault("timeout"),
                ReviewSaid::Failed { .. } => Said::Fault("failed"),
                ReviewSaid::Nobody { .. } => Said::Fault("nobody"),
            };
            self.said(&voice.source, "review", &said, false);
        }
    }
}

impl Recorder for Counting {
    fn item(&self, item: &Item) {
        let Item::Completed(item) = item else { return };
        let server = item.call.tool.server.as_ref().map(|server| server.as_str());
        let durations = item.durations;
        self.instruments.call(server, outcome_word(&item.outcome), durations.wall_alone(), durations.people);
        self.sanitisers(&item.sanitisers);
        self.hooks(&item.hooks);
        self.reviews(&item.reviews);
    }

    fn decision(&self, record: &DecisionRecord) -> Result<(), RecordFailed> {
        if record.uploading {
            return Ok(());
        }
        self.connectors(&record.decision.connectors);
        self.voices(&record.decision.voices);
        match &record.consent {
            Consent::Agreed { not_remembered: true, remember, .. } => {
                self.instruments.grant("not-remembered", scope_word(*remember));
            }
            Consent::Agreed { remember: remember @ (Remember::Session | Remember::Always), .. } => {
                self.instruments.grant("remembered", scope_word(*remember));
            }
            Consent::Agreed { remember: Remember::Never, .. }
            | Consent::Unasked
            | Consent::Grant { .. }
            | Consent::Hook { .. }
            | Consent::Reviewed { .. }
            | Consent::Refused => {}
        }
        Ok(())
    }

    fn observed(&self, record: &ObservedRecord) {
        self.connectors(&record.connectors);
        self.voices(&record.voices);
        self.sanitisers(&record.sanitisers);
        self.hooks(&record.hooks);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::adapters::telemetry::tests::Kept;
    use crate::model::arguments::Arguments;
    use crate::model::caller::Caller;
    use crate::model::decision::Decision;
    use crate::model::digest::Digest;
    use crate::model::hook::{HookEvent, HookFault, HookFaultCode};
    use crate::model::item::{CallInfo, CompletedItem};
    use crate::model::layer::{LayerKind, LayerRef};
    use crate::model::name::{CallId, ToolRef};
    use crate::model::outcome::{Code, Durations, Failure, Outcome, Stage};
    use crate::model::revision::{PolicySetDigest, Revision};
    use crate::model::verdict::{Fault, FaultCode, Folded, Reason};
    use crate::ports::approval::Kind;

    fn source(kind: LayerKind) -> Source {
        Source { layer: LayerRef::new(kind), component: "guard".into(), digest: None }
    }

    fn voice(kind: LayerKind, spoken: Spoken, observed: bool) -> Voice {
        let (fuel, time) = (0, Duration::ZERO);
        Voice { source: source(kind), spoken, posture: None, observed, fuel, time, heard: None }
    }

    fn record() -> ObservedRecord {
        ObservedRecord {
            at: Timestamp::UNIX_EPOCH,
            call: CallId::fresh(),
            kind: Kind::Tool,
            tool: ToolRef::parse("files/write").unwrap(),
            tenant: Caller::local("me").tenant,
            policy_set: PolicySetDigest(Digest::of(b"set")),
            arguments: Digest::of(b"arguments"),
            voices: Vec::new(),
            connectors: Vec::new(),
            sanitisers: Vec::new(),
            hooks: Vec::new(),
        }
    }

    #[tokio::test]
    async fn verdicts_and_faults_are_counted_by_layer_and_hook() {
        let (instruments, kept) = Kept::instruments();
        let counting = Counting::new(instruments);
        let reason = Reason { rule: None, text: "words".to_owned() };
        let deny = Spoken::Verdict(Verdict::Deny(reason));
        let trap = Spoken::Fault(Fault::new(FaultCode::Trap, "it trapped"));
        let hook = |said| HookVoice {
            source: source(LayerKind::User),
            event: HookEvent::PostToolUse,
            said,
            time: Duration::ZERO,
        };
        let (managed, user) = (LayerKind::Managed, LayerKind::User);
        counting.observed(&ObservedRecord {
            voices: vec![voice(managed, deny.clone(), false), voice(managed, deny, true), voice(user, trap, true)],
            hooks: vec![
                hook(HookSaid::Block { reason: "words".to_owned() }),
                hook(HookSaid::Failed(HookFault::new(HookFaultCode::Timeout, "words"))),
            ],
            ..record()
        });
        for (layer, hook, verdict, observed) in [
            ("managed", "approval", "deny", "false"),
            ("managed", "approval", "deny", "true"),
            ("user", "PostToolUse", "block", "false"),
        ] {
            let wanted = [("layer", layer), ("hook", hook), ("verdict", verdict), ("observed", observed)];
            assert_eq!(kept.count("portcullis.verdicts", &wanted), 1);
        }
        for (hook, code) in [("approval", "trap"), ("PostToolUse", "timeout")] {
            assert_eq!(kept.count("portcullis.faults", &[("layer", "user"), ("hook", hook), ("code", code)]), 1);
        }
    }

    fn decision(consent: Consent, uploading: bool) -> DecisionRecord {
        let voices = vec![voice(LayerKind::User, Spoken::Verdict(Verdict::Abstain), false)];
        let (folded, steps) = (Folded::Run { lifted_by: None }, Vec::new());
        DecisionRecord {
            at: Timestamp::UNIX_EPOCH,
            call: CallId::fresh(),
            kind: Kind::Tool,
            tool: ToolRef::parse("files/write").unwrap(),
            caller: Caller::local("me"),
            revision: Revision::FIRST,
            policy_set: PolicySetDigest(Digest::of(b"set")),
            engine: Digest::of(b"engine"),
            definition: Digest::of(b"definition"),
            arguments: Digest::of(b"arguments"),
            files: Vec::new(),
            uploading,
            decision: Decision { connectors: Vec::new(), voices, folded, steps, now_ms: 0 },
            consent,
            hooks: Vec::new(),
            reviews: Vec::new(),
            inputs: None,
        }
    }

    #[tokio::test]
    async fn what_is_remembered_is_counted_and_a_decision_once_however_often_it_is_recorded() {
        let (instruments, kept) = Kept::instruments();
        let counting = Counting::new(instruments);
        let agreed =
            |remember, not_remembered| Consent::Agreed { approver: "ann".to_owned(), remember, not_remembered };
        counting.decision(&decision(agreed(Remember::Always, false), true)).unwrap();
        counting.decision(&decision(agreed(Remember::Always, false), false)).unwrap();
        counting.decision(&decision(agreed(Remember::Session, true), false)).unwrap();
        counting.decision(&decision(agreed(Remember::Never, false), false)).unwrap();
        for (event, scope) in [("remembered", "always"), ("not-remembered", "session")] {
            assert_eq!(kept.count("portcullis.grants", &[("event", event), ("scope", scope)]), 1);
        }
        let abstained = [("layer", "user"), ("hook", "approval"), ("verdict", "abstain"), ("observed", "false")];
        assert_eq!(kept.count("portcullis.verdicts", &abstained), 3);
    }

    #[tokio::test]
    async fn a_call_is_counted_by_how_it_ended_and_measured_without_people() {
        let (instruments, kept) = Kept::instruments();
        let failure = Failure::new(Stage::Approval, Code::Declined, "words");
        let tool = ToolRef::parse("files/write").unwrap();
        let (wall, people) = (Duration::from_secs(43), Duration::from_secs(40));
        Counting::new(instruments).item(&Item::Completed(CompletedItem {
            call: CallInfo::unknown(CallId::fresh(), tool.into(), Caller::local("me"), Arguments::none()),
            status: CompletedItem::status_of(&Outcome::Answered),
            outcome: Outcome::Failed(failure),
            completed_at: Timestamp::UNIX_EPOCH,
            durations: Durations { wall, people, ..Durations::default() },
            tool_input: None,
            result: None,
            error: None,
            sanitisers: Vec::new(),
            hooks: Vec::new(),
            reviews: Vec::new(),
            pollutes_memory: false,
        }));
        let server = ("server", "files");
        assert_eq!(kept.count("portcullis.calls", &[server, ("outcome", "declined")]), 1);
        assert_eq!(kept.sum("portcullis.call.duration", &[server]), 3.0);
        assert_eq!(kept.sum("portcullis.people.duration", &[server]), 40.0);
    }
}
