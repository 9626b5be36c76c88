//! The spans of phases, measured: how long each took without people's time, and what came of asks.
//!
//! The time in which a person is waited for is taken off every phase of the call that is open then, but not off the asking
//! itself: there it is what is measured.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

use super::meter::Instruments;
use crate::model::answerable::QuestionKind;
use crate::model::posture::Channel;
use crate::model::verdict::Remember;
use crate::model::waiting::Waiting;
use crate::ports::telemetry::{ASKED, CALL, CUT, PHASE, Phase, View, scope_word};

/// Listens to the spans of calls.
pub(super) struct Phases {
    instruments: Arc<Instruments>,
}

/// What is kept of an open call.
struct OpenCall {
    begun: Instant,
    people: Waiting,
}

/// What is kept of an open phase.
struct OpenPhase {
    begun: Instant,
    told: Told,
    /// How long people had been waited for when it began.
    before: Duration,
}

/// The words of a phase's span. Each is one of ours: what else stands there is not told on.
#[derive(Default)]
struct Told {
    phase: Option<Phase>,
    server: String,
    channel: Option<Channel>,
    outcome: Option<&'static str>,
    grant: Option<Remember>,
    view: Option<View>,
    form: bool,
}

impl Told {
    fn is_person(&self) -> bool {
        self.phase == Some(Phase::Ask) || self.phase == Some(Phase::Question) && self.form
    }
}

impl Visit for Told {
    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "phase" => self.phase = Phase::ALL.into_iter().find(|phase| phase.as_str() == value),
            "server" => value.clone_into(&mut self.server),
            "channel" => self.channel = Channel::ALL.into_iter().find(|channel| channel.as_str() == value),
            "outcome" => self.outcome = ASKED.into_iter().find(|word| *word == value),
            "grant" => {
                let scopes = [Remember::Never, Remember::Session, Remember::Always];
                self.grant = scopes.into_iter().find(|scope| scope_word(*scope) == value);
            }
            "view" => self.view = View::ALL.into_iter().find(|view| view.as_str() == value),
            "question" => self.form = value == QuestionKind::Elicitation.method(),
            _ => {}
        }
    }
}

impl Phases {
    pub(super) fn new(instruments: Arc<Instruments>) -> Self {
        Self { instruments }
    }

    fn measure(&self, open: &OpenPhase, people: Duration) {
        let (Some(phase), told) = (open.told.phase, &open.told) else { return };
        let took = open.begun.elapsed();
        let took = if told.is_person() { took } else { took.saturating_sub(people.saturating_sub(open.before)) };
        self.instruments.phase(phase.as_str(), &told.server, took);
        if phase == Phase::Ask {
            // Without an outcome its call has ended before anybody answered.
            let (channel, outcome) =
                (told.channel.map_or("none", Channel::as_str), told.outcome.unwrap_or("withdrawn"));
            self.instruments.ask(channel, outcome);
        }
        if let Some(scope) = told.grant {
            self.instruments.grant("found", scope_word(scope));
        }
    }
}

/// Does something with the call that a span belongs to, and returns how long people have been waited for in it.
fn with_call<'a, R: LookupSpan<'a>>(span: &SpanRef<'a, R>, act: impl FnOnce(&mut Waiting, Duration)) -> Duration {
    let call = span.scope().find(|span| span.name() == CALL);
    let Some(call) = call else { return Duration::ZERO };
    let mut extensions = call.extensions_mut();
    let Some(open) = extensions.get_mut::<OpenCall>() else { return Duration::ZERO };
    let now = open.begun.elapsed();
    act(&mut open.people, now);
    open.people.total(now)
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Phases {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let begun = Instant::now();
        match span.name() {
            CALL => span.extensions_mut().insert(OpenCall { begun, people: Waiting::default() }),
            PHASE => {
                let mut told = Told::default();
                attributes.record(&mut told);
                let is_person = told.is_person();
                let before = with_call(&span, |people, now| {
                    if is_person {
                        people.begin(now);
                    }
                });
                span.extensions_mut().insert(OpenPhase { begun, told, before });
            }
            _ => {}
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<OpenPhase>() {
            values.record(&mut open.told);
        }
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if event.metadata().name() != CUT {
            return;
        }
        let mut told = Told::default();
        event.record(&mut told);
        if let Some(view) = told.view {
            self.instruments.truncation(view.as_str());
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<OpenPhase>() else { return };
        let is_person = open.told.is_person();
        let people = with_call(&span, |people, now| {
            if is_person {
                people.end(now);
            }
        });
        self.measure(&open, people);
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::filter_fn;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::adapters::telemetry::listens;
    use crate::adapters::telemetry::tests::Kept;
    use crate::model::name::{CallId, ToolRef};
    use crate::ports::reviewer::Reply;
    use crate::ports::telemetry::{self, About};

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_phase_is_measured_without_the_time_of_people_and_the_asking_with_it() {
        let (instruments, kept) = Kept::instruments();
        let phases = Phases::new(instruments).with_filter(filter_fn(listens));
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(phases));
        let (id, tool) = (CallId::fresh(), ToolRef::parse("files/write").unwrap());
        let about = About::tool(&id, &tool);
        let call = telemetry::call(about);
        let _inside = call.enter();

        let approval = telemetry::phase(Phase::Approval, about);
        pass(1).await;
        let ask = approval.in_scope(|| telemetry::phase(Phase::Ask, about));
        pass(40).await;
        telemetry::replied(&ask, &Reply::Declined);
        drop(ask);
        pass(2).await;
        telemetry::found(&approval, Remember::Always);
        drop(approval);
        // Forms that are open side by side take their time once; what a model is asked is no person's time.
        let answer = telemetry::phase(Phase::Answer, about);
        let form = telemetry::question(about, QuestionKind::Elicitation);
        pass(10).await;
        let other = telemetry::question(about, QuestionKind::Elicitation);
        pass(10).await;
        drop((form, other));
        let model = telemetry::question(about, QuestionKind::Sampling);
        pass(5).await;
        drop((model, answer));

        let sum = |phase: &str| kept.sum("portcullis.phase.duration", &[("phase", phase), ("server", "files")]);
        assert_eq!((sum("approval"), sum("ask")), (3.0, 40.0));
        assert_eq!((sum("answer"), sum("question")), (5.0, 20.0 + 10.0 + 5.0));
        assert_eq!(kept.count("portcullis.asks", &[("channel", "none"), ("outcome", "declined")]), 1);
        assert_eq!(kept.count("portcullis.grants", &[("event", "found"), ("scope", "always")]), 1);
    }

    #[tokio::test]
    async fn an_ask_that_is_dropped_was_withdrawn_and_a_cut_is_counted() {
        let (instruments, kept) = Kept::instruments();
        let phases = Phases::new(instruments).with_filter(filter_fn(listens));
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(phases));
        let (id, tool) = (CallId::fresh(), ToolRef::parse("files/write").unwrap());
        drop(telemetry::phase(Phase::Ask, About::tool(&id, &tool)));
        telemetry::cut(View::Model);
        assert_eq!(kept.count("portcullis.asks", &[("channel", "none"), ("outcome", "withdrawn")]), 1);
        assert_eq!(kept.count("portcullis.truncations", &[("view", "model")]), 1);
    }
}
