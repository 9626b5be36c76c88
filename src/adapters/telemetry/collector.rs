//! The collector: one POST a batch, bounded in time, never repeated. What goes wrong is counted, and told when it begins.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use reqwest::Client;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::Settings;
use crate::model::text::shown;

/// The most bytes that are read of what the collector says to a batch.
const MAX_ANSWER: usize = 64 * 1024;

/// What a batch holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Metrics,
}

/// Where everything is sent.
pub(super) struct Collector {
    client: Client,
    traces: Url,
    metrics: Url,
    headers: HeaderMap,
    timeout: Duration,
    failing: AtomicBool,
    full: AtomicBool,
    dropped: AtomicU64,
    closed: CancellationToken,
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}

impl Collector {
    pub(super) fn new(settings: &Settings, client: Client) -> Self {
        let mut headers = settings.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        Self {
            client,
            traces: below(&settings.endpoint, "v1/traces"),
            metrics: below(&settings.endpoint, "v1/metrics"),
            headers,
            timeout: settings.timeout,
            failing: AtomicBool::new(false),
            full: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            closed: CancellationToken::new(),
        }
    }

    /// Sends a batch. False when it is lost; that is told already.
    pub(super) async fn send(&self, signal: Signal, batch: Vec<u8>) -> bool {
        let sent = tokio::select! {
            biased;
            () = self.closed.cancelled() => return false,
            sent = tokio::time::timeout(self.timeout, self.post(signal, batch)) => sent,
        };
        let why = match sent {
            Ok(Ok(())) => {
                if self.failing.swap(false, Ordering::Relaxed) {
                    tracing::warn!("telemetry is sent again");
                }
                return true;
            }
            Ok(Err(why)) => why,
            Err(_elapsed) => "the collector did not answer in time".to_owned(),
        };
        if !self.failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(why, "telemetry is not sent; calls go on without it");
        }
        false
    }

    async fn post(&self, signal: Signal, batch: Vec<u8>) -> Result<(), String> {
        let url = match signal {
            Signal::Traces => &self.traces,
            Signal::Metrics => &self.metrics,
        };
        let request = self.client.post(url.clone()).headers(self.headers.clone()).body(batch);
        let mut answer = request.send().await.map_err(cause)?;
        if !answer.status().is_success() {
            return Err(format!("the collector answered HTTP {}", answer.status().as_u16()));
        }
        // Read, so that the connection can be used again; what it says of single spans is its own log's business.
        let mut read = 0;
        while let Some(chunk) = answer.chunk().await.map_err(cause)? {
            read += chunk.len();
            if read > MAX_ANSWER {
                break;
            }
        }
        Ok(())
    }

    /// Counts spans that are lost.
    pub(super) fn lost(&self, spans: usize) {
        self.dropped.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Counts a span that the queue has no place for.
    pub(super) fn overflown(&self) {
        self.lost(1);
        if !self.full.swap(true, Ordering::Relaxed) {
            tracing::warn!("spans are dropped: calls end faster than the collector takes their spans");
        }
    }

    /// Returns how many spans were lost.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Ends what is under way, and says what was lost.
    pub(super) fn close(&self) {
        self.closed.cancel();
        let dropped = self.dropped();
        if dropped > 0 {
            tracing::warn!(dropped, "spans were lost");
        }
    }
}

/// The address of a signal, below that of the collector.
fn below(endpoint: &Url, path: &str) -> Url {
    let mut url = endpoint.clone();
    let base = url.path().trim_end_matches('/').to_owned();
    url.set_path(&format!("{base}/{path}"));
    url
}

/// The innermost cause, without the address, which may hold a secret.
fn cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    shown(&cause.to_string(), 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_its_path_below_the_collectors() {
        for (endpoint, traces) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("https://a.example/otlp/", "https://a.example/otlp/v1/traces"),
            ("https://a.example/otlp?key=x", "https://a.example/otlp/v1/traces?key=x"),
        ] {
            assert_eq!(below(&Url::parse(endpoint).unwrap(), "v1/traces").as_str(), traces);
        }
    }
}
