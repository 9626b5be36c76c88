//! The shipped sanitiser of secrets: cloud keys, tokens, private keys and passwords become placeholders.
//!
//! It looks for forms in the texts itself. In a long text the host's search tells first where they can be; for a short one,
//! of which an answer has hundreds, asking would cost more than looking.
//!
//! Settings that it cannot read, and more secrets than an edit script may have, withhold the answer.
#![cfg_attr(target_arch = "wasm32", no_std)]

mod options;
mod scan;

use portcullis_policy::sanitiser::{Class, Decision, Output, Sanitiser, Span, edit, replace, withhold};
use portcullis_policy::settings::{Problem, Settings};
use portcullis_policy::{String, Vec, format, host, sanitiser, settings, vec};

use options::{Options, SCHEMA};
use scan::{Found, Kind, placeholder, scan, scan_in, secret_name};

/// The most edits that the host takes.
const MAX_EDITS: usize = 4096;

/// From how many bytes on the host searches first.
const LONG: usize = 16 * 1024;

struct Secrets;

impl Sanitiser for Secrets {
    fn sanitise(output: &Output) -> Decision {
        let Ok(options) = Options::read(&host::settings()) else {
            return withhold("settings-unreadable", "the settings of the sanitiser of secrets cannot be read");
        };
        let (mut edits, mut rule, mut patterns) = (Vec::new(), None, None);
        for index in 0..output.targets() {
            let (Some(target), Some(text)) = (output.target(index), output.text(index)) else { continue };
            let found = match whole(&target.pointer, &text) {
                Some(found) => vec![found],
                None if text.len() < LONG => scan(&text),
                None => scan_in(&text, &places(output, index, patterns.get_or_insert_with(scan::patterns))),
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

/// Where a text can have secrets, by the host's search; parts that touch are one.
fn places(output: &Output, index: u32, patterns: &[String]) -> Vec<(usize, usize)> {
    let mut places: Vec<(usize, usize)> = Vec::new();
    for Span { start, end, .. } in output.find(index, patterns) {
        let (start, end) = (start as usize, end as usize);
        match places.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => places.push((start, end)),
        }
    }
    places
}

/// The value of an object's member with a secret's name is one as a whole.
fn whole(pointer: &str, text: &str) -> Option<Found> {
    let inside = pointer.strip_prefix("/structuredContent/")?;
    let kind = secret_name(inside.rsplit('/').next()?.as_bytes())?;
    let (length, value) = (text.len(), text.as_bytes());
    let is_one = (4..=512).contains(&length) && !text.contains(char::is_whitespace) && !placeholder(value);
    is_one.then_some(Found { start: 0, end: length, kind })
}
