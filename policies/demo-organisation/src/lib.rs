//! Demo: mail needs an agreement, reading the file store does not.
//!
//! An organisation's layer runs it. Its allow lifts the baseline's ask only; what the managed layer refuses stays refused.
#![cfg_attr(target_arch = "wasm32", no_std)]

use portcullis_policy::{Call, Decision, Policy, Remember, abstain, allow, ask, policy};

struct Organisation;

impl Policy for Organisation {
    fn evaluate(call: &Call) -> Decision {
        match (call.server().as_str(), call.name().as_str()) {
            ("mail", "send_mail") => ask("mail-needs-consent", "mail is sent in your name", Remember::Session),
            ("files", "list_files" | "read_file") => {
                allow("file-store-is-open", "everybody here may read the file store")
            }
            _ => abstain(),
        }
    }
}

policy!(Organisation);
