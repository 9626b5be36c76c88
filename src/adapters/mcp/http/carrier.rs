//! What becomes of a message, and of what comes back for it.
//!
//! Each request is answered exactly once: by what came on the response to its own POST, or by a failure. An answer that names
//! another request is rubbish: no response can settle another call. What a server says meanwhile is taken in the order in
//! which it came on that stream.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method};
use parking_lot::Mutex;
use rmcp::model::RequestId;
use rmcp::service::{RoleClient, RxJsonRpcMessage};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::client::{Failure, HttpClient};
use super::order::{Kind, Order, SESSION, same};
use super::params::ParamHeaders;
use super::reply::{METHOD_NOT_FOUND, Reply};
use super::session::{Opened, Session};
use crate::adapters::mcp::envelope::{Envelope, Id};
use crate::adapters::mcp::era::Era;
use crate::adapters::mcp::transport::{
    Arrival, Inbound, LineEnd, LineRole as _, TransportFault, WayBack, answer_line, error_line,
};
use crate::adapters::mcp::upstream_side::{UpstreamSide, stand_in};
use crate::ports::upstream::ConnectionEvent;

/// How long a notification or an answer of ours may take.
const TELL: Duration = Duration::from_secs(30);
/// How long the renewal of a session may take.
const RENEWAL: Duration = Duration::from_secs(30);
/// How many answers of ours may be on their way.
const MAX_REPLIES: usize = 256;
/// How many messages wait for rmcp.
const INBOX: usize = 64;
/// How many rubbish messages of one connection are logged.
const RUBBISH_LOGGED: u64 = 3;

/// A message for rmcp.
pub(super) type Incoming = RxJsonRpcMessage<RoleClient>;

/// Carries the messages of one connection.
pub(super) struct Carrier {
    pub(super) client: HttpClient,
    pub(super) side: Arc<UpstreamSide>,
    pub(super) session: Session,
    pub(super) params: ParamHeaders,
    pub(super) end: LineEnd,
    /// The largest message, in bytes.
    pub(super) limit: usize,
    /// Ends every task of the connection.
    pub(super) dying: CancellationToken,
    inbox: mpsc::Sender<Incoming>,
    /// Places of requests that are answered soon.
    places: Semaphore,
    replies: Arc<Semaphore>,
    calls: Mutex<HashMap<i64, Call>>,
    /// Bytes of requests that have not been taken by the server.
    waiting: Arc<AtomicUsize>,
    rubbish: AtomicU64,
    this: Weak<Self>,
}

/// A request whose answer is awaited.
struct Call {
    over: CancellationToken,
    posted: bool,
}

/// A request on its way, and what its response says of itself.
pub(super) struct Post<'a> {
    pub(super) order: &'a Order,
    /// The headers of the response.
    headers: HeaderMap,
    /// The session that it was sent in.
    pub(super) generation: u64,
}

/// What a message was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// The answer.
    Answer,
    /// Something else.
    Other,
    /// No message, or an answer to something else.
    Rubbish(&'static str),
}

/// Bytes that wait; they stop when this is dropped.
pub(super) struct Waits(Arc<AtomicUsize>, usize);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Carrier {
    /// Makes a carrier, and what its messages for rmcp come out of. At most `places` requests are made side by side.
    pub(super) fn new(
        client: HttpClient,
        side: Arc<UpstreamSide>,
        limit: usize,
        places: usize,
    ) -> (Arc<Self>, mpsc::Receiver<Incoming>) {
        let (inbox, messages) = mpsc::channel(INBOX);
        let carrier = Arc::new_cyclic(|this| Self {
            client,
            side,
            session: Session::default(),
            params: ParamHeaders::default(),
            end: LineEnd::default(),
            limit,
            dying: CancellationToken::new(),
            inbox,
            places: Semaphore::new(places.clamp(1, Semaphore::MAX_PERMITS)),
            replies: Arc::new(Semaphore::new(MAX_REPLIES)),
            calls: Mutex::default(),
            waiting: Arc::default(),
            rubbish: AtomicU64::new(0),
            this: this.clone(),
        });
        (carrier, messages)
    }

    /// Starts something that ends with the connection.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let dying = self.dying.clone();
        tokio::spawn(async move { dying.run_until_cancelled(task).await });
    }

    /// Says how many bytes wait for the server.
    pub(super) fn waiting(&self) -> Arc<AtomicUsize> {
        self.waiting.clone()
    }

    /// Starts a request; its answer, or why there is none, comes to whoever waits for it.
    pub(super) fn start(&self, order: Order) {
        let Some(carrier) = self.this.upgrade() else { return };
        if order.kind == Kind::Initialize {
            // A server that did not answer what came before is of the older era; its late word is of no interest.
            self.calls.lock().drain().for_each(|(_, call)| call.over.cancel());
            self.session.opens_with(&order);
        }
        self.waiting.fetch_add(order.text.len(), Ordering::Relaxed);
        let waits = Waits(self.waiting.clone(), order.text.len());
        let (over, number) = (CancellationToken::new(), order.number());
        if let Some(number) = number {
            self.calls.lock().insert(number, Call { over: over.clone(), posted: false });
        }
        self.spawn(async move {
            over.run_until_cancelled(carrier.request(&order, waits)).await;
            if let Some(number) = number {
                carrier.calls.lock().remove(&number);
            }
        });
    }

    /// Ends a request that nobody waits for any more; true when the server may have it.
    pub(super) fn give_up(&self, number: i64) -> bool {
        let call = self.calls.lock().remove(&number);
        call.is_some_and(|call| {
            call.over.cancel();
            call.posted
        })
    }

    async fn request(&self, order: &Order, waits: Waits) {
        if let Err(failure) = self.exchange(order, waits).await {
            self.fail(order, failure).await;
        }
    }

    async fn fail(&self, order: &Order, failure: Failure) {
        if order.kind.shakes_hands() {
            self.end.set(failure.why());
            return;
        }
        let Some(id) = &order.id else { return };
        if self.side.failed(id, failure.into()) {
            self.hand_on(stand_in(id.clone())).await;
        }
    }

    async fn exchange(&self, order: &Order, waits: Waits) -> Result<(), Failure> {
        let _place = if order.kind.takes_a_place() { self.places.acquire().await.ok() } else { None };
        if let Some(number) = order.number()
            && let Some(call) = self.calls.lock().get_mut(&number)
        {
            call.posted = true;
        }
        let (post, reply) = self.post(order).await?;
        drop(waits);
        if order.kind == Kind::Discover
            && let Some(session) = post.headers.get(SESSION)
        {
            self.never_meant(session.clone());
        }
        self.take(&post, reply).await
    }

    /// Ends a session that a server of the older era opened for a question of the newer one.
    fn never_meant(&self, session: HeaderValue) {
        let Some(carrier) = self.this.upgrade() else { return };
        self.spawn(async move {
            let headers = HeaderMap::from_iter([(SESSION, session)]);
            // The server forgets it by itself some day.
            let _ = timeout(TELL, carrier.client.send(&Method::DELETE, &headers, None)).await;
        });
    }

    /// Sends a request, in a new session if the server has forgotten the old one.
    async fn post<'a>(&self, order: &'a Order) -> Result<(Post<'a>, Reply), Failure> {
        let mut renewed = false;
        loop {
            let seat = self.session.seat();
            let headers = order.headers(&seat.headers);
            let response = self.client.send(&Method::POST, &headers, Some(&order.text)).await?;
            let post = Post { order, headers: response.headers().clone(), generation: seat.generation };
            let reply = Reply::read(&self.client, response, self.limit).await?;
            let in_session = order.era == Era::Legacy && order.kind != Kind::Initialize && seat.is_named();
            match &reply {
                Reply::Refused(refusal) if in_session && refusal.forgets_session(order.id.as_ref()) => {}
                _ => return Ok((post, reply)),
            }
            if renewed {
                let why = "the server forgot the session again, as soon as it was renewed";
                self.end.set(why);
                return Err(Failure::NotSent(why.to_owned()));
            }
            Box::pin(self.renew(seat.generation)).await?;
            renewed = true;
        }
    }

    /// Opens a new session in the place of the one that the server has forgotten.
    async fn renew(&self, forgotten: u64) -> Result<(), Failure> {
        let _alone = self.session.renewing.lock().await;
        if self.session.seat().generation != forgotten {
            return Ok(());
        }
        let why = match timeout(RENEWAL, self.reopen()).await {
            Ok(Ok(())) => {
                self.side.event(ConnectionEvent::SessionRenewed);
                self.side.tools_may_have_changed();
                return Ok(());
            }
            Ok(Err(why)) => why,
            Err(_) => "no answer in time".to_owned(),
        };
        let why = format!("the server forgot the session, and a new one could not be opened: {why}");
        self.end.set(&why);
        Err(Failure::NotSent(why))
    }

    async fn reopen(&self) -> Result<(), String> {
        let said = |failure: Failure| failure.why().to_owned();
        let Some((initialize, initialized)) = self.session.texts() else { return Err("it was never open".to_owned()) };
        let headers = initialize.headers(&HeaderMap::new());
        let sent = self.client.send(&Method::POST, &headers, Some(&initialize.text)).await;
        let response = sent.map_err(said)?;
        let given = response.headers().clone();
        let answer = match Reply::read(&self.client, response, self.limit).await.map_err(said)? {
            Reply::Json(text) => Some(text),
            Reply::Stream(response) => self.first_answer(response, initialize.id.as_ref()).await,
            Reply::Refused(refusal) => return Err(refusal.failure().why().to_owned()),
            Reply::Accepted | Reply::TooLarge => None,
        };
        let opened = answer.and_then(|text| Opened::read(&text, &given));
        let Some(opened) = opened else { return Err("its answer is not what the protocol says".to_owned()) };
        if !self.session.speaks(&opened) {
            return Err("it speaks another version now".to_owned());
        }
        let headers = initialized.headers(&opened.headers());
        let response = self.client.send(&Method::POST, &headers, Some(&initialized.text)).await.map_err(said)?;
        if !response.status().is_success() {
            return Err(format!("the server answered {}", response.status()));
        }
        self.session.opened(&opened);
        Ok(())
    }

    async fn take(&self, post: &Post<'_>, reply: Reply) -> Result<(), Failure> {
        let (order, Some(id)) = (post.order, &post.order.id) else { return Ok(()) };
        match reply {
            Reply::Json(text) => match self.deliver(&text, Some(post)).await {
                Heard::Answer => Ok(()),
                Heard::Other => {
                    Err(Failure::Unusable("the server answered with a message that is no answer".to_owned()))
                }
                Heard::Rubbish(what) => Err(Failure::Unusable(format!("the server answered with {what}"))),
            },
            Reply::Stream(response) => self.follow(post, response).await,
            Reply::TooLarge => {
                self.oversized(post).await;
                Ok(())
            }
            Reply::Accepted if order.kind == Kind::Discover => self.no_discovery(post, id).await,
            Reply::Accepted => Err(Failure::Lost("the server took the request and gave no answer".to_owned())),
            Reply::Refused(refusal) => {
                if let Some(error) = refusal.error(id) {
                    self.deliver(&answer_line(id, "error", error), Some(post)).await;
                    Ok(())
                } else if order.kind == Kind::Discover && refusal.knows_no_discovery() {
                    self.no_discovery(post, id).await
                } else {
                    Err(refusal.failure())
                }
            }
        }
    }

    /// Says for a server of the older era what it does not say itself.
    async fn no_discovery(&self, post: &Post<'_>, id: &RequestId) -> Result<(), Failure> {
        let line = error_line(Some(id), METHOD_NOT_FOUND, "the server does not know `server/discover`");
        self.deliver(&line, Some(post)).await;
        Ok(())
    }

    /// Takes a message that came for a request, or without one.
    pub(super) async fn deliver(&self, text: &str, post: Option<&Post<'_>>) -> Heard {
        let envelope = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(what) => return self.rubbish(what),
        };
        let ours = post.and_then(|post| post.order.id.as_ref());
        let answers = envelope.method.is_none();
        let renamed = match (ours, envelope.id(), envelope.failure()) {
            _ if !answers => None,
            (Some(ours), Id::Good(theirs), _) if same(ours, &theirs) => None,
            // A server that could not read the request cannot say whose the error is; its response tells.
            (Some(ours), Id::Absent | Id::Bad, Some(error)) => Some(answer_line(ours, "error", error.get())),
            _ => return self.rubbish("an answer to another request"),
        };
        let text = renamed.as_deref().unwrap_or(text).trim();
        if let Some(post) = post.filter(|_| answers) {
            self.learn(text, post);
        }
        let number = post.and_then(|post| post.order.number());
        match RoleClient::incoming(&self.side, text, &self.arrival(number)) {
            Inbound::Messages(messages) => {
                for message in messages {
                    self.hand_on(message).await;
                }
            }
            Inbound::Consumed => {}
            Inbound::Rubbish(what) => return self.rubbish(what),
            Inbound::Fatal(why) => self.end.set(&why),
        }
        if answers { Heard::Answer } else { Heard::Other }
    }

    /// Learns what later messages need.
    fn learn(&self, answer: &str, post: &Post<'_>) {
        match post.order.kind {
            Kind::Initialize => {
                if let Some(opened) = Opened::read(answer, &post.headers) {
                    self.session.opened(&opened);
                }
            }
            Kind::List if post.order.era == Era::Modern => self.params.learn(self.side.server(), answer),
            Kind::Discover | Kind::Initialized | Kind::Listen | Kind::List | Kind::Request | Kind::Other => {}
        }
    }

    /// Settles a request whose answer is too large.
    pub(super) async fn oversized(&self, post: &Post<'_>) {
        let Some(id) = &post.order.id else { return };
        let arrival = self.arrival(post.order.number());
        if let Inbound::Messages(messages) = RoleClient::oversized(&self.side, id.clone(), true, self.limit, &arrival) {
            for message in messages {
                self.hand_on(message).await;
            }
        }
    }

    /// Notes that something was no message.
    pub(super) fn rubbish(&self, what: &'static str) -> Heard {
        let count = self.rubbish.fetch_add(1, Ordering::Relaxed) + 1;
        self.side.event(ConnectionEvent::Rubbish);
        if count <= RUBBISH_LOGGED {
            let last = if count == RUBBISH_LOGGED { "; further ones are not logged" } else { "" };
            tracing::warn!(target: "portcullis::upstream", server = self.side.server(), "a message that is {what} was skipped{last}");
        }
        Heard::Rubbish(what)
    }

    async fn hand_on(&self, message: Incoming) {
        // Nobody listens any more: then nobody waits either.
        let _ = self.inbox.send(message).await;
    }

    fn arrival(&self, of: Option<i64>) -> Arrival {
        let carrier = self.this.clone();
        let reply = move |text: String| {
            if let Some(carrier) = carrier.upgrade() {
                carrier.reply(Order::other(text, carrier.side.era()));
            }
        };
        Arrival::new(WayBack::Other(Arc::new(reply)), of)
    }

    /// Sends an answer of ours.
    pub(super) fn reply(&self, order: Order) {
        let (Some(carrier), Ok(place)) = (self.this.upgrade(), self.replies.clone().try_acquire_owned()) else {
            self.end.set("the server asks faster than it takes answers");
            return;
        };
        self.spawn(async move {
            // Why it failed has been logged; the server will give up its question.
            let _ = carrier.tell(&order).await;
            drop(place);
        });
    }

    /// Sends what has no answer.
    ///
    /// # Errors
    /// The connection cannot go on without it.
    pub(super) async fn tell(&self, order: &Order) -> Result<(), TransportFault> {
        let headers = order.headers(&self.session.seat().headers);
        let why = match timeout(TELL, self.client.send(&Method::POST, &headers, Some(&order.text))).await {
            Ok(Ok(response)) if response.status().is_success() => {
                if order.kind == Kind::Initialized {
                    self.ready(order);
                }
                return Ok(());
            }
            Ok(Ok(response)) => format!("the server answered {}", response.status()),
            Ok(Err(failure)) => failure.why().to_owned(),
            Err(_) => "no answer in time".to_owned(),
        };
        if order.kind == Kind::Initialized {
            self.end.set(&why);
            return Err(TransportFault::Closed);
        }
        tracing::debug!(target: "portcullis::upstream", server = self.side.server(), why, "a message was not taken");
        Ok(())
    }

    /// The session is open: the server may speak by itself from now on.
    fn ready(&self, initialized: &Order) {
        self.session.continues_with(initialized);
        if let Some(carrier) = self.this.upgrade() {
            self.spawn(async move { carrier.listen().await });
        }
    }

    /// Ends the session.
    pub(super) async fn leave(&self) {
        if let Some(headers) = self.session.leave() {
            // The server forgets it by itself some day.
            let _ = self.client.send(&Method::DELETE, &headers, None).await;
        }
    }
}
