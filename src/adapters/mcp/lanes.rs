//! Who shares a server: a connection of its own for every principal or session, where the configuration says so.
//!
//! One connection lists, and serves nobody. Each caller's own is opened before its first call, and closed when its session
//! ends, when it was not used for a while, when others need the room, or with the one that lists. So one caller's state,
//! questions and crashes are no other's. A caller's own server may define its tools otherwise than the one that lists: such a
//! tool is not called, for what was seen and approved is what is called (R24).
//!
//! Nobody can take all the room: a principal has a share of it, and beyond that loses what it used longest ago.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::config::server_keys::Sharing;
use crate::model::answer::Answer;
use crate::model::caller::{Audience, Caller, SessionId};
use crate::model::digest::Digest;
use crate::model::name::RawToolName;
use crate::model::revision::ConnectionId;
use crate::model::sandbox::SANDBOX_STATE;
use crate::model::tool::ToolDefinition;
use crate::ports::upstream::{
    Connection, ConnectionEvent, InFlight, ListFailure, Listing, NotSent, OutgoingCall, StartFailure, Traffic,
    Unanswered, Upstream, UpstreamEvents, UpstreamLog,
};

/// How many callers may have a connection of their own.
const MAX_LANES: usize = 64;
/// How many of them may be one principal's.
const SHARE: usize = 16;
/// How long a connection that nobody uses is kept. Longer than any wait for consent.
const IDLE: Duration = Duration::from_secs(3600);
/// How often unused ones are looked for.
const SWEEP: Duration = Duration::from_secs(600);
/// How long a server that changes its tools is left alone before they are listed.
const GATHER: Duration = Duration::from_millis(100);
/// How long that listing may take.
const RELIST: Duration = Duration::from_secs(30);
/// A connection that could not be opened is not tried again sooner.
const RETRY: Duration = Duration::from_secs(1);

/// A server that is not shared by everybody.
pub struct Lanes {
    upstream: Arc<dyn Upstream>,
    sharing: Sharing,
    restarts: bool,
}

impl Lanes {
    /// Gives every caller a connection of its own, as `sharing` says; a server that everybody shares stays as it is.
    /// `restarts`: whether one that ended is opened again.
    #[must_use]
    pub fn of(upstream: Arc<dyn Upstream>, sharing: Sharing, restarts: bool) -> Arc<dyn Upstream> {
        match sharing {
            Sharing::Process => upstream,
            Sharing::Principal | Sharing::Session => Arc::new(Self { upstream, sharing, restarts }),
        }
    }
}

#[async_trait]
impl Upstream for Lanes {
    async fn connect(
        &self,
        deadline: Instant,
        events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        let listing = self.upstream.connect(deadline, Arc::clone(&events)).await?;
        let laned = Arc::new(Laned {
            upstream: Arc::clone(&self.upstream),
            sharing: self.sharing,
            restarts: self.restarts,
            listing,
            listed: Mutex::default(),
            lanes: Mutex::default(),
            events,
        });
        tokio::spawn(sweep(Arc::downgrade(&laned)));
        Ok(laned)
    }

    fn may_be_remembered(&self) -> bool {
        self.upstream.may_be_remembered()
    }
}

/// Closes what nobody uses, for as long as the server is there.
async fn sweep(laned: Weak<Laned>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(laned) = laned.upgrade() else { return };
        let unused = laned.lanes.lock().extract_if(|_, lane| lane.is_unused_for(IDLE)).collect::<Vec<_>>();
        unused.into_iter().for_each(|(_, lane)| lane.retire());
    }
}

type Definitions = HashMap<RawToolName, Digest>;

/// One caller's own connection, or the place for it.
struct Lane {
    /// Held while it is opened, so that calls at once open one; and why it could not be opened last.
    opening: tokio::sync::Mutex<Option<(Instant, StartFailure)>>,
    open: Mutex<Option<Arc<Open>>>,
    used: Mutex<Instant>,
    /// Held by every call in flight.
    busy: Arc<()>,
    /// What happens on the connection.
    heard: Arc<Heard>,
}

struct Open {
    connection: Arc<dyn Connection>,
    defined: Definitions,
    /// Whether it asked for the state of the sandbox itself.
    wants_sandbox_state: bool,
}

impl Open {
    fn of(connection: Arc<dyn Connection>, listing: &Listing) -> Self {
        Self { connection, defined: defined(listing), wants_sandbox_state: listing.wants_sandbox_state }
    }
}

/// The connections of one server.
struct Laned {
    upstream: Arc<dyn Upstream>,
    sharing: Sharing,
    restarts: bool,
    /// The connection that lists.
    listing: Arc<dyn Connection>,
    /// What it listed last.
    listed: Mutex<Definitions>,
    lanes: Mutex<HashMap<Audience, Arc<Lane>>>,
    events: Arc<dyn UpstreamEvents>,
}

fn same_principal(one: &Audience, other: &Audience) -> bool {
    one.tenant == other.tenant && one.principal == other.principal
}

impl Laned {
    fn audience(&self, caller: &Caller) -> Audience {
        let session = (self.sharing == Sharing::Session).then(|| caller.session.clone());
        Audience { session, ..Audience::of(caller) }
    }

    /// Returns the caller's lane, and makes room for it where there is none yet.
    fn lane(&self, audience: Audience) -> Result<Arc<Lane>, StartFailure> {
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.get(&audience) {
            *lane.used.lock() = Instant::now();
            return Ok(Arc::clone(lane));
        }
        let own = lanes.keys().filter(|other| same_principal(other, &audience)).count();
        if own >= SHARE || lanes.len() >= MAX_LANES {
            // Its own oldest where it has had its share, else that of whoever has most.
            let of = if own >= SHARE { audience.clone() } else { greediest(&lanes, &audience) };
            let unused = lanes.iter().filter(|(other, lane)| same_principal(other, &of) && !lane.is_busy());
            let oldest = unused.min_by_key(|(_, lane)| *lane.used.lock()).map(|(other, _)| other.clone());
            let Some(lane) = oldest.and_then(|oldest| lanes.remove(&oldest)) else {
                let why = "too many callers have a connection of their own, and all are in use";
                return Err(StartFailure::Spawn(why.to_owned()));
            };
            lane.retire();
        }
        let lane = Lane::new(audience.clone(), Arc::clone(&self.events));
        lanes.insert(audience, Arc::clone(&lane));
        Ok(lane)
    }

    async fn open(&self, lane: &Lane, deadline: Instant) -> Result<(), StartFailure> {
        let mut last = lane.opening.lock().await;
        let open = lane.open.lock().clone();
        if let Some(open) = &open
            && open.connection.is_open()
        {
            return lane.list_again(open, deadline).await;
        }
        if open.is_some() && !self.restarts {
            return Err(StartFailure::Ended("it is not to be started again".to_owned()));
        }
        if let Some((since, failure)) = &*last
            && since.elapsed() < RETRY
        {
            return Err(failure.clone());
        }
        match self.start(lane, deadline).await {
            Ok(open) => {
                *last = None;
                *lane.open.lock() = Some(Arc::new(open));
                Ok(())
            }
            Err(failure) => {
                *last = Some((Instant::now(), failure.clone()));
                Err(failure)
            }
        }
    }

    async fn start(&self, lane: &Lane, deadline: Instant) -> Result<Open, StartFailure> {
        lane.heard.changed.store(false, Ordering::Release);
        let events = Arc::clone(&lane.heard) as Arc<dyn UpstreamEvents>;
        let connection = self.upstream.connect_for(&lane.heard.audience, deadline, events).await?;
        match connection.list(deadline).await {
            Ok(listing) => Ok(Open::of(connection, &listing)),
            Err(failure) => {
                connection.close().await;
                Err(StartFailure::List(failure))
            }
        }
    }
}

/// The principal with the most lanes; `other` where nobody has any.
fn greediest(lanes: &HashMap<Audience, Arc<Lane>>, other: &Audience) -> Audience {
    let count = |of: &&Audience| lanes.keys().filter(|audience| same_principal(audience, of)).count();
    lanes.keys().max_by_key(count).unwrap_or(other).clone()
}

fn defined(listing: &Listing) -> Definitions {
    let parsed = listing.tools.iter().filter_map(|text| ToolDefinition::parse(text).ok());
    let mut defined = Definitions::new();
    for tool in parsed {
        // Of two with one name the first counts, as in the catalog.
        defined.entry(tool.name().clone()).or_insert_with(|| tool.digest());
    }
    defined
}

impl Lane {
    fn new(audience: Audience, events: Arc<dyn UpstreamEvents>) -> Arc<Self> {
        Arc::new_cyclic(|lane| Self {
            opening: tokio::sync::Mutex::default(),
            open: Mutex::default(),
            used: Mutex::new(Instant::now()),
            busy: Arc::default(),
            heard: Arc::new(Heard { audience, events, changed: AtomicBool::new(false), lane: lane.clone() }),
        })
    }

    /// Lists again once the server has been quiet for a moment.
    async fn refresh(self: Arc<Self>) {
        tokio::time::sleep(GATHER).await;
        let _opening = self.opening.lock().await;
        let open = self.open.lock().clone();
        if let Some(open) = open
            && let Err(failure) = self.list_again(&open, Instant::now() + RELIST).await
        {
            tracing::warn!(%failure, "the changed tools of a caller's own server could not be listed");
        }
    }

    fn is_busy(&self) -> bool {
        Arc::strong_count(&self.busy) > 1
    }

    fn is_unused_for(&self, time: Duration) -> bool {
        self.used.lock().elapsed() >= time && !self.is_busy()
    }

    /// Lists again what has changed. A change that comes meanwhile, and one that could not be listed, still stands.
    async fn list_again(&self, open: &Open, deadline: Instant) -> Result<(), StartFailure> {
        if !self.heard.changed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        match open.connection.list(deadline).await {
            Ok(listing) => {
                *self.open.lock() = Some(Arc::new(Open::of(Arc::clone(&open.connection), &listing)));
                Ok(())
            }
            Err(failure) => {
                self.heard.changed.store(true, Ordering::Release);
                Err(StartFailure::List(failure))
            }
        }
    }

    /// Closes the connection, in the background: nobody waits for a process to end.
    fn retire(self: Arc<Self>) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { self.close().await });
        }
    }

    async fn close(&self) {
        // One that is being opened is closed when it is.
        let _opening = self.opening.lock().await;
        let open = self.open.lock().take();
        if let Some(open) = open {
            open.connection.close().await;
        }
    }
}

#[async_trait]
impl Connection for Laned {
    fn id(&self) -> ConnectionId {
        self.listing.id()
    }

    fn is_open(&self) -> bool {
        self.listing.is_open()
    }

    /// The connections that are open, together.
    fn traffic(&self) -> Traffic {
        let lanes: Vec<Arc<Lane>> = self.lanes.lock().values().cloned().collect();
        // One that is being opened has no bytes to tell of yet.
        let open = |lane: &Arc<Lane>| lane.open.lock().as_ref().map(|open| open.connection.traffic());
        lanes.iter().filter_map(open).fold(self.listing.traffic(), Traffic::and)
    }

    async fn list(&self, deadline: Instant) -> Result<Listing, ListFailure> {
        let listing = self.listing.list(deadline).await?;
        *self.listed.lock() = defined(&listing);
        Ok(listing)
    }

    async fn ready_for(&self, caller: &Caller, deadline: Instant) -> Result<(), StartFailure> {
        let lane = self.lane(self.audience(caller))?;
        let patience = deadline.saturating_duration_since(Instant::now());
        timeout_at(deadline, self.open(&lane, deadline)).await.map_err(|_| StartFailure::Timeout(patience))?
    }

    fn session_ended(&self, session: &SessionId) {
        let mut lanes = self.lanes.lock();
        let ended: Vec<Audience> = lanes.keys().filter(|key| key.session.as_ref() == Some(session)).cloned().collect();
        let ended: Vec<Arc<Lane>> = ended.iter().filter_map(|key| lanes.remove(key)).collect();
        drop(lanes);
        ended.into_iter().for_each(Lane::retire);
    }

    async fn hand_over(&self, mut call: OutgoingCall) -> Result<Box<dyn InFlight>, NotSent> {
        let none = || NotSent("the caller has no server of its own: it could not be started, or has ended".to_owned());
        let lane = self.lanes.lock().get(&self.audience(&call.caller)).map(Arc::clone).ok_or_else(none)?;
        let busy = Arc::clone(&lane.busy);
        *lane.used.lock() = Instant::now();
        let open = lane.open.lock().clone().ok_or_else(none)?;
        let listed = self.listed.lock().get(&call.tool).copied();
        if listed.is_none() || open.defined.get(&call.tool).copied() != listed {
            return Err(NotSent("the caller's own server defines this tool otherwise than it was listed".to_owned()));
        }
        if !open.wants_sandbox_state {
            call.meta.shift_remove(SANDBOX_STATE);
        }
        let in_flight = open.connection.hand_over(call).await?;
        Ok(Box::new(InLane { in_flight, _busy: busy }))
    }

    async fn close(&self) {
        let lanes: Vec<Arc<Lane>> = self.lanes.lock().drain().map(|(_, lane)| lane).collect();
        let all = futures::future::join_all(lanes.iter().map(|lane| lane.close()));
        futures::future::join(all, self.listing.close()).await;
    }
}

/// A call over somebody's own connection.
struct InLane {
    in_flight: Box<dyn InFlight>,
    _busy: Arc<()>,
}

#[async_trait]
impl InFlight for InLane {
    async fn answer(&mut self) -> Result<Answer, Unanswered> {
        self.in_flight.answer().await
    }

    async fn cancel(self: Box<Self>, reason: &str) {
        self.in_flight.cancel(reason).await;
    }
}

/// What happens on somebody's own connection. Its end is no end of the server's.
struct Heard {
    lane: Weak<Lane>,
    audience: Audience,
    events: Arc<dyn UpstreamEvents>,
    changed: AtomicBool,
}

impl UpstreamEvents for Heard {
    fn tools_changed(&self, _connection: ConnectionId) {
        if !self.changed.swap(true, Ordering::AcqRel)
            && let (Some(lane), Ok(runtime)) = (self.lane.upgrade(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(lane.refresh());
        }
    }

    fn log(&self, message: UpstreamLog) {
        // What one caller's server says is for nobody else.
        let audience = message.audience.clone().unwrap_or_else(|| self.audience.clone());
        self.events.log(UpstreamLog { audience: Some(audience), ..message });
    }

    fn event(&self, connection: ConnectionId, event: ConnectionEvent) {
        self.events.event(connection, event);
    }

    fn closed(&self, _connection: ConnectionId, _why: &str) {}
}
