//! Consent: may it run?
//!
//! `decide` asks every layer (`connector` first, for tools of Apps), `fold` combines the answers, `settle` says what follows from them, `remember` knows
//! what earlier agreements cover, `ask` asks whoever must agree. A dry run stops after `settle`: the real call and
//! `explain` share everything up to there (R38).
//!
//! Steps of later work have their place here and are not faked: hooks, auto reviewer.

pub mod approve;
pub mod ask;
pub mod connector;
pub mod decide;
pub mod fold;
pub mod observe;
pub mod remember;
pub mod settle;
