//! Consent: may it run?
//!
//! `decide` asks every layer (`connector` first, for tools of Apps), `fold` combines the answers, `settle` says what follows from them, `remember` knows
//! what earlier agreements cover. What is open then is put to `hooks`, to the auto reviewer (`review`) and to a person (`ask`), in
//! this order; after each answer everything is decided again. `replay` takes a decision again that is long over. A dry run stops after `settle`: the real call and
//! `explain` share everything up to there (R38).

mod action;
pub mod agree;
pub mod approve;
pub mod ask;
pub mod connector;
pub mod decide;
pub mod fold;
pub mod hooks;
pub mod observe;
pub mod remember;
pub mod replay;
pub mod review;
pub mod settle;
