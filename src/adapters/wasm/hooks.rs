//! What a component can be asked, whatever version of the interface it was built for.
//!
//! A version's file under `bindings/` implements [`Hooks`] for its generated code: it calls the guest, and lifts what the
//! guest says into the raw answers here. It decides nothing: what an answer means is checked by `answer`, and what a guest
//! may learn by `state`, for all versions alike.

use wasmtime::Store;

use super::state::State;
use crate::model::posture::ApprovalMode;
use crate::model::verdict::{Remember, Reviewers};
use crate::ports::sanitiser::Edit;

/// One component of some version, ready to be instantiated.
pub(super) trait Hooks: Send + Sync {
    /// Which of the three decision points it answers at, and whether it has settings of its own.
    fn exports(&self) -> Exports;

    /// Instantiates and asks nothing: start functions run.
    fn start(&self, store: &mut Store<State>) -> wasmtime::Result<()>;

    /// Asks about the call that the store holds.
    fn approve(&self, store: &mut Store<State>) -> wasmtime::Result<RawApproval>;

    /// Asks about the App tool that the store holds.
    fn connect(&self, store: &mut Store<State>) -> wasmtime::Result<RawConnector>;

    /// Asks about the answer that the store holds.
    fn sanitise(&self, store: &mut Store<State>) -> wasmtime::Result<RawSanitised>;

    /// Asks what its settings are, as JSON Schema.
    fn schema(&self, store: &mut Store<State>) -> wasmtime::Result<String>;

    /// Asks what is wrong with settings: pointers and messages.
    fn validate(&self, store: &mut Store<State>, settings: &str) -> wasmtime::Result<Vec<(String, String)>>;

    /// One instance that can be asked about calls again and again, for benches only.
    fn reusable(&self, store: &mut Store<State>) -> wasmtime::Result<Box<dyn Reusable>>;
}

/// An instance that is kept between calls. Never used for decisions.
pub(super) trait Reusable: Send {
    /// Asks about the call that the store holds.
    fn approve(&self, store: &mut Store<State>) -> wasmtime::Result<RawApproval>;
}

/// What a component exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Exports {
    pub(super) approval: bool,
    pub(super) connector: bool,
    pub(super) sanitiser: bool,
    pub(super) settings: bool,
}

/// A rule and a text, as a guest wrote them.
#[derive(Debug)]
pub(super) struct RawReason {
    pub(super) rule: Option<String>,
    pub(super) text: String,
}

/// An approval component's verdict, as the guest wrote it.
#[derive(Debug)]
pub(super) enum RawVerdict {
    Abstain,
    Allow(RawReason),
    Ask { reason: RawReason, remember: Remember, bind_arguments: bool, reviewers: Reviewers },
    Deny(RawReason),
}

/// An approval component's answer, as the guest wrote it.
#[derive(Debug)]
pub(super) struct RawApproval {
    pub(super) verdict: RawVerdict,
    pub(super) labels: Vec<String>,
}

/// A connector policy's answer, as the guest wrote it.
#[derive(Debug)]
pub(super) struct RawConnector {
    pub(super) rule: Option<String>,
    pub(super) enabled: Option<bool>,
    pub(super) mode: Option<ApprovalMode>,
}

/// A sanitiser's answer, as the guest wrote it.
#[derive(Debug)]
pub(super) struct RawSanitised {
    pub(super) rule: Option<String>,
    pub(super) outcome: RawOutcome,
    pub(super) labels: Vec<String>,
}

/// What a sanitiser says, as the guest wrote it.
#[derive(Debug)]
pub(super) enum RawOutcome {
    Pass,
    Edit(Vec<Edit>),
    Withhold(String),
}
