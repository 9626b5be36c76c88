//! Traces and metrics of calls, sent as OpenTelemetry: OTLP over HTTP, in protobuf.
//!
//! Promises: no call waits for it. What is told goes into a bounded queue or a counter in memory; what does not fit is
//! dropped, counted, and told once. A collector that is down, slow or wrong costs one request at a time, each with a timeout,
//! and nothing else. Nothing is sent but what [`ports::telemetry`](crate::ports::telemetry) tells and what the recorder
//! counts: names, ids and words of ours. The environment has no say: no `OTEL_*` variable changes where anything goes.
//!
//! Does not decide whether there is a subscriber: whoever has one adds [`Telemetry::layer`] to it.

mod collector;
mod meter;
mod phases;
mod recorder;
mod spans;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use reqwest::Client;
use reqwest::header::HeaderMap;
use tracing::Subscriber;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;
use url::Url;

use self::collector::Collector;
use self::meter::Instruments;
use self::phases::Phases;
use self::recorder::Counting;
use self::spans::Queue;
use crate::ports::recorder::Recorder;
use crate::ports::telemetry::TARGET;

/// What is sent, and where.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The collector's address, without the path of a signal.
    pub endpoint: Url,
    /// Headers of every request.
    pub headers: HeaderMap,
    /// Whether spans are sent.
    pub traces: bool,
    /// Whether metrics are sent.
    pub metrics: bool,
    /// How often metrics are sent.
    pub interval: Duration,
    /// How long one request may take.
    pub timeout: Duration,
    /// How many of the calls are traced, 0 to 1.
    pub sampling: f64,
    /// `service.name`.
    pub service_name: String,
    /// Further attributes of the resource.
    pub resource: BTreeMap<String, String>,
    /// The servers that are known: metrics name these, and not many others.
    pub servers: BTreeSet<String>,
}

/// Telemetry that is being sent.
pub struct Telemetry {
    collector: Arc<Collector>,
    tracer: Option<(SdkTracerProvider, spans::Sending)>,
    meter: Option<(SdkMeterProvider, Arc<Instruments>)>,
}

/// Whether something is told by the pipeline: what [`Telemetry::layer`] must be filtered by.
#[must_use]
pub fn listens(metadata: &tracing::Metadata<'_>) -> bool {
    metadata.target() == TARGET
}

impl Telemetry {
    /// Begins. Needs a tokio runtime, which sends; `client` must follow no redirects.
    #[must_use]
    pub fn start(settings: Settings, client: Client) -> Self {
        let resource = resource(&settings);
        let collector = Arc::new(Collector::new(&settings, client));
        let tracer = settings.traces.then(|| {
            let (queue, sending) = Queue::start(Arc::clone(&collector), &resource);
            (spans::provider(queue, settings.sampling, resource.clone()), sending)
        });
        let meter = settings.metrics.then(|| {
            let provider = meter::provider(&collector, settings.interval, resource);
            let instruments = Instruments::new(&provider, &collector, settings.servers);
            (provider, Arc::new(instruments))
        });
        Self { collector, tracer, meter }
    }

    /// Returns the listener for a subscriber. To be filtered by [`listens`]: what else is told in a process is not for sending.
    pub fn layer<S>(&self) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        let mut listeners: Vec<Box<dyn Layer<S> + Send + Sync>> = Vec::new();
        if let Some((_, instruments)) = &self.meter {
            listeners.push(Box::new(Phases::new(Arc::clone(instruments))));
        }
        if let Some((provider, _)) = &self.tracer {
            let traces = tracing_opentelemetry::layer()
                .with_tracer(provider.tracer("portcullis"))
                .with_location(false)
                .with_threads(false)
                .with_target(false)
                .with_tracked_inactivity(false)
                .with_context_activation(false);
            listeners.push(Box::new(traces));
        }
        Box::new(listeners)
    }

    /// Returns a recorder that counts and keeps nothing; none where no metrics are sent.
    #[must_use]
    pub fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        self.meter.as_ref().map(|(_, instruments)| Arc::new(Counting::new(Arc::clone(instruments))) as _)
    }

    /// Sends what is left, for at most this long, and says what was lost.
    pub async fn shutdown(self, within: Duration) {
        let Self { collector, tracer, meter, .. } = self;
        let spans = async {
            if let Some((provider, sending)) = tracer {
                sending.finish().await;
                drop(provider);
            }
        };
        let metrics = async {
            if let Some((meter, _)) = meter {
                // It waits for its own thread, which waits for the collector.
                let ended = tokio::task::spawn_blocking(move || meter.shutdown_with_timeout(within)).await;
                tracing::debug!(ended = ?ended.map(|ended| ended.is_ok()), "the last metrics");
            }
        };
        let all = async { tokio::join!(spans, metrics) };
        let _in_time = tokio::time::timeout(within, all).await;
        collector.close();
    }
}

fn resource(settings: &Settings) -> Resource {
    let attributes = settings.resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    // The usual builder would read the environment.
    Resource::builder_empty()
        .with_attributes(attributes)
        .with_attribute(version)
        .with_service_name(settings.service_name.clone())
        .build()
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use opentelemetry_proto::tonic::metrics::v1::metric::Data;
    use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::metrics::data::ResourceMetrics;
    use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
    use opentelemetry_sdk::metrics::{PeriodicReader, Temporality};
    use parking_lot::Mutex;

    use super::*;

    /// Keeps metrics as they would be sent.
    #[derive(Clone)]
    pub(super) struct Kept {
        last: Arc<Mutex<ExportMetricsServiceRequest>>,
        provider: SdkMeterProvider,
    }

    struct Keeping(Arc<Mutex<ExportMetricsServiceRequest>>);

    impl PushMetricExporter for Keeping {
        async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
            *self.0.lock() = metrics.into();
            Ok(())
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

    impl Kept {
        pub(super) fn instruments() -> (Arc<Instruments>, Self) {
            let last = Arc::new(Mutex::default());
            let reader = PeriodicReader::builder(Keeping(Arc::clone(&last))).build();
            let provider = SdkMeterProvider::builder().with_reader(reader).build();
            let collector = Arc::new(Collector::new(&settings("http://127.0.0.1:1"), client()));
            let instruments = Instruments::new(&provider, &collector, BTreeSet::new());
            (Arc::new(instruments), Self { last, provider })
        }

        /// The count and, of a duration, the sum of the point with exactly these attributes.
        fn point(&self, name: &str, attributes: &[(&str, &str)]) -> (u64, f64) {
            self.provider.force_flush().unwrap();
            let wanted: BTreeMap<_, _> =
                attributes.iter().map(|(key, word)| ((*key).to_owned(), (*word).to_owned())).collect();
            let last = self.last.lock();
            let scopes = last.resource_metrics.iter().flat_map(|one| &one.scope_metrics);
            let metric = scopes.flat_map(|scope| &scope.metrics).find(|metric| metric.name == name);
            let mut found = Vec::new();
            match metric.and_then(|metric| metric.data.as_ref()) {
                Some(Data::Sum(sum)) => found.extend(sum.data_points.iter().map(|point| {
                    let Some(Number::AsInt(count)) = point.value else { panic!("{name} is no counter") };
                    (&point.attributes, (u64::try_from(count).unwrap(), 0.0))
                })),
                Some(Data::Histogram(all)) => found
                    .extend(all.data_points.iter().map(|point| (&point.attributes, (point.count, point.sum.unwrap())))),
                other => panic!("{name}: {other:?}"),
            }
            let word = |value: &Value| match value {
                Value::StringValue(word) => word.clone(),
                Value::BoolValue(value) => value.to_string(),
                other => panic!("{other:?}"),
            };
            let here = |(attributes, _): &&(&Vec<_>, _)| {
                let attributes: &Vec<opentelemetry_proto::tonic::common::v1::KeyValue> = attributes;
                let pairs = attributes.iter().map(|one| {
                    let value = one.value.as_ref().and_then(|value| value.value.as_ref()).unwrap();
                    (one.key.clone(), word(value))
                });
                pairs.collect::<BTreeMap<_, _>>() == wanted
            };
            found.iter().find(here).unwrap_or_else(|| panic!("{name} {attributes:?} is not among {found:?}")).1
        }

        pub(super) fn count(&self, name: &str, attributes: &[(&str, &str)]) -> u64 {
            self.point(name, attributes).0
        }

        pub(super) fn sum(&self, name: &str, attributes: &[(&str, &str)]) -> f64 {
            self.point(name, attributes).1
        }
    }

    pub(super) fn settings(endpoint: &str) -> Settings {
        Settings {
            endpoint: Url::parse(endpoint).unwrap(),
            headers: HeaderMap::new(),
            traces: true,
            metrics: true,
            interval: Duration::from_secs(60),
            timeout: Duration::from_secs(10),
            sampling: 1.0,
            service_name: "portcullis".to_owned(),
            resource: BTreeMap::new(),
            servers: BTreeSet::new(),
        }
    }

    pub(super) fn client() -> Client {
        let provider = rustls::crypto::ring::default_provider();
        let _installed = provider.install_default();
        Client::builder().no_proxy().tls_certs_only([]).build().unwrap()
    }

    #[tokio::test]
    async fn metrics_tell_some_servers_apart_however_many_are_named() {
        let (instruments, _kept) = Kept::instruments();
        instruments.server("known");
        let names: BTreeSet<String> = (0..1000).map(|number| instruments.server(&format!("s{number}"))).collect();
        assert!(names.len() <= 257 && names.contains("other"), "{}", names.len());
        assert_eq!(instruments.server("known"), "known");
    }
}
