//! Demo: what nobody may do, whatever other layers say.
//!
//! A managed layer runs it: no mail leaves the house, and the vault's root key stays where it is.
#![cfg_attr(target_arch = "wasm32", no_std)]

use portcullis_policy::{Call, Decision, Policy, abstain, deny, policy};

/// The only mail domain that counts as inside.
const INSIDE: &str = "example.org";

struct Managed;

impl Policy for Managed {
    fn evaluate(call: &Call) -> Decision {
        match (call.server().as_str(), call.name().as_str()) {
            ("mail", "send_mail") => mail(call),
            ("vault", "read_secret") => secret(call),
            _ => abstain(),
        }
    }
}

policy!(Managed);

fn mail(call: &Call) -> Decision {
    // An address that is missing or no string is no inside address: only what was understood may pass.
    let to = call.argument_text("/to").unwrap_or_default();
    match to.rsplit_once('@') {
        Some((name, domain)) if is_plain(name) && domain.eq_ignore_ascii_case(INSIDE) => abstain(),
        _ => deny("mail-stays-inside", "mail may go to example.org only"),
    }
}

/// One plain mailbox name. A list of addresses, a display name or a second `@` could hide an outside address.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'+' | b'-'))
}

fn secret(call: &Call) -> Decision {
    match call.argument_text("/name") {
        Some(name) if !name.trim().eq_ignore_ascii_case("root-key") => abstain(),
        _ => deny("root-key-is-sealed", "nobody reads the root key through a tool"),
    }
}
