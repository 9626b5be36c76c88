//! Hearing of changed tools from a server of the stateless era: one long request, opened again whenever it ends.
//!
//! The notifications on it are taken out of the stream like those of the older era. While no such request is open a
//! change could be missed, so the tools are listed again whenever it is opened anew.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::era::Era;
use super::link::{Link, Order};
use super::upstream_side::RawAnswer;
use crate::model::answerable::Answerable;
use crate::ports::upstream::ConnectionEvent;

/// The wait before the request is opened again; doubled each time up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(60);
/// A request that was open this long is no failure.
const STEADY: Duration = Duration::from_secs(10);

/// Listens for as long as the connection lives; never returns. With a server that tells no changes, or tells them by
/// itself, just waits.
pub(super) async fn to_changes(link: &Link) {
    let tells = link.peer.peer_info().and_then(|info| info.capabilities.tools.as_ref()?.list_changed) == Some(true);
    if link.side.era() == Era::Legacy || !tells {
        return std::future::pending().await;
    }
    let mut wait = FIRST;
    loop {
        let since = tokio::time::Instant::now();
        let refused = once(link).await;
        if refused {
            tracing::warn!(target: "portcullis::upstream", server = link.side.server(), "the server tells changes of its tools and refuses to be listened to");
            return std::future::pending().await;
        }
        wait = if since.elapsed() >= STEADY { FIRST } else { wait };
        tokio::time::sleep(wait).await;
        wait = wait.saturating_mul(2).min(LONGEST);
        link.side.event(ConnectionEvent::StreamResumed);
        link.side.tools_may_have_changed();
    }
}

/// Listens once; true when the server refuses.
async fn once(link: &Link) -> bool {
    let mut meta = Map::new();
    link.side.era().stamp(&mut meta, Answerable::RELAYED);
    let mut params = Map::new();
    params.insert("notifications".to_owned(), json!({ "toolsListChanged": true }));
    params.insert("_meta".to_owned(), Value::Object(meta));
    let order = Order { method: "subscriptions/listen", params, progress: None, asker: None };
    let Ok(mut pending) = link.send(order).await else { return false };
    // An answer ends the stream in an orderly way; an error is a refusal.
    matches!(pending.raw().await, Ok(RawAnswer::Error(_)))
}
