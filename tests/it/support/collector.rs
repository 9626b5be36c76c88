//! A collector on 127.0.0.1 that takes OTLP over HTTP in protobuf: keeps what arrives, and answers as a test says.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;

use crate::fakes::Gate;

pub(crate) type Words = BTreeMap<String, String>;

/// A request as it arrived.
#[derive(Clone)]
pub(crate) struct Arrived {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

struct Seen {
    arrived: Mutex<Vec<Arrived>>,
    status: StatusCode,
    gate: Option<Arc<Gate>>,
}

/// A running collector. Ends when dropped.
pub(crate) struct Collector {
    seen: Arc<Seen>,
    task: tokio::task::JoinHandle<()>,
    pub(crate) origin: String,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Collector {
    pub(crate) async fn start() -> Self {
        Self::answering(StatusCode::OK, None).await
    }

    /// Takes what arrives, and answers like this once the gate is open.
    pub(crate) async fn answering(status: StatusCode, gate: Option<Arc<Gate>>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Seen { arrived: Mutex::default(), status, gate });
        let router = Router::new().fallback(take).with_state(Arc::clone(&seen));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { seen, task, origin }
    }

    pub(crate) fn arrived(&self) -> Vec<Arrived> {
        self.seen.arrived.lock().clone()
    }

    fn bodies<T: prost::Message + Default>(&self, path: &str) -> Vec<T> {
        let arrived = self.arrived();
        let of_path = arrived.iter().filter(|arrived| arrived.path == path);
        of_path.map(|arrived| T::decode(arrived.body.clone()).unwrap()).collect()
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let requests = self.bodies::<ExportTraceServiceRequest>("/v1/traces");
        let scopes = requests.into_iter().flat_map(|request| request.resource_spans).flat_map(|one| one.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// The resource of the first spans.
    pub(crate) fn resource(&self) -> Words {
        let requests = self.bodies::<ExportTraceServiceRequest>("/v1/traces");
        words(&requests[0].resource_spans[0].resource.as_ref().unwrap().attributes)
    }

    /// The points of a metric as it was last sent, with their counts.
    pub(crate) fn metric(&self, name: &str) -> Vec<(Words, u64)> {
        let requests = self.bodies::<ExportMetricsServiceRequest>("/v1/metrics");
        let last = requests.last().unwrap();
        let scopes = last.resource_metrics.iter().flat_map(|one| &one.scope_metrics);
        let metric = scopes.flat_map(|scope| &scope.metrics).find(|metric| metric.name == name);
        match metric.and_then(|metric| metric.data.as_ref()) {
            None => Vec::new(),
            Some(Data::Sum(sum)) => {
                let number = |value: &Option<Number>| match value {
                    Some(Number::AsInt(count)) => u64::try_from(*count).unwrap(),
                    other => panic!("{name}: {other:?}"),
                };
                sum.data_points.iter().map(|point| (words(&point.attributes), number(&point.value))).collect()
            }
            Some(Data::Histogram(histogram)) => {
                histogram.data_points.iter().map(|point| (words(&point.attributes), point.count)).collect()
            }
            Some(other) => panic!("{name}: {other:?}"),
        }
    }
}

/// Attributes as text.
pub(crate) fn words(attributes: &[KeyValue]) -> Words {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::BoolValue(value)) => value.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|one| (one.key.clone(), text(&one.value))).collect()
}

async fn take(State(seen): State<Arc<Seen>>, uri: Uri, headers: HeaderMap, body: Bytes) -> StatusCode {
    seen.arrived.lock().push(Arrived { path: uri.path().to_owned(), headers, body });
    if let Some(gate) = &seen.gate {
        gate.pass().await;
    }
    seen.status
}
