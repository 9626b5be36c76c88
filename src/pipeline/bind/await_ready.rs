//! Waits until the server of a call is ready, or will not be.
//!
//! Refreshes a dirty server first. The result of the wait is ignored on purpose: a server that failed shows up in the next
//! step as a tool that is not available, with the same text as an unknown one (R25).

use crate::model::caller::Caller;
use crate::model::name::ServerName;
use crate::ports::upstream::Fleet;

/// Waits; bounded by the server's startup timeout, which the fleet keeps.
pub async fn await_ready(fleet: &dyn Fleet, server: &ServerName, caller: &Caller) {
    fleet.await_ready(server, caller).await;
}
