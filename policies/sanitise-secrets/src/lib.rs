//! The shipped sanitiser of secrets: cloud keys, tokens, private keys and passwords become placeholders.
//!
//! It looks for forms in the texts itself. The host's search would have to be told some kilobytes of patterns for each of the
//! hundreds of texts that an answer has, and was measured to be no faster on long ones.
//!
//! Settings that it cannot read, and more secrets than an edit script may have, withhold the answer.
#![cfg_attr(target_arch = "wasm32", no_std)]

mod options;
mod rules;
mod scan;
mod values;

use portcullis_policy::sanitiser::{Class, Decision, Output, Sanitiser, edit, replace, withhold};
use portcullis_policy::settings::{Problem, Settings};
use portcullis_policy::{String, Vec, host, sanitiser, settings, vec};

use options::{Options, SCHEMA};
use rules::Kind;
use scan::{Found, scan, secret_name};
use values::placeholder;

/// The most edits that the host takes.
const MAX_EDITS: usize = 4096;

struct Secrets;

impl Sanitiser for Secrets {
    fn sanitise(output: &Output) -> Decision {
        let Ok(options) = Options::read(&host::settings()) else {
            return withhold("settings-unreadable", "the settings of the sanitiser of secrets cannot be read");
        };
        let (mut edits, mut rule) = (Vec::new(), None);
        for index in 0..output.targets() {
            let (Some(target), Some(text)) = (output.target(index), output.text(index)) else { continue };
            let found = match whole(&target.pointer, &text) {
                Some(found) => vec![found],
                None => scan(&text),
            };
            for Found { start, end, kind } in found {
                let allowed = text.get(start..end).is_none_or(|secret| options.allows(secret));
                if allowed || !options.wants(kind) {
                    continue;
                }
                let (Ok(from), Ok(to)) = (u32::try_from(start), u32::try_from(end)) else { continue };
                edits.push(replace(index, from, to, Class::Secret));
                rule = Some(rule.map_or(kind.name(), |rule| if rule == kind.name() { rule } else { "secrets" }));
                if edits.len() > MAX_EDITS {
                    return withhold("too-many-secrets", "the answer has more secrets than can be taken out of it");
                }
            }
        }
        edit(rule.unwrap_or("secrets"), edits)
    }
}

sanitiser!(Secrets);

impl Settings for Secrets {
    fn schema() -> String {
        String::from(SCHEMA)
    }

    fn validate(settings: String) -> Vec<Problem> {
        let wrong = Options::read(&settings).err();
        wrong.into_iter().map(|(pointer, message)| Problem { pointer: String::from(pointer), message }).collect()
    }
}

settings!(Secrets);

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::CloudKey => "cloud-key",
            Self::Token => "token",
            Self::PrivateKey => "private-key",
            Self::UrlPassword => "url-password",
            Self::Password => "password",
        }
    }
}

/// The value of an object's member with a secret's name is one as a whole.
fn whole(pointer: &str, text: &str) -> Option<Found> {
    let inside = pointer.strip_prefix("/structuredContent/")?;
    let kind = secret_name(inside.rsplit('/').next()?.as_bytes())?;
    let (length, value) = (text.len(), text.as_bytes());
    let is_one = (4..=512).contains(&length) && !text.contains(char::is_whitespace) && !placeholder(value);
    is_one.then_some(Found { start: 0, end: length, kind })
}
