//! Spans on their way to the collector: a bounded queue, and one task that empties it.
//!
//! The SDK's own batch processor sends from a thread of its own, which no asynchronous HTTP client can be driven from, and
//! does not say what it dropped.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, Span, SpanData, SpanLimits, SpanProcessor};
use prost::Message as _;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::collector::{Collector, Signal};

/// How many spans wait at most: what the SDK has by default. A call has some fifteen.
const MAX_QUEUE: usize = 2048;
/// How many go out in one request at most.
const MAX_BATCH: usize = 512;
/// How long a span waits for others: likewise.
const DELAY: Duration = Duration::from_secs(5);
/// How much one span may have; ours have less.
const LIMITS: SpanLimits = SpanLimits {
    max_events_per_span: 0,
    max_attributes_per_span: 32,
    max_links_per_span: 0,
    max_attributes_per_event: 0,
    max_attributes_per_link: 0,
};

/// Returns a provider whose spans go into the queue.
pub(super) fn provider(queue: Queue, sampling: f64, resource: Resource) -> SdkTracerProvider {
    // All that the environment could say otherwise is said here.
    SdkTracerProvider::builder()
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sampling))))
        .with_span_limits(LIMITS)
        .with_resource(resource)
        .with_span_processor(queue)
        .build()
}

/// Takes spans that have ended. Never waits.
#[derive(Debug)]
pub(super) struct Queue {
    spans: Sender<SpanData>,
    collector: Arc<Collector>,
}

/// The task that empties the queue.
pub(super) struct Sending {
    ending: CancellationToken,
    task: JoinHandle<()>,
}

impl Queue {
    pub(super) fn start(collector: Arc<Collector>, resource: &Resource) -> (Self, Sending) {
        let (spans, waiting) = channel(MAX_QUEUE);
        let ending = CancellationToken::new();
        let attributes = ResourceAttributesWithSchema::from(resource);
        let task = tokio::spawn(empty(waiting, Arc::clone(&collector), attributes, ending.clone()));
        (Self { spans, collector }, Sending { ending, task })
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        match self.spans.try_send(span) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.collector.overflown(),
            Err(TrySendError::Closed(_)) => self.collector.lost(1),
        }
    }

    /// The task does that by itself.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl Sending {
    /// Sends what has come until now. Dropping the future lets the task end by itself.
    pub(super) async fn finish(self) {
        self.ending.cancel();
        // It panics nowhere; if it did, there is nothing left to send.
        let _ended = self.task.await;
    }
}

async fn empty(
    mut waiting: Receiver<SpanData>,
    collector: Arc<Collector>,
    resource: ResourceAttributesWithSchema,
    ending: CancellationToken,
) {
    let mut batch = Vec::with_capacity(MAX_BATCH);
    loop {
        let due = gather(&mut waiting, &mut batch, &ending).await;
        if batch.is_empty() && due == Due::Ended {
            return;
        }
        let spans = batch.len();
        let resource_spans = group_spans_by_resource_and_scope(std::mem::take(&mut batch), &resource);
        let request = ExportTraceServiceRequest { resource_spans };
        if !collector.send(Signal::Traces, request.encode_to_vec()).await {
            collector.lost(spans);
        }
    }
}

/// Why a batch goes out now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// It is full, or old enough.
    Whole,
    /// There will be no more.
    Ended,
}

/// Fills a batch. Returns without any span only when there will be none.
async fn gather(waiting: &mut Receiver<SpanData>, batch: &mut Vec<SpanData>, ending: &CancellationToken) -> Due {
    let mut until: Option<Instant> = None;
    loop {
        let old = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let left = MAX_BATCH.saturating_sub(batch.len());
        tokio::select! {
            biased;
            () = ending.cancelled(), if !waiting.is_closed() => waiting.close(),
            come = waiting.recv_many(batch, left) => match come {
                0 => return Due::Ended,
                _ => until = until.or_else(|| Some(Instant::now() + DELAY)),
            },
            () = old => return Due::Whole,
        }
        if batch.len() >= MAX_BATCH {
            return Due::Whole;
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Tracer as _, TracerProvider as _};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::adapters::telemetry::tests::{client, settings};

    /// Sends spans to whoever listens there.
    fn started(listener: &TcpListener) -> (SdkTracerProvider, Sending, Arc<Collector>) {
        let settings = settings(&format!("http://{}", listener.local_addr().unwrap()));
        let collector = Arc::new(Collector::new(&settings, client()));
        let resource = Resource::builder_empty().build();
        let (queue, sending) = Queue::start(Arc::clone(&collector), &resource);
        (provider(queue, 1.0, resource), sending, collector)
    }

    #[tokio::test]
    async fn a_collector_that_hangs_holds_up_nobody_and_what_does_not_fit_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (provider, sending, collector) = started(&listener);
        let tracer = provider.tracer("test");
        let end = |spans: usize| (0..spans).for_each(|_| drop(tracer.start("call")));
        end(MAX_BATCH);
        // The first batch is on its way: it has a request that nobody answers.
        let (mut request, _) = listener.accept().await.unwrap();
        assert!(request.read_u8().await.is_ok());
        end(MAX_QUEUE + 10);
        assert_eq!(collector.dropped(), 10);
        // Nothing goes out any more once there is no time left.
        collector.close();
        sending.finish().await;
        assert_eq!(collector.dropped(), (MAX_BATCH + MAX_QUEUE + 10) as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_answered_is_given_up_after_its_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_provider, _sending, collector) = started(&listener);
        let begun = Instant::now();
        assert!(!collector.send(Signal::Traces, Vec::new()).await);
        assert_eq!(begun.elapsed().as_secs(), 10);
    }

    #[tokio::test]
    async fn what_is_left_at_the_end_goes_out_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (provider, sending, collector) = started(&listener);
        let answering = tokio::spawn(async move {
            let (mut request, _) = listener.accept().await.unwrap();
            let mut bytes = vec![0; 64 * 1024];
            let read = request.read(&mut bytes).await.unwrap();
            request.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            String::from_utf8_lossy(&bytes[..read]).starts_with("POST /v1/traces ")
        });
        drop(provider.tracer("test").start("call"));
        sending.finish().await;
        assert!(answering.await.unwrap());
        assert_eq!(collector.dropped(), 0);
        drop(provider.tracer("test").start("too late"));
        assert_eq!(collector.dropped(), 1);
    }
}
