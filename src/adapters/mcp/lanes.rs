//! Who shares a server: a connection of its own for every principal or session, where the configuration says so.
//!
//! One connection lists, and serves nobody. Each caller's own is opened before its first call, and closed when its session
//! ends, when it was not used for a while, or with the one that lists. So one caller's state, questions and crashes are no
//! other's. A caller's own server may define its tools otherwise than the one that lists: such a tool is not called, for
//! what was seen and approved is what is called (R24).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
use crate::model::tool::ToolDefinition;
use crate::ports::upstream::{
    Connection, ConnectionEvent, InFlight, ListFailure, Listing, NotSent, OutgoingCall, StartFailure, Unanswered,
    Upstream, UpstreamEvents, UpstreamLog,
};

/// How many callers may have a connection of their own.
const MAX_LANES: usize = 64;
/// How long a connection that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(600);

/// A server that is not shared by everybody.
pub struct Lanes {
    upstream: Arc<dyn Upstream>,
    sharing: Sharing,
}

impl Lanes {
    /// Gives every caller a connection of its own, as `sharing` says; a server that everybody shares stays as it is.
    #[must_use]
    pub fn of(upstream: Arc<dyn Upstream>, sharing: Sharing) -> Arc<dyn Upstream> {
        match sharing {
            Sharing::Process => upstream,
            Sharing::Principal | Sharing::Session => Arc::new(Self { upstream, sharing }),
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
        Ok(Arc::new(Laned {
            upstream: Arc::clone(&self.upstream),
            sharing: self.sharing,
            listing,
            listed: Mutex::default(),
            lanes: Mutex::default(),
            events,
        }))
    }
}

type Definitions = HashMap<RawToolName, Digest>;

/// One caller's own connection, or the place for it.
struct Lane {
    /// Held while it is opened, so that calls at once open one.
    connection: tokio::sync::Mutex<Option<Open>>,
    used: Mutex<Instant>,
    /// Held by every call in flight.
    busy: Arc<()>,
    /// What happens on the connection.
    heard: Arc<Heard>,
}

struct Open {
    connection: Arc<dyn Connection>,
    defined: Definitions,
}

/// The connections of one server.
struct Laned {
    upstream: Arc<dyn Upstream>,
    sharing: Sharing,
    /// The connection that lists.
    listing: Arc<dyn Connection>,
    /// What it listed last.
    listed: Mutex<Definitions>,
    lanes: Mutex<HashMap<Audience, Arc<Lane>>>,
    events: Arc<dyn UpstreamEvents>,
}

impl Laned {
    fn audience(&self, caller: &Caller) -> Audience {
        let session = (self.sharing == Sharing::Session).then(|| caller.session.clone());
        Audience { tenant: caller.tenant.clone(), principal: caller.principal.clone(), session }
    }

    /// Returns the caller's lane, and makes room for it where there is none yet.
    fn lane(&self, key: Audience) -> Result<Arc<Lane>, StartFailure> {
        let (lane, idle) = {
            let mut lanes = self.lanes.lock();
            let idle: Vec<Audience> =
                lanes.iter().filter(|(other, lane)| **other != key && lane.is_idle()).map(|l| l.0.clone()).collect();
            let idle: Vec<Arc<Lane>> = idle.iter().filter_map(|key| lanes.remove(key)).collect();
            if !lanes.contains_key(&key) && lanes.len() >= MAX_LANES {
                let why = format!("{MAX_LANES} callers have a server of their own already");
                return Err(StartFailure::Spawn(why));
            }
            let fresh = || Arc::new(Lane::new(key.clone(), Arc::clone(&self.events)));
            let lane = lanes.entry(key.clone()).or_insert_with(fresh);
            *lane.used.lock() = Instant::now();
            (Arc::clone(lane), idle)
        };
        idle.into_iter().for_each(Lane::retire);
        Ok(lane)
    }

    async fn open(&self, lane: &Lane, deadline: Instant) -> Result<(), StartFailure> {
        let mut place = lane.connection.lock().await;
        let stale = lane.heard.changed.swap(false, Ordering::AcqRel);
        if let Some(open) = place.as_mut().filter(|open| open.connection.is_open()) {
            if stale {
                open.defined = defined(&open.connection.list(deadline).await.map_err(StartFailure::List)?);
            }
            return Ok(());
        }
        *place = None;
        let events = Arc::clone(&lane.heard) as Arc<dyn UpstreamEvents>;
        let connection = self.upstream.connect_for(&lane.heard.audience, deadline, events).await?;
        match connection.list(deadline).await {
            Ok(listing) => {
                *place = Some(Open { defined: defined(&listing), connection });
                Ok(())
            }
            Err(failure) => {
                connection.close().await;
                Err(StartFailure::List(failure))
            }
        }
    }
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
    fn new(audience: Audience, events: Arc<dyn UpstreamEvents>) -> Self {
        Self {
            connection: tokio::sync::Mutex::default(),
            used: Mutex::new(Instant::now()),
            busy: Arc::default(),
            heard: Arc::new(Heard { audience, events, changed: AtomicBool::new(false) }),
        }
    }

    fn is_idle(&self) -> bool {
        self.used.lock().elapsed() >= IDLE && Arc::strong_count(&self.busy) == 1
    }

    /// Closes the connection, in the background: nobody waits for a process to end.
    fn retire(self: Arc<Self>) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { self.close().await });
        }
    }

    async fn close(&self) {
        if let Some(open) = self.connection.lock().await.take() {
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

    async fn hand_over(&self, call: OutgoingCall) -> Result<Box<dyn InFlight>, NotSent> {
        let none = || NotSent("the caller has no server of its own: it could not be started, or has ended".to_owned());
        let lane = self.lanes.lock().get(&self.audience(&call.caller)).map(Arc::clone).ok_or_else(none)?;
        *lane.used.lock() = Instant::now();
        let connection = {
            // Not waited for: under the lease a connection is there or it is not.
            let place = lane.connection.try_lock().map_err(|_| none())?;
            let open = place.as_ref().ok_or_else(none)?;
            let listed = self.listed.lock().get(&call.tool).copied();
            if listed.is_none() || open.defined.get(&call.tool).copied() != listed {
                return Err(NotSent(
                    "the caller's own server defines this tool otherwise than it was listed".to_owned(),
                ));
            }
            Arc::clone(&open.connection)
        };
        let in_flight = connection.hand_over(call).await?;
        Ok(Box::new(InLane { in_flight, _busy: Arc::clone(&lane.busy) }))
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
    audience: Audience,
    events: Arc<dyn UpstreamEvents>,
    changed: AtomicBool,
}

impl UpstreamEvents for Heard {
    fn tools_changed(&self, _connection: ConnectionId) {
        self.changed.store(true, Ordering::Release);
    }

    fn log(&self, message: UpstreamLog) {
        // What one caller's server says is for nobody else.
        self.events.log(UpstreamLog { audience: Some(self.audience.clone()), ..message });
    }

    fn event(&self, connection: ConnectionId, event: ConnectionEvent) {
        self.events.event(connection, event);
    }

    fn closed(&self, _connection: ConnectionId, _why: &str) {}
}
