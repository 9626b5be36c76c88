//! Asks the person behind a client, by MCP elicitation.
//!
//! The form has one required choice without a default: an answer that chooses nothing that was offered is a refusal, also
//! if it says "accept" (R20). A client that did not declare form elicitation cannot be asked. A question whose call ends is
//! withdrawn.
//!
//! Does not convert to the newer era, where a question is the result of the call.

use async_trait::async_trait;
use rmcp::RoleServer;
use rmcp::model::{
    ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, EnumSchema,
    LegacyEnumSchema, MetaObject, PrimitiveSchemaDefinition, RequestMetaObject, ServerRequest,
};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, ServiceError};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::question::{Choice, question_text};
use crate::model::answerable::Answerable;
use crate::model::text::shown;
use crate::model::verdict::Remember;
use crate::ports::reviewer::{Question, Reply, Reviewer};

/// The form's one property.
const DECISION: &str = "decision";

/// Asks one client.
pub struct ElicitationReviewer {
    peer: Peer<RoleServer>,
    can_ask: bool,
    hung_up: CancellationToken,
}

impl ElicitationReviewer {
    /// Makes the channel to the client behind `peer`, which can be asked if it can be shown forms. After `hung_up` nobody
    /// answers any more.
    #[must_use]
    pub fn new(peer: Peer<RoleServer>, answerable: Answerable, hung_up: CancellationToken) -> Self {
        Self { peer, can_ask: answerable.forms, hung_up }
    }

    async fn exchange(&self, question: &Question) -> Reply {
        let request = ServerRequest::ElicitRequest(ElicitRequest::new(form(question)));
        let options = PeerRequestOptions::no_options().with_meta(RequestMetaObject(MetaObject(meta(question))));
        let handle = match self.peer.send_cancellable_request(request, options).await {
            Ok(handle) => handle,
            Err(error) => {
                tracing::warn!(%error, "the client could not be asked");
                return Reply::Nobody;
            }
        };
        let mut asked = Asked(Some(handle));
        match asked.answer().await {
            Ok(ClientResult::ElicitResult(answer)) => self.reply(question, &answer),
            // An answer of another shape chooses nothing.
            Ok(_) => Reply::Declined,
            // It declared that it can ask, and says now that it cannot.
            Err(ServiceError::McpError(error)) => {
                tracing::warn!(code = error.code.0, "the client refused to ask");
                Reply::Nobody
            }
            Err(_) => Reply::Cancelled,
        }
    }

    fn reply(&self, question: &Question, answer: &ElicitResult) -> Reply {
        match answer.action {
            ElicitationAction::Accept => {}
            ElicitationAction::Cancel => return Reply::Cancelled,
            _ => return Reply::Declined,
        }
        let word = answer.content.as_ref().and_then(|content| content.get(DECISION)).and_then(Value::as_str);
        match word.and_then(|word| Choice::parse(question, word)) {
            Some(Choice::Allow(remember)) => Reply::Allowed { remember, approver: self.approver() },
            Some(Choice::Decline) | None => Reply::Declined,
        }
    }

    fn approver(&self) -> String {
        let client = self.peer.peer_info().map(|info| info.client_info.name.clone()).unwrap_or_default();
        format!("elicitation by client `{}`", shown(&client, 64))
    }
}

#[async_trait]
impl Reviewer for ElicitationReviewer {
    async fn ask(&self, question: &Question) -> Reply {
        if !self.can_ask {
            return Reply::Nobody;
        }
        tokio::select! {
            biased;
            () = self.hung_up.cancelled() => Reply::Cancelled,
            reply = self.exchange(question) => reply,
        }
    }
}

/// A question that is out. Dropping it before its answer withdraws it.
struct Asked(Option<RequestHandle<RoleServer>>);

impl Asked {
    async fn answer(&mut self) -> Result<ClientResult, ServiceError> {
        let Some(handle) = &mut self.0 else { return Err(ServiceError::TransportClosed) };
        let answer = (&mut handle.rx).await;
        self.0 = None;
        answer.unwrap_or(Err(ServiceError::TransportClosed))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let (Some(handle), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(handle.cancel(Some("the question is withdrawn".to_owned())));
        }
    }
}

fn form(question: &Question) -> ElicitRequestParams {
    let choices = Choice::offered(question);
    let mut decision = LegacyEnumSchema::new(choices.iter().map(|choice| choice.word().to_owned()).collect());
    decision.title = Some("Decision".into());
    decision.enum_names = Some(choices.iter().map(|choice| choice.meaning(question)).collect());
    let decision = PrimitiveSchemaDefinition::Enum(EnumSchema::Legacy(decision));
    let mut schema = ElicitationSchema::new([(DECISION.to_owned(), decision)].into());
    schema.required = Some(vec![DECISION.to_owned()]);
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: question_text(question),
        requested_schema: schema,
    }
}

/// What clients that know approval requests read (approval-results 5.2).
fn meta(question: &Question) -> Map<String, Value> {
    let mut meta = Map::new();
    meta.insert("codex_approval_kind".to_owned(), json!("mcp_tool_call"));
    let offers = |remember| question.options.contains(&remember);
    let persist = match (offers(Remember::Session), offers(Remember::Always)) {
        (true, true) => Some(json!(["session", "always"])),
        (true, false) => Some(json!("session")),
        (false, true) => Some(json!("always")),
        (false, false) => None,
    };
    meta.extend(persist.map(|persist| ("persist".to_owned(), persist)));
    meta.extend(question.title.as_deref().map(|title| ("tool_title".to_owned(), json!(title))));
    // A text that was cut or escaped is no JSON any more, and is in the message only.
    if let Ok(Value::Object(arguments)) = serde_json::from_str(&question.arguments)
        && !arguments.is_empty()
    {
        let rows = arguments.iter().map(|(name, value)| json!({ "name": name, "value": value, "display_name": name }));
        meta.insert("tool_params_display".to_owned(), rows.collect());
        meta.insert("tool_params".to_owned(), Value::Object(arguments));
    }
    meta
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::question::tests::question;

    #[test]
    fn r20_the_form_has_one_required_choice_without_a_default() {
        let form = serde_json::to_value(form(&question(&[Remember::Never, Remember::Session]))).unwrap();
        let schema = &form["requestedSchema"];
        assert_eq!(schema["required"], json!(["decision"]));
        let decision = &schema["properties"]["decision"];
        assert_eq!(decision["enum"], json!(["allow", "allow-for-session", "decline"]));
        assert_eq!(decision["enumNames"].as_array().map(Vec::len), Some(3));
        assert!(decision.get("default").is_none());
    }

    #[test]
    fn the_meta_says_what_may_be_remembered() {
        let persist = |options: &[Remember]| meta(&question(options)).get("persist").cloned();
        assert_eq!(persist(&[Remember::Never]), None);
        assert_eq!(persist(&[Remember::Never, Remember::Session]), Some(json!("session")));
        let all = [Remember::Never, Remember::Session, Remember::Always];
        assert_eq!(persist(&all), Some(json!(["session", "always"])));
        let meta = Value::Object(meta(&question(&all)));
        assert_eq!(meta["codex_approval_kind"], "mcp_tool_call");
        assert_eq!(meta["tool_title"], "Write a file");
        assert_eq!(meta["tool_params"], json!({ "path": "a" }));
        assert_eq!(meta["tool_params_display"], json!([{ "name": "path", "value": "a", "display_name": "path" }]));
    }
}
