//! What the client is told unasked: that the list changed, and what upstreams log.
//!
//! A change is told when what the client can see differs from what it was last shown or told; several changes in a row are
//! told once. A client that has listed nothing yet is told of changes once the servers have had their time to start, so
//! that it does not list again for every server that comes up.

#![expect(deprecated, reason = "the newest revision drops logging; the clients served here have it")]

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rmcp::RoleServer;
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam};
use rmcp::service::Peer;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::sync::broadcast::{self, error::RecvError};

use super::{list, search};
use crate::host::listing::Listing;
use crate::host::session::Session;
use crate::model::digest::Digest;
use crate::model::name::ServerName;
use crate::model::text;
use crate::ports::upstream::UpstreamLog;

/// How long changes are gathered.
const GATHER: Duration = Duration::from_millis(50);
/// The largest data of a log message, in bytes of JSON; larger data is cut and becomes a text.
const MAX_DATA: usize = 64 * 1024;
/// The longest name of a logger, in characters.
const MAX_LOGGER: usize = 128;

/// What the client was last shown of the catalog.
#[derive(Debug, Default)]
pub(super) struct Shown {
    visible: Mutex<Option<Digest>>,
    listed: Notify,
}

impl Shown {
    /// Notes that the client gets this list.
    pub(super) fn set(&self, visible: Digest) {
        *self.visible.lock() = Some(visible);
        // The catalog may have changed between the list and this note.
        self.listed.notify_one();
    }

    /// Whether the client has seen something else than this. From now on it counts as told.
    fn differs(&self, now: Digest) -> bool {
        self.visible.lock().replace(now).is_some_and(|before| before != now)
    }
}

fn seen(session: &Session, listing: &Listing) -> Digest {
    list::visible(listing, &search::ours(session, listing))
}

/// Tells the client when its list changes, until the future is dropped, or the client or its session is gone.
pub(super) async fn list_changes(session: Weak<Session>, shown: Arc<Shown>, peer: Peer<RoleServer>) {
    let Some(first) = session.upgrade() else { return };
    let mut revisions = first.host().catalog().watch();
    let visible = seen(&first, &first.catalog().await);
    drop(first);
    shown.visible.lock().get_or_insert(visible);
    loop {
        let Some(now) = session.upgrade() else { return };
        let visible = seen(&now, &now.catalog_now().await);
        drop(now);
        if shown.differs(visible)
            && let Err(error) = peer.notify_tool_list_changed().await
        {
            tracing::debug!(%error, "the client was not told that the list changed");
            return;
        }
        tokio::select! {
            changed = revisions.changed() => if changed.is_err() { return },
            () = shown.listed.notified() => {}
        }
        tokio::time::sleep(GATHER).await;
        revisions.mark_unchanged();
    }
}

/// Passes on what upstreams log, at or above the level that the client wants, until the future is dropped.
pub(super) async fn logs(
    mut logs: broadcast::Receiver<(ServerName, UpstreamLog)>,
    session: Weak<Session>,
    level: Arc<Mutex<LoggingLevel>>,
    peer: Peer<RoleServer>,
) {
    loop {
        let (server, message) = match logs.recv().await {
            Ok(message) => message,
            Err(RecvError::Lagged(missed)) => {
                tracing::debug!(missed, "log messages of upstreams were lost");
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        let Some(session) = session.upgrade() else { return };
        if message.audience.as_ref().is_some_and(|audience| !audience.includes(session.caller())) {
            continue;
        }
        let of = severity(&message.level);
        if rank(of) < rank(*level.lock()) {
            continue;
        }
        let left = session.clean_log(&server, message.logger.as_deref(), &message.data).await;
        let Some((logger, data)) = left else { continue };
        let mut params = LoggingMessageNotificationParam::new(of, bounded(data));
        params.logger = Some(match &logger {
            Some(logger) => format!("{server}/{}", text::shown(logger, MAX_LOGGER)),
            None => server.to_string(),
        });
        if peer.notify_logging_message(params).await.is_err() {
            return;
        }
    }
}

/// A level that the protocol does not know counts as `info`.
fn severity(name: &str) -> LoggingLevel {
    serde_json::from_value(Value::from(name)).unwrap_or(LoggingLevel::Info)
}

fn rank(level: LoggingLevel) -> u8 {
    match level {
        LoggingLevel::Debug => 0,
        LoggingLevel::Info => 1,
        LoggingLevel::Notice => 2,
        LoggingLevel::Warning => 3,
        LoggingLevel::Error => 4,
        LoggingLevel::Critical => 5,
        LoggingLevel::Alert => 6,
        LoggingLevel::Emergency => 7,
    }
}

fn bounded(data: Value) -> Value {
    let text = data.to_string();
    if text.len() <= MAX_DATA { data } else { Value::from(format!("{}…", text::prefix(&text, MAX_DATA))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_and_unknown_ones_count_as_info() {
        let names = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
        assert_eq!(names.map(|name| rank(severity(name))), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(rank(severity("loud")), 1);
    }

    #[test]
    fn data_that_is_too_large_is_cut() {
        assert_eq!(bounded(Value::from("a")), Value::from("a"));
        let large = bounded(Value::from("é".repeat(MAX_DATA)));
        assert!(large.as_str().is_some_and(|text| text.len() <= MAX_DATA + 3 && text.ends_with('…')));
    }
}
