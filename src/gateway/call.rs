//! One `tools/call` of the client: into the pipeline, and its answer back out.
//!
//! The arguments go in as the client spelled them (R26), the answer comes out as the upstream spelled it, without header
//! and truncation (R32). A failure of ours is a result with `isError`; the upstream's protocol error stays one, and arguments
//! that are no object are one, because such a request has not the shape that the protocol gives it. A call that panics is an
//! internal error of that call alone.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use rmcp::RoleServer;
use rmcp::model::{ErrorData, RequestId};
use rmcp::service::RequestContext;
use serde_json::Value;

use super::elicit::ElicitationReviewer;
use super::handler::Gate;
use super::parked::{self, Retry};
use super::progress::{self, Steps};
use super::relay::{Asking, ClientQuestions};
use super::rounds::{self, Ended, Run};
use super::way::Way;
use crate::adapters::mcp::client_side::Incoming;
use crate::host::session::SessionCall;
use crate::model::answer::ToolResult;
use crate::model::answerable::Answerable;
use crate::model::name::{RawToolName, Target};
use crate::model::outcome::{Code, Failure, Stage};
use crate::pipeline::Finished;
use crate::pipeline::emit::sanitise::{Clean, CleanAnswer};
use crate::ports::reviewer::Reviewer;

/// The largest `_meta` of a request that is passed on, in bytes of JSON: no policy sees it.
const MAX_META: usize = 64 * 1024;
/// JSON-RPC: the parameters have another shape than the method takes.
const INVALID_PARAMS: i64 = -32602;

/// What a client calls.
pub(super) struct Callee<'a> {
    /// By the name that the client used.
    pub(super) name: &'a str,
    /// What it leads to.
    pub(super) target: Target,
    /// With these arguments, as the client spelled them.
    pub(super) arguments: &'a str,
}

/// Runs a call and puts its answer into `incoming`.
///
/// # Errors
/// Its `_meta` is too large.
pub(super) async fn run(
    gate: &Gate,
    callee: Callee<'_>,
    incoming: &Incoming,
    context: RequestContext<RoleServer>,
) -> Result<(), ErrorData> {
    let Callee { name, target, arguments } = callee;
    let is_object = arguments.is_empty() || arguments.starts_with('{');
    // `null` and an absent member are both "no arguments"; the pipeline takes no other text for that but a blank one.
    let arguments = if arguments == "null" { "" } else { arguments };
    let binding = incoming.is_modern().then(|| parked::binding(gate.session.caller(), &target, arguments));
    if let Some(binding) = binding {
        let bad = |bad: parked::BadState| ErrorData::invalid_params(bad.to_string(), None);
        if let Some(retry) = Retry::of(incoming.params()).map_err(bad)? {
            let run = Run::again(gate, retry, binding, &context).map_err(bad)?;
            if let Some(ended) = run.round(gate, binding, incoming, &context).await {
                finish(incoming, name, is_object, ended);
            }
            return Ok(());
        }
    }
    let mut call = SessionCall::new(target, arguments);
    let mut steps = None;
    if let Some(token) = context.meta.get_progress_token() {
        let (sink, out) =
            progress::channel(token, context.peer.clone(), Arc::clone(&gate.session), call.target.clone());
        call.progress = Some(Arc::new(sink));
        steps = Some(out);
    }
    let capabilities = context.client_capabilities();
    let declared = capabilities.as_ref().and_then(|declared| serde_json::to_value(declared).ok()).unwrap_or_default();
    let answerable = Answerable::of_capabilities(&declared);
    // A client of the stateless era gets questions as results; one that can answer none needs no rounds.
    let binding = binding.filter(|_| answerable != Answerable::default());
    let (way, asks) = match binding {
        Some(_) => {
            let (asks, out) = rounds::questions();
            (Way::Results(asks), Some(out))
        }
        None => (Way::Requests(context.peer.clone()), None),
    };
    if let Some(server) = call.target.server.clone() {
        let asking = Asking { local: gate.session.host().fleet().is_local(&server), server };
        let hung_up = gate.hung_up.clone();
        call.questions = Some(Arc::new(ClientQuestions::new(way.clone(), asking, answerable, hung_up)));
    }
    let client = context.client_info().map(|client| client.name).unwrap_or_default();
    let person: Arc<dyn Reviewer> = Arc::new(
        ElicitationReviewer::by(way, &client, answerable, gate.hung_up.clone())
            .with_roles(gate.session.caller().roles()),
    );
    let person = match &gate.desk {
        Some(desk) => desk.beside(person),
        None => person,
    };
    call.reviewer = Some(person);
    call.client_meta.clone_from(&context.meta.0.0);
    let size = serde_json::to_vec(&call.client_meta).map_or(usize::MAX, |text| text.len());
    if size > MAX_META {
        return Err(ErrorData::invalid_params(format!("`_meta` has {size} bytes, more than {MAX_META}"), None));
    }
    let ended = match (binding, asks) {
        (Some(binding), Some(asks)) => {
            Run::start(gate, call, asks, steps).round(gate, binding, incoming, &context).await
        }
        _ => Some(through(gate, call, steps, &context).await),
    };
    if let Some(ended) = ended {
        finish(incoming, name, is_object, ended);
    }
    Ok(())
}

/// Runs a call that is over with its request.
async fn through(
    gate: &Gate,
    call: SessionCall,
    mut steps: Option<Steps>,
    context: &RequestContext<RoleServer>,
) -> Ended {
    let cancel = call.cancel.clone();
    // A handler that is dropped takes its call along.
    let _guard = cancel.clone().drop_guard();
    let session = Arc::clone(&gate.session);
    // In this very task: one of its own would cost a change of threads for each call. The tracker knows of it all the same.
    let running = AssertUnwindSafe(async move { session.call(call).await }).catch_unwind();
    let mut task = Box::pin(gate.calls.track_future(running));
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut task => break ended,
            () = context.ct.cancelled(), if !cancel.is_cancelled() => cancel.cancel(),
            () = gate.stop.cancelled(), if !cancel.is_cancelled() => cancel.cancel(),
            () = relay(gate, &mut steps) => {}
        }
    };
    if let Some(steps) = &mut steps {
        let _sent = gate.hung_up.run_until_cancelled(steps.flush()).await;
    }
    ended
}

/// Puts a call's answer into `incoming`.
fn finish(incoming: &Incoming, name: &str, is_object: bool, ended: Ended) {
    match ended {
        Ok(finished) => answer(incoming, name, is_object, &finished),
        Err(_panic) => {
            // The panic itself is in the log by the panic hook; the item was completed by the call's guard.
            tracing::error!(id = %shown_id(incoming.client_id()), "a call ended by a defect");
            let failure = Failure::new(Stage::Call, Code::Internal, "the call ended by a defect of the host");
            respond(incoming, Clean::of_failure(failure).result());
        }
    }
}

/// Passes progress on until no more can come, then waits for ever. Ends at once when the client is gone, because rmcp
/// sends nothing but answers by then.
pub(super) async fn relay(gate: &Gate, steps: &mut Option<Steps>) {
    match steps {
        Some(open) => {
            let _all = gate.hung_up.run_until_cancelled(open.forward()).await;
            *steps = None;
        }
        None => std::future::pending().await,
    }
}

fn answer(incoming: &Incoming, name: &str, is_object: bool, finished: &Finished) {
    match finished.clean.answer() {
        CleanAnswer::Protocol(error) => {
            let spelled = error.verbatim.as_ref().is_some_and(|text| incoming.respond_error_text(text).is_ok());
            if !spelled {
                incoming.respond_error(error.code, &error.message, error.data.as_ref());
            }
        }
        CleanAnswer::Failure(failure) if failure.code == Code::InvalidArguments && !is_object => {
            incoming.respond_error(INVALID_PARAMS, &failure.message, Some(&Value::Object(failure.meta())));
        }
        // R25: an unknown tool goes by the name that the client gave, so a hidden one does, too.
        CleanAnswer::Failure(failure) if failure.code == Code::Disabled => {
            let unknown = RawToolName::parse(name).map(|tool| Failure::not_available(&Target { server: None, tool }));
            let failure = unknown.unwrap_or_else(|_| failure.clone());
            respond(incoming, Clean::of_failure(failure).result());
        }
        CleanAnswer::Result(_) | CleanAnswer::Failure(_) => respond(incoming, &finished.clean.served()),
    }
}

pub(super) fn respond(incoming: &Incoming, result: &ToolResult) {
    let whole = || Value::Object(result.value().clone()).to_string();
    let text = result.verbatim().map_or_else(whole, |text| text.to_string());
    if incoming.respond(&text).is_err() {
        incoming.respond_error(-32603, "the answer could not be written", None);
    }
}

fn shown_id(id: &RequestId) -> String {
    crate::model::text::shown(&id.to_string(), 64)
}
