//! The baseline: which calls run without asking (steps A1 and A2; R10).
//!
//! It answers allow or ask, nothing else, and only from the posture and the hints. Strict review, the policy `never`, grants,
//! hooks and people are the host's.
#![cfg_attr(target_arch = "wasm32", no_std)]

use portcullis_policy::{Call, Decision, Hints, Mode, Policy, Posture, Remember, allow, ask, policy};

struct Baseline;

impl Policy for Baseline {
    fn evaluate(call: &Call) -> Decision {
        decide(&call.posture(), call.hints())
    }
}

policy!(Baseline);

fn decide(posture: &Posture, hints: Hints) -> Decision {
    // A1: nothing is ever asked for.
    if posture.mode == Mode::Approve {
        return allow("mode-approve", "the tool's mode is approve");
    }
    if posture.approval_policy == "never" && posture.full_write {
        return allow("full-access", "the profile permits writing anywhere and the policy is never to ask");
    }
    // A2: by mode and hints. Only under `auto` may an agreement be remembered: the other modes ask on purpose.
    let reads = hints.read_only == Some(true);
    match posture.mode {
        Mode::Approve => allow("mode-approve", "the tool's mode is approve"),
        Mode::Prompt => ask("mode-prompt", "the tool's mode is prompt", Remember::Never),
        // `destructive` does not count here.
        Mode::Writes if reads => allow("read-only-hint", "the tool says that it only reads"),
        Mode::Writes => ask("mode-writes", "the tool may write", Remember::Never),
        Mode::Auto if hints.destructive == Some(true) => {
            ask("may-destroy-or-reach-out", "the tool says that it may destroy something", Remember::Always)
        }
        // `open-world` does not count for a tool that only reads (rows D21, D22; R42).
        Mode::Auto if reads => allow("read-only-hint", "the tool says that it only reads"),
        // What a tool does not say is taken for the worse.
        Mode::Auto if hints.destructive == Some(false) && hints.open_world == Some(false) => {
            allow("closed-world-hint", "the tool says that it destroys nothing and stays inside")
        }
        Mode::Auto => ask(
            "may-destroy-or-reach-out",
            "the tool does not say that it leaves things whole and stays inside",
            Remember::Always,
        ),
    }
}
