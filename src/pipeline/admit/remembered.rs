//! What a server that is starting listed the last time, as a publication brings it (catalog-dispatch 3.1 rule 3).
//!
//! Its tools are listed and nothing can be prepared from them: a [`Listed`](super::catalog::Listed) needs a connection. A call
//! of one waits for the live server and is prepared against the definition that is live by then. What the digest of a shown
//! definition is taken of stays the whole definition (R24), so that an unchanged tool is not stale once its server is there;
//! its annotations are neither shown nor counted where they relax, for no connection vouches for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::catalog::{PublishedServer, ServerView};
use crate::model::name::{RawToolName, ServerName};
use crate::model::tool::{Connector, Hints, ServerIdentity, ToolDefinition};

/// Everything that is published at once.
#[derive(Default)]
pub struct Publication {
    /// The servers that are connected.
    pub live: BTreeMap<ServerName, PublishedServer>,
    /// Those that are starting and whose last list is known; one that is connected counts as that.
    pub remembered: BTreeMap<ServerName, RememberedServer>,
}

impl From<BTreeMap<ServerName, PublishedServer>> for Publication {
    fn from(live: BTreeMap<ServerName, PublishedServer>) -> Self {
        Self { live, remembered: BTreeMap::new() }
    }
}

/// What a server that is starting brings into a publication.
#[derive(Debug, Clone, PartialEq)]
pub struct RememberedServer {
    /// What the server is.
    pub identity: ServerIdentity,
    /// The definitions that it listed last, filtered by what is configured now.
    pub tools: Vec<Arc<ToolDefinition>>,
    /// The App connectors of its tools.
    pub connectors: BTreeMap<RawToolName, Connector>,
    /// What is configured now.
    pub view: ServerView,
}

/// What the tools of a publication are made of, from either.
pub(super) struct Source<'a> {
    pub(super) identity: ServerIdentity,
    pub(super) tools: &'a [Arc<ToolDefinition>],
    pub(super) connectors: &'a BTreeMap<RawToolName, Connector>,
    pub(super) view: &'a ServerView,
    pub(super) instructions: Option<&'a Arc<str>>,
    remembered: bool,
}

impl Publication {
    /// Returns what tools are made of, by server.
    pub(super) fn sources(&self) -> BTreeMap<ServerName, Source<'_>> {
        let remembered = self.remembered.iter().map(|(name, server)| (name.clone(), Source::remembered(server)));
        let live = self.live.iter().map(|(name, server)| (name.clone(), Source::live(server)));
        // The last of two with one name counts.
        remembered.chain(live).collect()
    }
}

impl<'a> Source<'a> {
    fn live(server: &'a PublishedServer) -> Self {
        Self {
            identity: server.identity,
            tools: &server.tools,
            connectors: &server.connectors,
            view: &server.view,
            instructions: server.instructions.as_ref(),
            remembered: false,
        }
    }

    fn remembered(server: &'a RememberedServer) -> Self {
        Self {
            identity: server.identity,
            tools: &server.tools,
            connectors: &server.connectors,
            view: &server.view,
            instructions: None,
            remembered: true,
        }
    }

    /// Returns the hints that count (R9).
    pub(super) fn hints(&self, definition: &ToolDefinition) -> Hints {
        let hints = definition.hints();
        if self.view.may_relax && !self.remembered { hints } else { hints.without_relaxing() }
    }

    /// Returns what is shown in the place of `facing`; none where that itself is. The error: there is nothing that could be.
    pub(super) fn unvouched(&self, facing: &Arc<ToolDefinition>) -> Result<Option<Arc<ToolDefinition>>, ()> {
        if !self.remembered {
            return Ok(None);
        }
        facing.without_annotations().map(Some).map_err(|_| ())
    }
}
