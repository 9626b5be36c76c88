//! The task of one server: connect, list, publish, watch, and again.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

use super::live::{Listed, Shared};
use super::server::{Server, ServerSpec, ServerState, Since};
use crate::model::name::ServerName;
use crate::model::revision::ConnectionId;
use crate::model::text;
use crate::ports::upstream::{
    Connection, ConnectionEvent, ListFailure, Listing, StartFailure, UpstreamEvents, UpstreamLog,
};

/// How long a server must be quiet before its list is read again: real servers send several changes at start.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// The longest that changes are gathered.
const DEBOUNCE_MAX: Duration = Duration::from_secs(1);
/// A connection that lived this long is no failure of the start.
const STEADY: Duration = Duration::from_secs(10);
/// How often in a row a connection may end early before its server counts as failed.
const EARLY_ENDS: u32 = 3;
/// How long after a changed list could not be read it is read again; doubled each time.
const RELIST: Duration = Duration::from_secs(5);
/// The longest wait before a changed list is read again.
const RELIST_MAX: Duration = Duration::from_secs(300);

/// One server and what its task needs.
pub(super) struct Supervised {
    name: ServerName,
    server: Arc<Server>,
    /// What it is run by; another one may come at any time.
    specs: watch::Receiver<Arc<ServerSpec>>,
    shared: Arc<Shared>,
}

/// Why watching a connection ended.
enum Ended {
    Stop,
    Closed(StartFailure),
}

impl Supervised {
    /// None: the server is not run.
    pub(super) fn new(name: ServerName, server: Arc<Server>, shared: Arc<Shared>) -> Option<Self> {
        let specs = server.specs()?;
        Some(Self { name, server, specs, shared })
    }

    fn spec(&self) -> Arc<ServerSpec> {
        Arc::clone(&self.specs.borrow())
    }
}

/// What follows one life of a server.
enum Next {
    Stop,
    /// It is started again at once, and listed meanwhile.
    Again,
    Rest(StartFailure),
}

/// Runs a server until it is stopped, by itself or with the fleet.
///
/// A panic of one life is a failure of the start like any other: nobody waits for ever for a server that nobody starts.
pub(super) async fn run(server: Supervised) {
    let mut failures = 0;
    loop {
        server.server.state.send_replace(ServerState::Starting);
        if failures == 0 {
            // One that has just failed is not listed again at each of its next attempts: the list would come and go.
            server.shared.remember(&server.name, &server.server).await;
        }
        let spec = server.spec();
        let next = match AssertUnwindSafe(server.life(&spec, &mut failures)).catch_unwind().await {
            Ok(next) => next,
            Err(_panic) => {
                failures += 1;
                tracing::error!(server = %server.name, "the task of this server panicked");
                Next::Rest(StartFailure::Spawn("an error in the host itself ended its task".to_owned()))
            }
        };
        match next {
            Next::Stop => break,
            Next::Again => {}
            Next::Rest(failure) => match server.rest(failure, failures, &spec).await {
                Rested::Stop => break,
                Rested::Again => {}
                Rested::Anew => failures = 0,
            },
        }
    }
    server.shared.publish(&server.name, &server.server, None).await;
    server.server.state.send_replace(ServerState::Stopped);
}

/// What ends the wait between two attempts.
enum Rested {
    Stop,
    Again,
    /// It is configured otherwise: whatever failed before may work now.
    Anew,
}

impl Supervised {
    /// Starts it, publishes it, and watches it until it ends.
    async fn life(&self, spec: &ServerSpec, failures: &mut u32) -> Next {
        let started = tokio::select! {
            biased;
            () = self.server.stop.cancelled() => return Next::Stop,
            started = self.start(spec) => started,
        };
        let (connection, listing, signals) = match started {
            Ok(started) => started,
            Err(failure) => {
                tracing::warn!(server = %self.name, %failure, "start failed");
                *failures += 1;
                return Next::Rest(failure);
            }
        };
        let retiring = Retiring(&signals);
        self.publish(&connection, listing).await;
        *self.server.live.lock() = Some(Arc::downgrade(&connection));
        self.server.tried.store(true, Ordering::Release);
        self.server.state.send_replace(ServerState::Ready);
        tracing::info!(server = %self.name, "ready");
        let since = Instant::now();
        let ended = self.watch(&connection, &signals).await;
        connection.close().await;
        let told = signals.closed();
        drop(retiring);
        let Ended::Closed(failure) = ended else { return Next::Stop };
        // A call may have found it closed before its end was told with the reason.
        let failure = told.filter(|why| why != "closed").map_or(failure, StartFailure::Ended);
        tracing::warn!(server = %self.name, %failure, "connection closed");
        *failures = if since.elapsed() >= STEADY { 0 } else { *failures + 1 };
        if *failures < EARLY_ENDS && self.spec().back_off.restarts { Next::Again } else { Next::Rest(failure) }
    }

    async fn start(&self, spec: &ServerSpec) -> Result<(Arc<dyn Connection>, Listing, Arc<Signals>), StartFailure> {
        let signals = Arc::new(Signals::new(self));
        let events: Arc<dyn UpstreamEvents> = Arc::clone(&signals) as _;
        let timeout = spec.startup_timeout;
        let connection = spec.upstream.connect(Instant::now() + timeout, events).await?;
        match list(&*connection, spec).await {
            Ok(listing) => Ok((connection, listing, signals)),
            Err(failure) => {
                connection.close().await;
                Err(StartFailure::List(failure))
            }
        }
    }

    async fn publish(&self, connection: &Arc<dyn Connection>, listing: Listing) {
        self.shared.publish(&self.name, &self.server, Some(Listed::of(connection, listing))).await;
    }

    async fn watch(&self, connection: &Arc<dyn Connection>, signals: &Signals) -> Ended {
        let mut patience = RELIST;
        let mut relist = None;
        loop {
            tokio::select! {
                biased;
                () = self.server.stop.cancelled() => return Ended::Stop,
                () = signals.changed.notified() => {}
                () = self.server.wanted.notified() => {}
                () = until(relist) => {}
            }
            let dirty = self.server.dirty.lock().take() == Some(connection.id());
            if let Some(why) = signals.closed() {
                return Ended::Closed(StartFailure::Ended(why));
            }
            if dirty || !connection.is_open() {
                return Ended::Closed(StartFailure::Ended("the connection is closed".to_owned()));
            }
            // Somebody thought that an older connection was this one.
            self.server.state.send_if_modified(|state| state.replace(&ServerState::Starting, ServerState::Ready));
            if signals.tools_changed.swap(false, Ordering::AcqRel) {
                let listing = async {
                    self.gather(signals).await;
                    list(&**connection, &self.spec()).await
                };
                let listed = tokio::select! {
                    biased;
                    // A server that lists slowly does not hold up the end.
                    () = self.server.stop.cancelled() => return Ended::Stop,
                    listed = listing => listed,
                };
                relist = None;
                match listed {
                    Ok(listing) => {
                        patience = RELIST;
                        self.publish(connection, listing).await;
                    }
                    Err(ListFailure::Closed) => {}
                    // The list that is known stays; a server that cannot list now may well answer calls.
                    Err(failure) => {
                        tracing::warn!(server = %self.name, %failure, "the changed list could not be read");
                        // Read again after a while: a change is not lost.
                        signals.tools_changed.store(true, Ordering::Release);
                        relist = Some(Instant::now() + patience);
                        patience = patience.saturating_mul(2).min(RELIST_MAX);
                    }
                }
            }
        }
    }

    /// Waits until the server has been quiet for a moment.
    async fn gather(&self, signals: &Signals) {
        let latest = Instant::now() + DEBOUNCE_MAX;
        loop {
            let quiet = (Instant::now() + DEBOUNCE).min(latest);
            let more = tokio::time::timeout_at(quiet, signals.changed.notified()).await.is_ok();
            signals.tools_changed.store(false, Ordering::Release);
            if !more || signals.closed().is_some() || Instant::now() >= latest {
                return;
            }
        }
    }

    /// Takes the server out of the catalog and waits before the next attempt. `tried`: what the last one was made by.
    async fn rest(&self, failure: StartFailure, failures: u32, tried: &ServerSpec) -> Rested {
        self.shared.publish(&self.name, &self.server, None).await;
        let failed = ServerState::Failed { why: failure, since: Since(Instant::now()) };
        self.server.tried.store(true, Ordering::Release);
        self.server.state.send_replace(failed.clone());
        let back_off = tried.back_off;
        let wait = back_off.first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        let until = Instant::now() + wait.min(back_off.longest);
        let tries_again = back_off.restarts && failures < back_off.attempts;
        loop {
            tokio::select! {
                biased;
                () = self.server.stop.cancelled() => return Rested::Stop,
                () = self.other_than(tried) => return Rested::Anew,
                () = tokio::time::sleep_until(until), if tries_again => return Rested::Again,
                () = self.server.wanted.notified() => {
                    // A call that wants the server has set it to starting.
                    let wanted = *self.server.state.borrow() == ServerState::Starting;
                    if wanted && back_off.restarts {
                        return Rested::Again;
                    }
                    if wanted {
                        self.server.state.send_replace(failed.clone());
                    }
                }
            }
        }
    }

    /// Waits until it is run by another configuration.
    async fn other_than(&self, tried: &ServerSpec) {
        let mut specs = self.specs.clone();
        let other = specs.wait_for(|spec| spec.config != tried.config).await.is_ok();
        if !other {
            // The sender lives as long as the server.
            std::future::pending::<()>().await;
        }
    }
}

/// Lists a server that is run by this.
async fn list(connection: &dyn Connection, spec: &ServerSpec) -> Result<Listing, ListFailure> {
    let listing = connection.list(Instant::now() + spec.startup_timeout).await?;
    let most = spec.most_tools();
    if listing.tools.len() > most { Err(ListFailure::TooManyTools(most)) } else { Ok(listing) }
}

/// Waits until then, or for ever.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// What a connection has reported.
struct Signals {
    server: ServerName,
    state: watch::Sender<ServerState>,
    logs: broadcast::Sender<(ServerName, UpstreamLog)>,
    events: Arc<Mutex<BTreeMap<ConnectionEvent, u64>>>,
    tools_changed: AtomicBool,
    closed: Mutex<Option<String>>,
    changed: Notify,
}

impl Signals {
    fn new(server: &Supervised) -> Self {
        Self {
            server: server.name.clone(),
            state: server.server.state.clone(),
            logs: server.shared.logs.clone(),
            events: Arc::clone(&server.server.events),
            tools_changed: AtomicBool::new(false),
            closed: Mutex::new(None),
            changed: Notify::new(),
        }
    }

    /// Nothing that this connection reports from now on counts.
    fn retire(&self) {
        self.closed.lock().get_or_insert_with(String::new);
    }

    fn closed(&self) -> Option<String> {
        self.closed.lock().clone()
    }
}

/// Retires signals when it is dropped, in a panic too: an old connection must not disturb the next one.
struct Retiring<'a>(&'a Signals);

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        self.0.retire();
    }
}

impl UpstreamEvents for Signals {
    fn tools_changed(&self, _connection: ConnectionId) {
        self.tools_changed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    fn log(&self, message: UpstreamLog) {
        // Nobody listening is no error.
        let _ = self.logs.send((self.server.clone(), message));
    }

    fn event(&self, _connection: ConnectionId, event: ConnectionEvent) {
        *self.events.lock().entry(event).or_default() += 1;
    }

    fn closed(&self, _connection: ConnectionId, why: &str) {
        let mut closed = self.closed.lock();
        if closed.is_some() {
            return;
        }
        *closed = Some(text::shown(why, 512));
        // At once, so that the next call waits for the restart instead of meeting a closed connection.
        self.state.send_if_modified(|state| state.replace(&ServerState::Ready, ServerState::Starting));
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicU32;

    use async_trait::async_trait;

    use super::*;
    use crate::adapters::wasm::Engine;
    use crate::host::fleet::{BackOff, Fleet};
    use crate::host::known::KnownLists;
    use crate::host::policies::policy_set;
    use crate::model::caller::{Caller, TenantId};
    use crate::model::digest::Digest;
    use crate::model::posture::PostureLayers;
    use crate::model::tool::ServerIdentity;
    use crate::pipeline::admit::catalog::{Catalog, Names, ServerView};
    use crate::pipeline::admit::naming::{FlatStyle, NameLimit, NamingOptions};
    use crate::ports::upstream::{Fleet as _, Upstream};

    /// Never starts, and counts how often it was asked to.
    #[derive(Default)]
    struct Down(AtomicU32);

    #[async_trait]
    impl Upstream for Down {
        async fn connect(&self, _: Instant, _: Arc<dyn UpstreamEvents>) -> Result<Arc<dyn Connection>, StartFailure> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Err(StartFailure::Spawn("down".to_owned()))
        }
    }

    /// Panics instead of connecting.
    struct Broken;

    #[async_trait]
    impl Upstream for Broken {
        async fn connect(&self, _: Instant, _: Arc<dyn UpstreamEvents>) -> Result<Arc<dyn Connection>, StartFailure> {
            panic!("on purpose");
        }
    }

    /// Waits a simulated day for attempts, then lets a call want the server; returns the attempts at both times.
    async fn attempts(back_off: BackOff) -> (u32, u32) {
        let down = Arc::new(Down::default());
        let fleet = fleet_of(Arc::clone(&down) as _, back_off);
        tokio::time::sleep(Duration::from_secs(86_400)).await;
        let before = down.0.load(Ordering::SeqCst);
        fleet.await_ready(&ServerName::parse("s").unwrap(), &Caller::local("test")).await;
        let after = down.0.load(Ordering::SeqCst);
        fleet.stop().await;
        (before, after)
    }

    fn fleet_of(upstream: Arc<dyn Upstream>, back_off: BackOff) -> Arc<Fleet> {
        let engine = Engine::on_demand().unwrap();
        let policies =
            policy_set(&engine, Vec::new(), Vec::new(), PostureLayers::default(), Vec::new(), Digest::of(b""));
        let names =
            Names { model: NamingOptions::default(), flat: FlatStyle::default(), flat_limit: NameLimit::GATEWAY };
        let name = ServerName::parse("s").unwrap();
        let spec = ServerSpec {
            upstream,
            identity: ServerIdentity(Digest::of(b"s")),
            launch: Digest::of(b"s"),
            config: Digest::of(b"s"),
            view: ServerView::embedded(Duration::from_secs(1), false),
            connectors: BTreeMap::new(),
            filter: Arc::new(|_| None),
            required: true,
            startup_timeout: Duration::from_secs(1),
            back_off,
        };
        let catalog = Arc::new(Catalog::new(Arc::new(policies), names));
        let known = KnownLists::new(TenantId::new("local"));
        Fleet::start(BTreeMap::from([(name, spec)]), BTreeMap::new(), catalog, known)
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_in_a_servers_task_fails_the_server_and_nobody_waits_for_ever() {
        let fleet = fleet_of(Arc::new(Broken), BackOff::default());
        let failure = fleet.await_required().await.unwrap_err();
        assert!(failure.contains("s: could not start: an error in the host itself"), "{failure}");
        fleet.settle_fully().await;
        fleet.stop().await;
        assert_eq!(fleet.status()[0].state, ServerState::Stopped);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_end_after_the_configured_failures_until_a_call_wants_the_server() {
        let back_off = BackOff { attempts: 3, ..BackOff::default() };
        assert_eq!(attempts(back_off).await, (3, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_not_to_be_restarted_is_tried_once() {
        let back_off = BackOff { restarts: false, ..BackOff::default() };
        assert_eq!(attempts(back_off).await, (1, 1));
    }
}
