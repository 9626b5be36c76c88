//! What a session shows besides answers, cleaned by the sanitisers in force (R31): progress and log messages of servers.
//!
//! Fails closed: what cannot be looked at, because its tool or the labels are gone or a sanitiser fails, is not shown.

use std::sync::Arc;

use serde_json::Value;

use super::session::Session;
use crate::model::digest::Digest;
use crate::model::name::{CallId, RawToolName, ServerName, Target, ToolRef};
use crate::model::tool::{CatalogTool, ServerIdentity};
use crate::model::verdict::Label;
use crate::pipeline::emit::sanitise::{self, About, Aside};
use crate::ports::approval::Kind;
use crate::ports::state::{Effects, StatedCall};

impl Session {
    /// Returns what may be shown of a progress message of a call; none: nothing.
    pub async fn clean_progress(&self, target: &Target, message: &str) -> Option<String> {
        let snapshot = self.host().catalog().current();
        if snapshot.policies().sanitisers.is_empty() {
            return Some(message.to_owned());
        }
        let reference = target.resolved()?;
        let tool = snapshot.tools().iter().find(|tool| tool.reference() == reference)?;
        let about = self.about(reference, tool.identity).await?;
        match sanitise::progress(snapshot.policies(), &about, message).await {
            Aside::Whole => Some(message.to_owned()),
            Aside::Edited(left) => Some(left),
            Aside::Withheld(why) => withheld(&about.tool.server, &why),
        }
    }

    /// Returns what may be shown of a log message of a server, logger and data; none: nothing.
    pub async fn clean_log(
        &self,
        server: &ServerName,
        logger: Option<&str>,
        data: &Value,
    ) -> Option<(Option<String>, Value)> {
        let whole = || Some((logger.map(str::to_owned), data.clone()));
        let snapshot = self.host().catalog().current();
        if snapshot.policies().sanitisers.is_empty() {
            return whole();
        }
        let of_server = |tool: &&Arc<CatalogTool>| tool.reference().server == *server;
        let tools: Vec<&Arc<CatalogTool>> = snapshot.tools().iter().filter(of_server).collect();
        // A log message is no tool's; the name is one that policies can match.
        let reference = ToolRef { server: server.clone(), tool: RawToolName::parse("log").ok()? };
        // Without a tool every sanitiser is asked, whatever it matches by.
        let identity = tools.first().map_or_else(|| ServerIdentity(Digest::of(b"")), |tool| tool.identity);
        let about = self.about(reference, identity).await?;
        let abouts: Vec<About> = tools
            .iter()
            .map(|tool| About { tool: tool.reference(), identity: tool.identity, ..about.clone() })
            .collect();
        match sanitise::log(snapshot.policies(), &abouts, &about, logger, data).await {
            Aside::Whole => whole(),
            Aside::Edited(left) => Some(left),
            Aside::Withheld(why) => withheld(server, &why),
        }
    }

    /// Returns what may be shown of a server's instructions, or of what else it says of a namespace; none: nothing.
    pub async fn clean_instructions(&self, server: &ServerName, text: &Arc<str>) -> Option<Arc<str>> {
        match self.clean_log(server, None, &Value::from(text.as_ref())).await? {
            (_, Value::String(left)) => Some(if *left == **text { Arc::clone(text) } else { left.into() }),
            _ => None,
        }
    }

    async fn about(&self, tool: ToolRef, identity: ServerIdentity) -> Option<About> {
        let now_ms = u64::try_from(self.host().pipeline().clock.now().as_millisecond()).unwrap_or(0);
        let labels = self.labels(&tool, now_ms).await?;
        Some(About { kind: Kind::Tool, tool, identity, caller: self.caller().clone(), labels, now_ms })
    }

    /// The labels of the caller's principal, read off the reactor; none if they cannot be read.
    async fn labels(&self, tool: &ToolRef, now_ms: u64) -> Option<Arc<[Label]>> {
        let (state, caller, tool) = (Arc::clone(&self.host().pipeline().state), self.caller().clone(), tool.clone());
        let read = tokio::task::spawn_blocking(move || {
            let id = CallId::new("aside")?;
            let call = StatedCall { id: &id, caller: &caller, kind: Kind::Tool, tool: &tool };
            let read = state.moment(call, now_ms, Effects::None);
            read.inspect_err(|error| tracing::warn!(%error, "a message of a server is not shown")).ok()
        });
        Some(read.await.ok()??.labels)
    }
}

fn withheld<T>(server: &ServerName, why: &str) -> Option<T> {
    tracing::debug!(%server, why, "a message of a server was withheld");
    None
}
