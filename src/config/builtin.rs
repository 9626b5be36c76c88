//! Components that come with the program: `component = "builtin:NAME"`, in any layer.
//!
//! They are this program's own bytes, so nothing about a file applies: no pin is needed, trust binds nothing (R7), a lock does
//! not list them, and requirements about who may be loaded do not refuse them.

use super::unknown::closest;
use crate::model::text::shown;

/// What a component's name begins with where it is no file.
const SCHEME: &str = "builtin:";

/// A component that comes with the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builtin {
    /// Takes keys, tokens and passwords out of answers.
    SanitiseSecrets,
}

impl Builtin {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::SanitiseSecrets];

    /// Returns the name behind `builtin:`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SanitiseSecrets => "sanitise-secrets",
        }
    }

    /// Returns what a policy's `component` names; none for a file.
    pub(crate) fn named(component: &str) -> Option<Self> {
        let name = component.strip_prefix(SCHEME)?;
        Self::ALL.into_iter().find(|builtin| builtin.name() == name)
    }

    /// Says what is wrong with a `component` that begins like one of these and is none.
    pub(crate) fn fault(component: &str) -> Option<String> {
        let name = component.strip_prefix(SCHEME).filter(|_| Self::named(component).is_none())?;
        let names = || Self::ALL.into_iter().map(Self::name);
        let meant = closest(name, names()).map(|name| format!("; did you mean `{SCHEME}{name}`?")).unwrap_or_default();
        let known = names().collect::<Vec<_>>().join("`, `");
        Some(format!("no component `{}` comes with this program, only `{known}`{meant}", shown(name, 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_builtin_is_named_exactly_and_a_slip_names_the_nearest() {
        for builtin in Builtin::ALL {
            let component = format!("builtin:{}", builtin.name());
            assert_eq!((Builtin::named(&component), Builtin::fault(&component)), (Some(builtin), None));
        }
        assert_eq!((Builtin::named("a/b.wasm"), Builtin::fault("a/b.wasm")), (None, None));
        let slip = Builtin::fault("builtin:sanitize-secrets").unwrap();
        assert!(slip.contains("did you mean `builtin:sanitise-secrets`?"), "{slip}");
        assert!(Builtin::fault("builtin:").is_some() && Builtin::named("builtin:").is_none());
    }
}
