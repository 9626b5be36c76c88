//! Roles: what somebody is who approves, and what a layer wants them to be (R20).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::layer::LayerRef;
use super::text::shown;

/// The longest role, in characters.
pub const MAX_ROLE: usize = 128;
/// The most roles that a layer may name, and that an approver key may carry.
pub const MAX_ROLES: usize = 64;

/// A role: the name of a group, as whoever vouches for it spells it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Role(Arc<str>);

/// A text that is no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the role `{}` must have 1 to {MAX_ROLE} characters, no control characters, and no space at its ends", shown(.0, MAX_ROLE))]
pub struct BadRole(String);

impl Role {
    /// Reads a role.
    ///
    /// # Errors
    /// [`BadRole`]: empty, longer than [`MAX_ROLE`], with a control character or with white space at an end.
    pub fn parse(text: &str) -> Result<Self, BadRole> {
        let fits = !text.is_empty() && text.chars().count() <= MAX_ROLE;
        let clean = text.trim() == text && !text.chars().any(char::is_control);
        if fits && clean { Ok(Self(text.into())) } else { Err(BadRole(text.to_owned())) }
    }

    /// Returns the roles of these groups; a group that is no role is none.
    pub fn of_groups<'a>(groups: impl IntoIterator<Item = &'a str>) -> BTreeSet<Self> {
        groups.into_iter().filter_map(|group| Self::parse(group).ok()).collect()
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Role {
    type Error = BadRole;

    fn try_from(text: String) -> Result<Self, BadRole> {
        Self::parse(&text)
    }
}

impl From<Role> for String {
    fn from(role: Role) -> Self {
        role.as_str().to_owned()
    }
}

impl schemars::JsonSchema for Role {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Role".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

/// What one layer wants of whoever answers its asks: one of these roles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayerRoles {
    /// The layer.
    pub layer: LayerRef,
    /// The roles, never none.
    pub roles: BTreeSet<Role>,
}

impl LayerRoles {
    /// Whether somebody with these roles may answer.
    #[must_use]
    pub fn are_met_by(&self, roles: &BTreeSet<Role>) -> bool {
        !self.roles.is_disjoint(roles)
    }

    /// Returns the roles in words: `a`, `b` or `c`.
    #[must_use]
    pub fn words(&self) -> String {
        let quoted: Vec<String> =
            self.roles.iter().map(|role| format!("`{}`", shown(role.as_str(), MAX_ROLE))).collect();
        match quoted.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, before)) => format!("{} or {last}", before.join(", ")),
            None => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::layer::LayerKind;

    #[test]
    fn a_role_is_bounded_and_has_nothing_that_cannot_be_seen() {
        for good in ["ops", "DOMAIN\\Domain Users", "a b", &"é".repeat(MAX_ROLE)] {
            assert_eq!(Role::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", " ops", "ops ", "a\nb", "\u{1b}[2J", &"x".repeat(MAX_ROLE + 1)] {
            assert!(Role::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Role::of_groups(["ops", "", "a\tb"]), [Role::parse("ops").unwrap()].into());
    }

    #[test]
    fn r20_one_of_a_layers_roles_is_enough() {
        let wanted =
            LayerRoles { layer: LayerRef::new(LayerKind::Managed), roles: Role::of_groups(["ops", "sec", "dev"]) };
        assert!(wanted.are_met_by(&Role::of_groups(["users", "sec"])));
        assert!(!wanted.are_met_by(&Role::of_groups(["users"])) && !wanted.are_met_by(&BTreeSet::new()));
        assert_eq!(wanted.words(), "`dev`, `ops` or `sec`");
    }
}
