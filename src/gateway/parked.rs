//! Calls that wait for their client: in the stateless era a question is the result of the call, and the client repeats the
//! call with the answer.
//!
//! The run itself stays alive meanwhile, in a task of its own, and its place is in a bounded table. The client gets a sealed
//! `requestState` that names the place by a random number and holds once, for this caller, this tool and these arguments, until
//! the question expires (R21). A state that does not fit is refused and touches nothing: the run is still there for the right one.
//! A run that ends takes its place along.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rmcp::model::{RequestStateCodec, RequestStateError, SealOptions};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::rounds::Run;
use crate::model::arguments::Arguments;
use crate::model::caller::Caller;
use crate::model::digest::Digest;
use crate::model::name::Target;

/// How many calls of one session may wait for their client.
pub(super) const MAX_PARKED: usize = 64;
/// The longest state that is looked at, in bytes; ours have about 120.
const MAX_STATE: usize = 1024;

/// A question on its way to the client.
pub(super) struct Ask {
    pub(super) method: &'static str,
    /// A JSON object.
    pub(super) params: Value,
    /// How long the answer is waited for at most.
    pub(super) lasts: Duration,
    pub(super) told: oneshot::Sender<Told>,
}

/// What came of it. Nothing at all: the call is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// The text of the result that the client gave.
    Result(Arc<str>),
    /// The client came back without an answer to it.
    Missing,
    /// Too many calls wait already: it was not asked.
    NoRoom,
}

/// Why a repeated call is refused. The text is for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadState {
    /// The members of the request have another shape.
    #[error("invalid params: `requestState` must be a string, and `inputResponses` an object")]
    Shape,
    /// Not one of ours, or not for this call.
    #[error(
        "invalid params: the `requestState` was not made for this call: it was altered, or the caller, the tool or the \
         arguments are others; repeat the very call that it was given for, or make the call anew without it"
    )]
    Foreign,
    /// Too late.
    #[error("invalid params: the `requestState` has expired; make the call anew without it")]
    Expired,
    /// It was given back before, or its call is over.
    #[error(
        "invalid params: the `requestState` was used already, or its call has ended; make the call anew without it"
    )]
    Spent,
}

/// What a repeated call brings.
pub(super) struct Retry {
    state: String,
    responses: BTreeMap<String, Box<RawValue>>,
}

impl Retry {
    /// Reads the parameters of a call; nothing where it is not a repeated one.
    pub(super) fn of(params: Option<&str>) -> Result<Option<Self>, BadState> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            #[serde(default)]
            request_state: Option<String>,
            #[serde(borrow, default)]
            input_responses: Option<&'a RawValue>,
        }
        let Some(params) = params else { return Ok(None) };
        let Params { request_state, input_responses } =
            serde_json::from_str(params).map_err(|_error| BadState::Shape)?;
        let Some(state) = request_state else { return Ok(None) };
        // Rubbish answers nothing (R20).
        let responses = input_responses.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        Ok(Some(Self { state, responses }))
    }
}

/// Returns what a state is bound to: who calls what with what.
pub(super) fn binding(caller: &Caller, target: &Target, arguments: &str) -> Digest {
    // The text itself where it is no arguments: it is refused anyway.
    let digest = Arguments::parse(arguments).map_or_else(|_| Digest::of(arguments.as_bytes()), |good| good.digest());
    let server = target.server.as_ref().map_or("", |server| server.as_str());
    Digest::of_parts([
        caller.tenant.as_str().as_bytes(),
        caller.principal.as_str().as_bytes(),
        caller.session.as_str().as_bytes(),
        server.as_bytes(),
        target.tool.as_str().as_bytes(),
        digest.as_bytes().as_slice(),
    ])
}

type Nonce = [u8; 16];

struct Waiting {
    run: Box<Run>,
    asks: BTreeMap<String, Ask>,
    /// When its state ends.
    until: Instant,
}

/// The calls of one session that wait.
pub(super) struct Parked {
    /// None without random numbers: then nothing is parked.
    codec: Option<RequestStateCodec>,
    waiting: Mutex<HashMap<Nonce, Waiting>>,
    runs: AtomicU64,
}

impl Parked {
    pub(super) fn new() -> Self {
        let mut key = [0; 32];
        let codec = getrandom::fill(&mut key).ok().and_then(|()| RequestStateCodec::try_new(key).ok());
        Self { codec, waiting: Mutex::default(), runs: AtomicU64::new(0) }
    }

    /// Returns a number for a run.
    pub(super) fn number(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed)
    }

    /// Parks a run with its open questions, and returns the result that asks them. Without room the questions are told so, and
    /// the run comes back; also when nobody waits for an answer any more.
    pub(super) fn park(&self, run: Box<Run>, asks: Vec<Ask>, binding: Digest) -> Result<String, Box<Run>> {
        let mut nonce: Nonce = [0; 16];
        let mut waiting = self.waiting.lock();
        // Checked under the lock: a run that ends from here on finds its place, and clears it.
        let asks: Vec<Ask> = asks.into_iter().filter(|ask| !ask.told.is_closed()).collect();
        let Some(codec) = self.codec.as_ref().filter(|_| getrandom::fill(&mut nonce).is_ok()) else {
            return Err(without_room(run, asks));
        };
        if asks.is_empty() {
            return Err(run);
        }
        if waiting.len() >= MAX_PARKED {
            tracing::warn!(open = waiting.len(), "too many calls wait for their client's answers; it is not asked");
            return Err(without_room(run, asks));
        }
        let lasts = asks.iter().map(|ask| ask.lasts).max().unwrap_or_default();
        let state = codec.seal_with(&nonce, &SealOptions::new().associated_data(binding.as_bytes()).ttl(lasts));
        let asks: BTreeMap<String, Ask> =
            asks.into_iter().enumerate().map(|(at, ask)| (format!("question-{}", at + 1), ask)).collect();
        let entry = |ask: &Ask| json!({ "method": ask.method, "params": ask.params });
        let requests: serde_json::Map<String, Value> =
            asks.iter().map(|(key, ask)| (key.clone(), entry(ask))).collect();
        waiting.insert(nonce, Waiting { run, asks, until: Instant::now() + lasts });
        Ok(json!({ "resultType": "input_required", "inputRequests": requests, "requestState": state }).to_string())
    }

    /// Takes the run of a repeated call, and hands the answers to whoever waits for them.
    pub(super) fn take(&self, retry: Retry, binding: Digest) -> Result<Box<Run>, BadState> {
        let Retry { state, mut responses } = retry;
        let codec = self.codec.as_ref().filter(|_| state.len() <= MAX_STATE).ok_or(BadState::Foreign)?;
        let nonce = codec.open_with(&state, binding.as_bytes()).map_err(|error| bad(&error))?;
        let nonce = Nonce::try_from(nonce).map_err(|_| BadState::Foreign)?;
        let Waiting { run, asks, until: _ } = self.waiting.lock().remove(&nonce).ok_or(BadState::Spent)?;
        for (key, ask) in asks {
            let result = responses.remove(&key);
            let told = result.map_or(Told::Missing, |raw| Told::Result(raw.get().into()));
            // Whoever asked may have given up just now.
            let _ = ask.told.send(told);
        }
        Ok(run)
    }

    /// Returns until when a run that has ended keeps its place, if it is parked: its client fetches what came of it with the
    /// state that it has. Somebody else may have answered meanwhile.
    pub(super) fn until(&self, run: u64) -> Option<Instant> {
        let waiting = self.waiting.lock();
        waiting.values().filter(|entry| entry.run.number() == run).map(|entry| entry.until).max()
    }

    /// Clears the place of a run.
    pub(super) fn forget(&self, run: u64) {
        let ended: Vec<Waiting> = {
            let mut waiting = self.waiting.lock();
            let of_run: Vec<Nonce> =
                waiting.iter().filter(|(_, entry)| entry.run.number() == run).map(|(nonce, _)| *nonce).collect();
            of_run.iter().filter_map(|nonce| waiting.remove(nonce)).collect()
        };
        drop(ended);
    }
}

fn bad(error: &RequestStateError) -> BadState {
    match error {
        RequestStateError::Expired => BadState::Expired,
        _ => BadState::Foreign,
    }
}

fn without_room(run: Box<Run>, asks: Vec<Ask>) -> Box<Run> {
    for ask in asks {
        let _ = ask.told.send(Told::NoRoom);
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(params: &str) -> Result<Option<Retry>, BadState> {
        Retry::of(Some(params))
    }

    #[test]
    fn a_call_is_a_repeated_one_if_it_brings_a_state() {
        assert!(Retry::of(None).unwrap().is_none());
        for fresh in [r#"{"name":"x"}"#, r#"{"inputResponses":{}}"#, r#"{"requestState":null}"#] {
            assert!(retry(fresh).unwrap().is_none(), "{fresh}");
        }
        for bad in [r#"{"requestState":7}"#, r#"{"requestState":"a","requestState":"b"}"#] {
            assert_eq!(retry(bad).err(), Some(BadState::Shape), "{bad}");
        }
        let good = retry(r#"{"requestState":"a","inputResponses":{"question-1": {"x":1.50}}}"#).unwrap().unwrap();
        assert_eq!(good.responses["question-1"].get(), r#"{"x":1.50}"#);
    }

    #[test]
    fn r20_rubbish_answers_nothing() {
        for rubbish in ["7", "[]", "null", r#""x""#] {
            let retry = retry(&format!(r#"{{"requestState":"a","inputResponses":{rubbish}}}"#)).unwrap().unwrap();
            assert!(retry.responses.is_empty(), "{rubbish}");
        }
    }

    #[test]
    fn r21_a_state_is_bound_to_caller_tool_and_arguments_however_they_are_spelled() {
        let caller = Caller::local("me");
        let target = |tool: &str| Target::from(crate::model::name::ToolRef::parse(tool).unwrap());
        let bound = binding(&caller, &target("files/write"), r#"{"a":1,"b":2}"#);
        assert_eq!(bound, binding(&caller, &target("files/write"), r#"{ "b":2, "a":1 }"#));
        assert_ne!(bound, binding(&caller, &target("files/write"), r#"{"a":1,"b":3}"#));
        assert_ne!(bound, binding(&caller, &target("files/read"), r#"{"a":1,"b":2}"#));
        assert_ne!(bound, binding(&Caller::local("me"), &target("files/write"), r#"{"a":1,"b":2}"#), "another session");
        let codec = RequestStateCodec::try_new([7; 32]).unwrap();
        let parked = Parked { codec: Some(codec), ..Parked::new() };
        let sealed = || {
            let options = SealOptions::new().associated_data(bound.as_bytes()).ttl(Duration::from_secs(3600));
            let state = parked.codec.as_ref().unwrap().seal_with(&[1; 16], &options);
            Retry { state, responses: BTreeMap::new() }
        };
        assert_eq!(parked.take(sealed(), bound).err(), Some(BadState::Spent));
        assert_eq!(bad(&RequestStateError::Expired), BadState::Expired);
        let other = binding(&caller, &target("files/read"), r#"{"a":1,"b":2}"#);
        assert_eq!(parked.take(sealed(), other).err(), Some(BadState::Foreign));
        let mut altered = sealed();
        altered.state.pop();
        assert_eq!(parked.take(altered, bound).err(), Some(BadState::Foreign));
        let long = Retry { state: "a".repeat(MAX_STATE + 1), responses: BTreeMap::new() };
        assert_eq!(parked.take(long, bound).err(), Some(BadState::Foreign));
    }
}
