//! Step 12 of a call: its answer is fitted to the model that made it, cleaned by the sanitisers in force when it arrives (R19), and their labels are kept before
//! anybody sees it (R33).

use std::sync::Arc;

use super::media;
use super::sanitise::{self, About, Clean};
use crate::model::cleaning::SanitiserVoice;
use crate::model::digest::Digest;
use crate::model::media::Modalities;
use crate::model::name::CallId;
use crate::model::outcome::{Failure, Stage};
use crate::model::tool::CatalogTool;
use crate::model::verdict::Label;
use crate::pipeline::admit::catalog::Catalog;
use crate::pipeline::bind::noted::Stated;
use crate::pipeline::consent::observe::Observatory;
use crate::pipeline::dispatch::call::Raw;
use crate::ports::approval::{Kind, PolicySet};
use crate::ports::recorder::ObservedRecord;
use crate::ports::state::StateFailed;

/// What an answer belongs to.
pub struct Finishing<'a> {
    /// The catalog, for the policies in force.
    pub catalog: &'a Catalog,
    /// Where observed sanitisers run.
    pub observatory: &'a Observatory,
    /// The call's state.
    pub stated: &'a Stated,
    /// The call.
    pub call: &'a CallId,
    /// Its tool, as it was prepared.
    pub tool: &'a CatalogTool,
    /// What it is.
    pub kind: Kind,
    /// The digest of its arguments.
    pub arguments: Digest,
    /// What the model behind the call takes.
    pub takes: Modalities,
}

impl Finishing<'_> {
    /// Cleans the answer, and returns what each sanitiser said of it. An answer whose labels cannot be read or kept is
    /// withheld.
    pub async fn clean(&self, raw: Raw) -> (Clean, Vec<SanitiserVoice>) {
        let policies = Arc::clone(self.catalog.current().policies());
        let (labels, unread) = match self.labels(&policies).await {
            Ok(labels) => (labels, None),
            Err(error) => (Arc::from([]), Some(error)),
        };
        let about = About {
            kind: self.kind,
            tool: self.tool.reference(),
            identity: self.tool.identity,
            caller: self.stated.caller().clone(),
            labels,
            now_ms: self.stated.now_ms(),
        };
        let schema = self.tool.definition.value().get("outputSchema").filter(|schema| schema.is_object());
        let cleaned = sanitise::clean(media::fit(raw, self.takes), &policies, &about, schema).await;
        let observed = ObservedRecord {
            at: self.stated.now(),
            call: self.call.clone(),
            kind: self.kind,
            tool: about.tool,
            tenant: about.caller.tenant,
            policy_set: policies.digest,
            arguments: self.arguments,
            voices: Vec::new(),
            connectors: Vec::new(),
            sanitisers: Vec::new(),
            hooks: Vec::new(),
        };
        self.observatory.start_answer(observed, cleaned.observers);
        let kept = match unread {
            Some(error) => Err(error),
            None if cleaned.labels.is_empty() => Ok(()),
            None => self.stated.label(cleaned.labels).await,
        };
        let clean = match kept {
            Ok(()) => cleaned.clean,
            Err(error) => cleaned.clean.withhold(Failure::state_failed(Stage::Sanitise, error)),
        };
        (clean, cleaned.voices)
    }

    /// The labels of the caller's principal; not looked up where nobody asks.
    async fn labels(&self, policies: &PolicySet) -> Result<Arc<[Label]>, StateFailed> {
        if policies.sanitisers.is_empty() { Ok(Arc::from([])) } else { self.stated.labels().await }
    }
}
