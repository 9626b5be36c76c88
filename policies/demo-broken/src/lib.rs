//! Demo: a policy that never ends. The host stops it, and the call is refused: a broken guard is no open door.
#![cfg_attr(target_arch = "wasm32", no_std)]

use portcullis_policy::{Call, Decision, Policy, policy};

struct Broken;

impl Policy for Broken {
    fn evaluate(_: &Call) -> Decision {
        loop {
            core::hint::black_box(());
        }
    }
}

policy!(Broken);
