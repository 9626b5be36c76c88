//! How a stream of events is followed, and taken up again where it broke.
//!
//! The stream of a request ends with its answer. If it ends before, and the server has named its events (older era only), it
//! is asked for the rest: a few times, within a bounded time, and as often as the server has something new. Beside that
//! the older era has one stream that belongs to no request; a server without it is none the worse.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use rmcp::model::RequestId;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::carrier::{Carrier, Heard, Post};
use super::client::{Failure, causes};
use super::order::{EVENT_STREAM, LAST_EVENT, same};
use super::reply::content_type;
use super::session::Seat;
use super::sse::{Event, Parser};
use crate::adapters::mcp::envelope::{Envelope, Id};
use crate::adapters::mcp::era::Era;
use crate::model::text;
use crate::ports::upstream::ConnectionEvent;

/// How often the rest of a stream is asked for while nothing new comes.
const ATTEMPTS: u32 = 5;
/// The first pause before that, unless the server names one; doubled each time.
const PAUSE: Duration = Duration::from_millis(100);
/// The shortest pause, whatever the server says.
const SHORTEST: Duration = Duration::from_millis(20);
/// How long it is tried while nothing new comes.
const PATIENCE: Duration = Duration::from_secs(120);
/// The first pause before the stream without a request is opened again; doubled up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(500);
/// The longest such pause.
const LONGEST: Duration = Duration::from_secs(60);
/// A stream that was open this long is no failure.
const STEADY: Duration = Duration::from_secs(10);
/// How long the end of a stream is waited for after its answer, so that its connection can be used again.
const REST: Duration = Duration::from_secs(1);
/// How much of it is read, in bytes.
const MAX_REST: usize = 64 * 1024;

/// Reads events from a response.
struct Events<'a> {
    carrier: &'a Carrier,
    response: reqwest::Response,
    parser: Parser,
    piece: Bytes,
}

/// Why there are no more events.
enum Broken {
    TooLarge,
    Failed(String),
}

impl<'a> Events<'a> {
    fn new(carrier: &'a Carrier, response: reqwest::Response) -> Self {
        Self { carrier, response, parser: Parser::new(carrier.limit), piece: Bytes::new() }
    }

    /// Returns the next event; `None`: the stream ended.
    async fn next(&mut self) -> Result<Option<Event>, Broken> {
        loop {
            if let Some(event) = self.parser.next(&mut self.piece).map_err(|_| Broken::TooLarge)? {
                return Ok(Some(event));
            }
            match self.response.chunk().await {
                Ok(Some(piece)) => {
                    self.carrier.client.received(piece.len());
                    self.piece = piece;
                }
                Ok(None) => return Ok(None),
                Err(error) => return Err(Broken::Failed(text::shown(&causes(error), 200))),
            }
        }
    }
}

/// Where a stream is.
#[derive(Debug, Default)]
struct Mark {
    /// The last event that was named.
    last: Option<String>,
    /// The pause that the server wants.
    pause: Option<Duration>,
    /// Attempts since something new came.
    attempts: u32,
}

impl Mark {
    fn note(&mut self, event: &Event) {
        if event.id != self.last {
            self.attempts = 0;
        }
        self.last.clone_from(&event.id);
        self.pause = event.retry.or(self.pause);
    }
}

impl Carrier {
    /// Follows the stream of a request until its answer.
    ///
    /// # Errors
    /// A [`Failure`]: it ended without one.
    pub(super) async fn follow(&self, post: &Post<'_>, response: reqwest::Response) -> Result<(), Failure> {
        let mut mark = Mark::default();
        let mut events = Events::new(self, response);
        loop {
            let why = loop {
                match events.next().await {
                    Ok(Some(event)) => {
                        mark.note(&event);
                        let Some(data) = event.data else { continue };
                        if self.deliver_bytes(&data, Some(post)).await == Heard::Answer {
                            self.drain(events.response);
                            return Ok(());
                        }
                    }
                    Ok(None) => break "it ended".to_owned(),
                    Err(Broken::Failed(why)) => break why,
                    Err(Broken::TooLarge) => {
                        self.oversized(post).await;
                        return Ok(());
                    }
                }
            };
            let lost = format!("the stream of the answer broke off: {why}");
            if post.order.era == Era::Modern || post.order.kind.shakes_hands() || mark.last.is_none() {
                return Err(Failure::Lost(lost));
            }
            let until = Instant::now() + PATIENCE;
            let response = match timeout_at(until, self.take_up(post, &mut mark)).await {
                Ok(Ok(response)) => response,
                Ok(Err(why)) => return Err(Failure::Lost(format!("{lost}; {why}"))),
                Err(_) => return Err(Failure::Lost(lost)),
            };
            self.side.event(ConnectionEvent::StreamResumed);
            events = Events::new(self, response);
        }
    }

    async fn deliver_bytes(&self, data: &[u8], post: Option<&Post<'_>>) -> Heard {
        match std::str::from_utf8(data) {
            Ok(text) => self.deliver(text, post).await,
            Err(_) => self.rubbish("not UTF-8"),
        }
    }

    /// Asks for the rest of a stream; the error says why there is none.
    async fn take_up(&self, post: &Post<'_>, mark: &mut Mark) -> Result<reqwest::Response, String> {
        let mut why = "the rest was not to be had".to_owned();
        while mark.attempts < ATTEMPTS {
            sleep(mark.pause.unwrap_or(PAUSE * 2_u32.pow(mark.attempts)).max(SHORTEST)).await;
            mark.attempts += 1;
            let seat = self.session.seat();
            if seat.generation != post.generation {
                return Err("its session is over".to_owned());
            }
            match self.open(&seat, mark.last.as_deref()).await {
                Ok(response) => return Ok(response),
                Err(NotOpen::Refused(status)) if status.is_client_error() => {
                    return Err(format!("asked for the rest, the server answered {status}"));
                }
                Err(NotOpen::Refused(status)) => why = format!("asked for the rest, the server answered {status}"),
                Err(NotOpen::Failed(failed)) => why = failed,
            }
        }
        Err(why)
    }

    /// Opens a stream by GET.
    async fn open(&self, seat: &Seat, last: Option<&str>) -> Result<reqwest::Response, NotOpen> {
        let mut headers: HeaderMap = seat.headers.clone();
        headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
        if let Some(Ok(last)) = last.map(HeaderValue::from_str) {
            headers.insert(LAST_EVENT, last);
        }
        let sent = self.client.send(&Method::GET, &headers, None).await;
        let response = sent.map_err(|failure| NotOpen::Failed(failure.why().to_owned()))?;
        if response.status() == StatusCode::OK && content_type(response.headers()).as_deref() == Some(EVENT_STREAM) {
            Ok(response)
        } else {
            Err(NotOpen::Refused(response.status()))
        }
    }

    /// Reads the little that follows an answer, so that the connection can be used again.
    fn drain(&self, mut response: reqwest::Response) {
        self.spawn(async move {
            let rest = async {
                let mut left = MAX_REST;
                while let Ok(Some(piece)) = response.chunk().await {
                    let Some(less) = left.checked_sub(piece.len()) else { return };
                    left = less;
                }
            };
            // A server that keeps it open loses the connection.
            let _ = timeout(REST, rest).await;
        });
    }

    /// Returns the answer to `id` out of a stream that nobody else follows.
    pub(super) async fn first_answer(&self, response: reqwest::Response, id: Option<&RequestId>) -> Option<String> {
        let mut events = Events::new(self, response);
        while let Ok(Some(event)) = events.next().await {
            let Some(Ok(text)) = event.data.map(String::from_utf8) else { continue };
            let Ok(envelope) = Envelope::parse(&text) else { continue };
            let ours = matches!((id, envelope.id()), (Some(ours), Id::Good(theirs)) if same(ours, &theirs));
            if envelope.method.is_none() && ours {
                return Some(text);
            }
        }
        None
    }

    /// Listens to what the server says by itself, for as long as the connection lives.
    pub(super) async fn listen(&self) {
        let mut renewed = self.session.watch();
        let (mut mark, mut wait, mut again) = (Mark::default(), FIRST, false);
        loop {
            let since = Instant::now();
            let heard = tokio::select! {
                biased;
                _ = renewed.changed() => None,
                heard = self.listen_once(&mut mark, again) => Some(heard),
            };
            if since.elapsed() >= STEADY {
                wait = FIRST;
            }
            let in_new_session = match heard {
                None => true,
                // A server that refuses is asked again in another session only.
                Some(Err(_)) => renewed.changed().await.is_ok(),
                Some(Ok(())) => {
                    let pause = mark.pause.map_or(wait, |pause| pause.max(wait));
                    wait = wait.saturating_mul(2).min(LONGEST);
                    timeout(pause, renewed.changed()).await.is_ok()
                }
            };
            again = !in_new_session;
            if in_new_session {
                (mark, wait) = (Mark::default(), FIRST);
            }
        }
    }

    /// Listens until the stream ends; the error is that the server refuses.
    async fn listen_once(&self, mark: &mut Mark, again: bool) -> Result<(), StatusCode> {
        let response = match self.open(&self.session.seat(), mark.last.as_deref()).await {
            Ok(response) => response,
            Err(NotOpen::Refused(status)) if status.is_client_error() => return Err(status),
            Err(_) => return Ok(()),
        };
        if again {
            self.side.event(ConnectionEvent::StreamResumed);
            if mark.last.is_none() {
                self.side.tools_may_have_changed();
            }
        }
        let mut events = Events::new(self, response);
        loop {
            match events.next().await {
                Ok(Some(event)) => {
                    mark.note(&event);
                    if let Some(data) = event.data {
                        self.deliver_bytes(&data, None).await;
                    }
                }
                Ok(None) | Err(Broken::Failed(_)) => return Ok(()),
                Err(Broken::TooLarge) => {
                    self.side.event(ConnectionEvent::Oversized);
                    // It would come again.
                    mark.last = None;
                    return Ok(());
                }
            }
        }
    }
}

/// Why a stream is not open.
enum NotOpen {
    Refused(StatusCode),
    Failed(String),
}
