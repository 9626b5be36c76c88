//! What a call tells of itself: a span for each phase on every path, and never a word of arguments, answers or reasons.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use portcullis::adapters::telemetry::listens;
use portcullis::model::layer::LayerKind;
use portcullis::model::verdict::Remember;
use portcullis::pipeline::CallRequest;
use portcullis::pipeline::emit::views::model::{ModelView, ModelViewOptions};
use portcullis::pipeline::emit::views::truncate::Policy;
use portcullis::ports::reviewer::Reply;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use crate::fakes::Gate;
use crate::fakes::bench::Bench;
use crate::fakes::people::{Person, allowed};
use crate::fakes::policy::{Policies, Scripted, deny};
use crate::fakes::server::How;

type Fields = BTreeMap<String, String>;

/// A span as it was told.
#[derive(Debug, Clone, Default)]
struct Told {
    /// The phase, or `call`.
    name: String,
    parent: Option<String>,
    fields: Fields,
    closed: bool,
}

/// Everything that was told in this thread, spans and events.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Told>>>, Arc<Mutex<Vec<Fields>>>);

struct Reading<'a>(&'a mut Fields);

impl Visit for Reading<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

/// Where a span stands in the list.
struct At(usize);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Heard {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let mut told = Told::default();
        attributes.record(&mut Reading(&mut told.fields));
        told.name = told.fields.get("phase").cloned().unwrap_or_else(|| span.name().to_owned());
        let mut list = self.0.lock();
        told.parent = span.parent().map(|parent| list[parent.extensions().get::<At>().unwrap().0].name.clone());
        span.extensions_mut().insert(At(list.len()));
        list.push(told);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let at = context.span(id).unwrap().extensions().get::<At>().unwrap().0;
        values.record(&mut Reading(&mut self.0.lock()[at].fields));
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields::from([("name".to_owned(), event.metadata().name().to_owned())]);
        event.record(&mut Reading(&mut fields));
        self.1.lock().push(fields);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let at = context.span(&id).unwrap().extensions().get::<At>().unwrap().0;
        self.0.lock()[at].closed = true;
    }
}

impl Heard {
    /// Listens in this thread from now on.
    fn here() -> (Self, DefaultGuard) {
        let heard = Self::default();
        let subscriber = tracing_subscriber::registry().with(heard.clone().with_filter(filter_fn(listens)));
        (heard, tracing::subscriber::set_default(subscriber))
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().iter().map(|told| told.name.clone()).collect()
    }

    fn one(&self, name: &str) -> Told {
        let mut found: Vec<Told> = self.0.lock().iter().filter(|told| told.name == name).cloned().collect();
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found.remove(0)
    }

    fn field(&self, name: &str, field: &str) -> Option<String> {
        self.one(name).fields.get(field).cloned()
    }

    /// Each span is closed, and says which call it belongs to.
    fn assert_whole(&self) {
        let call = self.field("call", "call").unwrap();
        for told in self.0.lock().iter() {
            assert!(told.closed, "{} is open", told.name);
            assert_eq!(told.fields["call"], call, "{}", told.name);
            assert_eq!((told.fields["server"].as_str(), told.fields["tool"].as_str()), ("files", "write"));
        }
    }
}

/// The phases of a call that somebody is not asked about, up to its approval.
const AHEAD: [&str; 7] = ["call", "ready", "arguments", "prepare", "files", "approval", "decide"];

#[tokio::test(start_paused = true)]
async fn every_phase_of_an_answered_call_has_its_span() {
    let (heard, _guard) = Heard::here();
    Bench::open().await.write().await;
    let rest = ["turn", "lease", "hand-over", "answer", "sanitise", "complete"];
    assert_eq!(heard.names(), [AHEAD.as_slice(), &rest].concat());
    heard.assert_whole();
    assert_eq!(heard.field("call", "outcome").as_deref(), Some("answered"));
    assert_eq!(heard.field("decide", "verdict").as_deref(), Some("run"));
    for told in heard.0.lock().iter() {
        let parent = match told.name.as_str() {
            "call" => None,
            "decide" => Some("approval"),
            _ => Some("call"),
        };
        assert_eq!(told.parent.as_deref(), parent, "{}", told.name);
    }
}

#[tokio::test(start_paused = true)]
async fn the_spans_of_a_refused_call_end_where_it_ends_and_name_the_layer() {
    let (heard, _guard) = Heard::here();
    let set = Policies::open(&["files"]).with(LayerKind::Managed, "guard", &Scripted::says(deny("no-writes")));
    Bench::new(&set).await.write().await;
    assert_eq!(heard.names(), [AHEAD.as_slice(), &["complete"]].concat());
    heard.assert_whole();
    for (span, field, value) in [
        ("decide", "verdict", "deny"),
        ("decide", "layer", "managed"),
        ("call", "outcome", "denied"),
        ("call", "stage", "approval"),
        ("call", "layer", "managed"),
    ] {
        assert_eq!(heard.field(span, field).as_deref(), Some(value), "{span}.{field}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_while_somebody_is_asked_leaves_no_span_open() {
    let (heard, _guard) = Heard::here();
    let bench = Bench::new(&Policies::new()).await;
    let gate = Gate::closed();
    let person = Person::replying(&bench.journal, [allowed(Remember::Never)]).at(&gate);
    let request = CallRequest { reviewer: person, ..bench.request("files/write", "{}") };
    let cancel = request.cancel.clone();
    let running = bench.spawn(request);
    gate.reached(1).await;
    cancel.cancel();
    running.await.unwrap();
    assert_eq!(heard.names(), [AHEAD.as_slice(), &["ask", "complete"]].concat());
    heard.assert_whole();
    assert_eq!(heard.field("call", "outcome").as_deref(), Some("cancelled"));
    assert_eq!(heard.field("ask", "outcome"), None);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_task_is_dropped_after_it_was_sent_tells_how_it_ended() {
    let (heard, _guard) = Heard::here();
    let bench = Bench::open().await;
    bench.files.answers(How::Never);
    let running = bench.spawn(bench.request("files/write", "{}"));
    bench.files.handed_over(1).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert_eq!(heard.names(), [AHEAD.as_slice(), &["turn", "lease", "hand-over", "answer"]].concat());
    heard.assert_whole();
    assert_eq!(heard.field("call", "outcome").as_deref(), Some("cancelled"));
    assert_eq!(heard.field("call", "stage").as_deref(), Some("call"));
}

#[tokio::test(start_paused = true)]
async fn an_ask_tells_its_channel_and_a_remembered_agreement_how_long_it_holds() {
    let bench = Bench::new(&Policies::new()).await;
    let person = Person::replying(&bench.journal, [allowed(Remember::Session)]);
    let (heard, guard) = Heard::here();
    bench.write_asking(Arc::clone(&person) as _).await;
    let ask = heard.one("ask");
    assert_eq!((ask.fields["channel"].as_str(), ask.fields["outcome"].as_str()), ("program", "allowed"));
    assert_eq!(ask.parent.as_deref(), Some("approval"));
    drop(guard);
    let (heard, _guard) = Heard::here();
    bench.write_asking(person).await;
    assert!(!heard.names().contains(&"ask".to_owned()));
    assert_eq!(heard.field("approval", "grant").as_deref(), Some("session"));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_answers_is_told_as_that() {
    for (reply, outcome) in [(Reply::Declined, "declined"), (Reply::Cancelled, "cancelled"), (Reply::Nobody, "nobody")]
    {
        let (heard, _guard) = Heard::here();
        let bench = Bench::new(&Policies::new()).await;
        bench.write_asking(Person::replying(&bench.journal, [reply])).await;
        assert_eq!(heard.field("ask", "outcome").as_deref(), Some(outcome));
        assert_eq!(heard.field("decide", "verdict").as_deref(), Some("ask"));
    }
}

#[tokio::test(start_paused = true)]
async fn no_span_has_a_word_of_arguments_answers_or_reasons() {
    let (heard, _guard) = Heard::here();
    let reason = "canary reason";
    let set = Policies::open(&["files"]).with(LayerKind::User, "guard", &Scripted::says(deny(reason)));
    for policies in [Policies::open(&["files"]), set] {
        let bench = Bench::new(&policies).await;
        bench.files.answers(How::Result(r#"{"content":[{"type":"text","text":"canary answer"}]}"#));
        let finished = bench.pipeline.run(bench.request("files/write", r#"{"path":"canary argument"}"#)).await;
        let _view = ModelView::of(&finished.clean, Duration::ZERO, &ModelViewOptions::default()).await;
    }
    let told = format!("{:?}{:?}", heard.0.lock(), heard.1.lock());
    assert!(told.contains("denied") && told.contains("answered"));
    assert!(!told.contains("canary"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn a_view_that_is_cut_is_told_once_and_a_whole_one_is_not() {
    let bench = Bench::open().await;
    bench.files.answers(How::Result(
        r#"{"content":[{"type":"text","text":"0123456789012345678901234567890123456789012345678901234567890123456789"},
            {"type":"image","data":"AA==","mimeType":"image/png"}]}"#,
    ));
    let finished = bench.write().await;
    let (heard, _guard) = Heard::here();
    let view = async |policy| {
        let options = ModelViewOptions { truncation: policy, ..ModelViewOptions::default() };
        let _view = ModelView::of(&finished.clean, Duration::ZERO, &options).await;
        std::mem::take(&mut *heard.1.lock())
    };
    assert_eq!(view(Policy::Tokens(10_000)).await, []);
    let cut = Fields::from([("name".to_owned(), "cut".to_owned()), ("view".to_owned(), "model".to_owned())]);
    assert_eq!(view(Policy::Tokens(10)).await, [cut]);
    let large = format!(r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#, "x".repeat(1 << 20));
    bench.files.answers(How::Result(large.leak()));
    bench.write().await;
    let cut = Fields::from([("name".to_owned(), "cut".to_owned()), ("view".to_owned(), "event".to_owned())]);
    assert!(heard.1.lock().contains(&cut), "{:?}", heard.1.lock());
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_person_is_told_apart_from_the_calls_own() {
    let bench = Bench::new(&Policies::new()).await;
    let gate = Gate::closed();
    let person = Person::replying(&bench.journal, [allowed(Remember::Never)]).at(&gate);
    let running = bench.spawn(CallRequest { reviewer: person, ..bench.request("files/write", "{}") });
    gate.reached(1).await;
    tokio::time::advance(Duration::from_secs(40)).await;
    gate.open();
    let durations = running.await.unwrap().item.durations;
    assert_eq!((durations.wall, durations.people), (Duration::from_secs(40), Duration::from_secs(40)));
    assert_eq!((durations.wall_alone(), durations.people_in_call), (Duration::ZERO, Duration::ZERO));
    assert_eq!(durations.call_alone(), durations.call);
}
