//! What is counted and measured, and how it gets to the collector.
//!
//! Every attribute has few values: layers, codes and words of ours, and the names of servers, of which no more than
//! [`MAX_SERVERS`] are told apart. No ids, no tools, no texts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider as _};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider, Temporality};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::runtime::Handle;

use super::collector::{Collector, Signal};

/// How many servers are told apart; the others are one, `other`.
const MAX_SERVERS: usize = 256;

/// The bounds of durations, in seconds: from a component's answer to a person's.
const SECONDS: [f64; 18] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0];

/// Returns a provider whose metrics go to the collector every `interval`.
pub(super) fn provider(collector: &Arc<Collector>, interval: Duration, resource: Resource) -> SdkMeterProvider {
    let exporter = Exporter { collector: Arc::clone(collector), runtime: Handle::current() };
    let reader = PeriodicReader::builder(exporter).with_interval(interval).build();
    SdkMeterProvider::builder().with_resource(resource).with_reader(reader).build()
}

/// Sends metrics. It is called by a thread of the SDK; the runtime does the sending.
struct Exporter {
    collector: Arc<Collector>,
    runtime: Handle,
}

impl PushMetricExporter for Exporter {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let batch = ExportMetricsServiceRequest::from(metrics).encode_to_vec();
        let collector = Arc::clone(&self.collector);
        let sent = self.runtime.spawn(async move { collector.send(Signal::Metrics, batch).await }).await;
        match sent {
            Ok(true) => Ok(()),
            // Counted from the start, so the next ones say it all again.
            Ok(false) | Err(_) => Err(OTelSdkError::InternalFailure("not sent".to_owned())),
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

/// Everything that is counted and measured.
pub(super) struct Instruments {
    servers: Mutex<BTreeSet<String>>,
    calls: Counter<u64>,
    call: Histogram<f64>,
    people: Histogram<f64>,
    phase: Histogram<f64>,
    verdicts: Counter<u64>,
    faults: Counter<u64>,
    asks: Counter<u64>,
    grants: Counter<u64>,
    truncations: Counter<u64>,
}

impl Instruments {
    pub(super) fn new(provider: &SdkMeterProvider, collector: &Arc<Collector>, servers: BTreeSet<String>) -> Self {
        let meter = provider.meter("portcullis");
        let collector = Arc::clone(collector);
        meter
            .u64_observable_counter("portcullis.telemetry.dropped")
            .with_unit("{span}")
            .with_description("Spans that were lost")
            .with_callback(move |observer| observer.observe(collector.dropped(), &[]))
            .build();
        let counter = |name, unit, what| counter(&meter, name, unit, what);
        let seconds = |name, what| seconds(&meter, name, what);
        Self {
            servers: Mutex::new(servers.into_iter().take(MAX_SERVERS).collect()),
            calls: counter("portcullis.calls", "{call}", "Calls that have ended"),
            call: seconds("portcullis.call.duration", "How long calls took, without people's time"),
            people: seconds("portcullis.people.duration", "How long people took, of calls for which they were asked"),
            phase: seconds("portcullis.phase.duration", "How long a phase took, without people's time"),
            verdicts: counter("portcullis.verdicts", "{verdict}", "What components, hooks and reviewers said"),
            faults: counter("portcullis.faults", "{fault}", "Failures of components, hooks and reviewers"),
            asks: counter("portcullis.asks", "{ask}", "Questions to people"),
            grants: counter("portcullis.grants", "{grant}", "Agreements that were found or remembered"),
            truncations: counter("portcullis.truncations", "{answer}", "Answers that were cut to a view's bound"),
        }
    }

    /// A call has ended. `people` is how long people took.
    pub(super) fn call(&self, server: Option<&str>, outcome: &'static str, alone: Duration, people: Duration) {
        let server = KeyValue::new("server", self.server(server.unwrap_or_default()));
        self.calls.add(1, &[server.clone(), KeyValue::new("outcome", outcome)]);
        self.call.record(alone.as_secs_f64(), std::slice::from_ref(&server));
        if people > Duration::ZERO {
            self.people.record(people.as_secs_f64(), &[server]);
        }
    }

    pub(super) fn phase(&self, phase: &'static str, server: &str, took: Duration) {
        let attributes = [KeyValue::new("phase", phase), KeyValue::new("server", self.server(server))];
        self.phase.record(took.as_secs_f64(), &attributes);
    }

    pub(super) fn verdict(&self, layer: &'static str, hook: &'static str, verdict: &'static str, observed: bool) {
        let words = [("layer", layer), ("hook", hook), ("verdict", verdict)];
        let words = words.map(|(key, word)| KeyValue::new(key, word)).into_iter();
        let attributes: Vec<_> = words.chain([KeyValue::new("observed", observed)]).collect();
        self.verdicts.add(1, &attributes);
    }

    pub(super) fn fault(&self, layer: &'static str, hook: &'static str, code: &'static str) {
        self.faults
            .add(1, &[("layer", layer), ("hook", hook), ("code", code)].map(|(key, word)| KeyValue::new(key, word)));
    }

    pub(super) fn ask(&self, channel: &'static str, outcome: &'static str) {
        self.asks.add(1, &[("channel", channel), ("outcome", outcome)].map(|(key, word)| KeyValue::new(key, word)));
    }

    pub(super) fn grant(&self, event: &'static str, scope: &'static str) {
        self.grants.add(1, &[("event", event), ("scope", scope)].map(|(key, word)| KeyValue::new(key, word)));
    }

    pub(super) fn truncation(&self, view: &'static str) {
        self.truncations.add(1, &[KeyValue::new("view", view)]);
    }

    /// The name of a server as it is told: whoever calls may name as many as they like.
    pub(super) fn server(&self, name: &str) -> String {
        let mut known = self.servers.lock();
        if known.contains(name) || name.is_empty() {
            return name.to_owned();
        }
        if known.len() < MAX_SERVERS {
            known.insert(name.to_owned());
            return name.to_owned();
        }
        "other".to_owned()
    }
}

fn counter(meter: &Meter, name: &'static str, unit: &'static str, what: &'static str) -> Counter<u64> {
    meter.u64_counter(name).with_unit(unit).with_description(what).build()
}

fn seconds(meter: &Meter, name: &'static str, what: &'static str) -> Histogram<f64> {
    meter.f64_histogram(name).with_unit("s").with_description(what).with_boundaries(SECONDS.to_vec()).build()
}
