//! Servers that whoever embeds the host adds to those of the configuration (catalog-dispatch 2 rules 1 and 3).
//!
//! They come last and win, but for two things: a name that the configuration disables stays disabled, and a server that a more
//! trusted layer defines is never replaced (R4).

use std::collections::BTreeMap;

use super::fleet::ServerSpec;
use crate::config::Resolved;
use crate::model::layer::{LayerKind, LayerRef};
use crate::model::name::ServerName;

/// Why a server was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAdded {
    /// The configuration has the name, and disables it.
    #[error("the server `{0}` is disabled, and an added one does not bring it back: {1}")]
    Vetoed(ServerName, String),
    /// A more trusted layer defines it.
    #[error("the server `{0}` is defined whole by the {1} layer, which is more trusted (R4)")]
    Defined(ServerName, LayerRef),
}

/// Adds a server to those of a host, in place of one of that name: before [`super::Host::start`] and before every
/// [`super::Host::reconfigure`]. `disabled` are the servers that are not to be run; `kind` is how trusted the definition is.
/// Requirements do not see it: who embeds the host needs no leave.
///
/// # Errors
/// [`NotAdded`]; then the servers are as they were.
pub fn add(
    servers: &mut BTreeMap<ServerName, ServerSpec>,
    disabled: &BTreeMap<ServerName, String>,
    resolved: &Resolved,
    kind: LayerKind,
    (name, spec): (ServerName, ServerSpec),
) -> Result<(), NotAdded> {
    let own = resolved.servers.get(&name);
    // What is disabled and required is run, so as to fail: that is no leave either.
    if let Some(why) = own.and_then(|own| own.enabled.as_ref().err()).or_else(|| disabled.get(&name)) {
        return Err(NotAdded::Vetoed(name, why.clone()));
    }
    if let Some(own) = own.filter(|own| own.layer.kind() > kind) {
        return Err(NotAdded::Defined(name, own.layer.clone()));
    }
    servers.insert(name, spec);
    Ok(())
}
