//! A scripted MCP server: connects, lists and answers as its script says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use portcullis::model::answer::{Answer, ProtocolError, ToolResult};
use portcullis::model::revision::ConnectionId;
use portcullis::ports::upstream::{
    Connection, InFlight, ListFailure, Listing, NotSent, OutgoingCall, StartFailure, Unanswered, Upstream,
    UpstreamEvents, UpstreamLog,
};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Gate, Journal};

/// How a call is answered.
#[derive(Debug, Clone)]
pub(crate) enum How {
    /// With this result object.
    Result(&'static str),
    /// With a protocol error.
    Protocol(i64, &'static str),
    /// Not at all.
    Never,
    /// The connection ends before the answer.
    Lost,
    /// With an empty success, once the gate is open.
    Gated(Arc<Gate>),
    /// The request is refused by the transport, which is closed from now on.
    NotSent,
    /// The request is refused by a transport that goes on working: its queue is full.
    Full,
    /// The transport takes the request only once the gate is open.
    Stuck(Arc<Gate>),
    /// Waiting for the answer panics.
    Panics,
}

pub(crate) const OK: &str = r#"{"content":[{"type":"text","text":"done"}]}"#;

/// How connecting goes.
#[derive(Debug, Clone, Default)]
pub(crate) enum Start {
    #[default]
    Works,
    /// Fails at once.
    Fails(&'static str),
    /// Never ends by itself: fails at the deadline.
    Hangs,
    /// Once the gate is open.
    Gated(Arc<Gate>),
}

/// A request that was handed over.
#[derive(Debug, Clone)]
pub(crate) struct Handed {
    pub(crate) connection: ConnectionId,
    pub(crate) tool: String,
    pub(crate) arguments: Option<Map<String, Value>>,
    pub(crate) meta: Map<String, Value>,
}

/// A scripted server. Its state lives over reconnections.
pub(crate) struct FakeServer {
    pub(crate) name: String,
    journal: Journal,
    tools: Mutex<Vec<String>>,
    how: Mutex<How>,
    start: Mutex<Start>,
    listing: Mutex<Option<Arc<Gate>>>,
    list_fails: AtomicBool,
    wants_sandbox: AtomicBool,
    unremembered: AtomicBool,
    is_child: AtomicBool,
    handed: watch::Sender<Vec<Handed>>,
    connections: Mutex<Vec<Arc<FakeConnection>>>,
    pub(crate) connects: watch::Sender<usize>,
    pub(crate) lists: watch::Sender<usize>,
    pub(crate) cancelled: AtomicUsize,
}

/// A definition of a tool without hints.
pub(crate) fn tool(name: &str) -> String {
    tool_with(name, "{}")
}

/// A definition of a tool with these annotations.
pub(crate) fn tool_with(name: &str, annotations: &str) -> String {
    format!(
        r#"{{"name":"{name}","description":"does {name}","inputSchema":{{"type":"object","properties":{{"path":{{}}}}}},"annotations":{annotations}}}"#
    )
}

impl FakeServer {
    /// A server that answers every call with an empty success.
    pub(crate) fn new(name: &str, journal: &Journal, tools: Vec<String>) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            journal: journal.clone(),
            tools: Mutex::new(tools),
            how: Mutex::new(How::Result(OK)),
            start: Mutex::default(),
            listing: Mutex::default(),
            list_fails: AtomicBool::new(false),
            wants_sandbox: AtomicBool::new(false),
            unremembered: AtomicBool::new(false),
            is_child: AtomicBool::new(false),
            handed: watch::Sender::default(),
            connections: Mutex::default(),
            connects: watch::Sender::new(0),
            lists: watch::Sender::new(0),
            cancelled: AtomicUsize::new(0),
        })
    }

    pub(crate) fn answers(&self, how: How) {
        *self.how.lock() = how;
    }

    pub(crate) fn starts(&self, start: Start) {
        *self.start.lock() = start;
    }

    pub(crate) fn define(&self, tools: Vec<String>) {
        *self.tools.lock() = tools;
    }

    /// Lists only once the gate is open.
    pub(crate) fn lists_at(&self, gate: &Arc<Gate>) {
        *self.listing.lock() = Some(Arc::clone(gate));
    }

    pub(crate) fn list_fails(&self, fails: bool) {
        self.list_fails.store(fails, Ordering::SeqCst);
    }

    /// Whether it asks for the state of the sandbox, from the next list on.
    pub(crate) fn wants_sandbox(&self, wants: bool) {
        self.wants_sandbox.store(wants, Ordering::SeqCst);
    }

    /// Is reached like a child process from now on: what it lists may be remembered, unless it forbids that.
    pub(crate) fn is_child(&self, forbids: bool) {
        self.is_child.store(true, Ordering::SeqCst);
        self.unremembered.store(forbids, Ordering::SeqCst);
    }

    pub(crate) fn tools(&self) -> Vec<String> {
        self.tools.lock().clone()
    }

    /// Everything that was handed over, in order.
    pub(crate) fn handed(&self) -> Vec<Handed> {
        self.handed.borrow().clone()
    }

    /// Waits until so many calls were handed over.
    pub(crate) async fn handed_over(&self, times: usize) {
        self.handed.subscribe().wait_for(|handed| handed.len() >= times).await.unwrap();
    }

    pub(crate) fn last(&self) -> Arc<FakeConnection> {
        Arc::clone(self.connections.lock().last().unwrap())
    }

    pub(crate) fn open_connections(&self) -> usize {
        self.connections.lock().iter().filter(|connection| connection.is_open()).count()
    }

    pub(crate) async fn connected(&self, times: usize) {
        self.connects.subscribe().wait_for(|connects| *connects >= times).await.unwrap();
    }

    pub(crate) async fn listed(&self, times: usize) {
        self.lists.subscribe().wait_for(|lists| *lists >= times).await.unwrap();
    }

    /// A fresh connection without a fleet.
    pub(crate) fn connection(self: &Arc<Self>, events: Option<Arc<dyn UpstreamEvents>>) -> Arc<FakeConnection> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = ConnectionId(NEXT.fetch_add(1, Ordering::Relaxed));
        let server = Arc::clone(self);
        let connection = Arc::new(FakeConnection { id, server, events, open: watch::Sender::new(true) });
        self.connections.lock().push(Arc::clone(&connection));
        connection
    }
}

/// The server as a fleet connects to it.
pub(crate) struct Connects(pub(crate) Arc<FakeServer>);

#[async_trait]
impl Upstream for Connects {
    async fn connect(
        &self,
        deadline: Instant,
        events: Arc<dyn UpstreamEvents>,
    ) -> Result<Arc<dyn Connection>, StartFailure> {
        let server = &self.0;
        server.connects.send_modify(|connects| *connects += 1);
        let start = server.start.lock().clone();
        match start {
            Start::Works => {}
            Start::Fails(why) => return Err(StartFailure::Exited(why.to_owned())),
            Start::Hangs => {
                let begun = Instant::now();
                tokio::time::sleep_until(deadline).await;
                return Err(StartFailure::Timeout(begun.elapsed()));
            }
            Start::Gated(gate) => gate.pass().await,
        }
        Ok(server.connection(Some(events)))
    }

    fn may_be_remembered(&self) -> bool {
        self.0.is_child.load(Ordering::SeqCst)
    }
}

/// One connection to a scripted server.
pub(crate) struct FakeConnection {
    id: ConnectionId,
    server: Arc<FakeServer>,
    events: Option<Arc<dyn UpstreamEvents>>,
    open: watch::Sender<bool>,
}

impl FakeConnection {
    /// The server says that its tools changed.
    pub(crate) fn say_tools_changed(&self) {
        self.events.as_ref().unwrap().tools_changed(self.id);
    }

    pub(crate) fn log(&self, message: UpstreamLog) {
        self.events.as_ref().unwrap().log(message);
    }

    /// The server ends by itself.
    pub(crate) fn die(&self, why: &str) {
        self.open.send_replace(false);
        if let Some(events) = &self.events {
            events.closed(self.id, why);
        }
    }

    /// The transport is closed, and nobody was told.
    pub(crate) fn close_silently(&self) {
        self.open.send_replace(false);
    }
}

#[async_trait]
impl Connection for FakeConnection {
    fn id(&self) -> ConnectionId {
        self.id
    }

    fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    async fn list(&self, deadline: Instant) -> Result<Listing, ListFailure> {
        self.server.lists.send_modify(|lists| *lists += 1);
        let gate = self.server.listing.lock().clone();
        if let Some(gate) = gate {
            let begun = Instant::now();
            let timeout = || ListFailure::Timeout(begun.elapsed());
            tokio::time::timeout_at(deadline, gate.pass()).await.map_err(|_| timeout())?;
        }
        if self.server.list_fails.load(Ordering::SeqCst) {
            return Err(ListFailure::RepeatedCursor);
        }
        let tools = self.server.tools().into_iter().map(Arc::from).collect();
        let wants_sandbox_state = self.server.wants_sandbox.load(Ordering::SeqCst);
        let unremembered = self.server.unremembered.load(Ordering::SeqCst);
        Ok(Listing { tools, instructions: None, wants_sandbox_state, unremembered })
    }

    async fn hand_over(&self, call: OutgoingCall) -> Result<Box<dyn InFlight>, NotSent> {
        if !self.is_open() {
            return Err(NotSent("closed before".to_owned()));
        }
        let how = self.server.how.lock().clone();
        match &how {
            How::NotSent => {
                self.close_silently();
                return Err(NotSent("it has gone".to_owned()));
            }
            How::Full => return Err(NotSent("the queue is full".to_owned())),
            How::Stuck(gate) => gate.pass().await,
            _ => {}
        }
        let tool = call.tool.as_str().to_owned();
        self.server.journal.note(format!("handed over {}/{tool}", self.server.name));
        let handed = Handed { connection: self.id, tool, arguments: call.arguments, meta: call.meta };
        self.server.handed.send_modify(|all| all.push(handed));
        let server = Arc::clone(&self.server);
        Ok(Box::new(Flying { how, server, open: self.open.clone(), landed: false }))
    }

    async fn close(&self) {
        self.open.send_replace(false);
    }
}

struct Flying {
    how: How,
    server: Arc<FakeServer>,
    open: watch::Sender<bool>,
    landed: bool,
}

#[async_trait]
impl InFlight for Flying {
    async fn answer(&mut self) -> Result<Answer, Unanswered> {
        let result = |text: &str| {
            Ok(Answer::Result(ToolResult::from_upstream(serde_json::from_str(text).unwrap(), text.into())))
        };
        let (how, closing) = (self.how.clone(), self.open.clone());
        let mut open = self.open.subscribe();
        let answering = async {
            match how {
                How::Result(text) => result(text),
                How::Protocol(code, message) => {
                    Ok(Answer::Error(ProtocolError { code, message: message.to_owned(), data: None, verbatim: None }))
                }
                How::Never => std::future::pending().await,
                How::Lost => {
                    closing.send_replace(false);
                    Err(Unanswered::Lost("it ended".to_owned()))
                }
                How::Gated(gate) => {
                    gate.pass().await;
                    result(OK)
                }
                How::Stuck(_) => result(OK),
                How::Panics => panic!("the transport panics, as scripted"),
                How::NotSent | How::Full => unreachable!("not handed over"),
            }
        };
        let ended = tokio::select! {
            biased;
            ended = answering => ended,
            _closed = open.wait_for(|open| !open) => Err(Unanswered::Lost("the connection was closed".to_owned())),
        };
        self.landed = true;
        ended
    }

    async fn cancel(mut self: Box<Self>, reason: &str) {
        self.landed = true;
        self.server.cancelled.fetch_add(1, Ordering::SeqCst);
        self.server.journal.note(format!("cancelled: {reason}"));
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        if !self.landed {
            self.server.cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }
}
