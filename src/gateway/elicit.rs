//! Asks the person behind a client, by MCP elicitation.
//!
//! The form has one required choice without a default: an answer that chooses nothing that was offered is a refusal, also
//! if it says "accept" (R20). A client that did not declare form elicitation cannot be asked. A question whose call ends is
//! withdrawn.
//!
//! In the stateless era the same question is the result of the call.

use std::collections::BTreeSet;

use async_trait::async_trait;
use rmcp::RoleServer;
use rmcp::model::{
    ClientResult, ElicitRequest, ElicitRequestParams, ElicitationSchema, EnumSchema, LegacyEnumSchema, MetaObject,
    PrimitiveSchemaDefinition, RequestMetaObject, ServerRequest,
};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, ServiceError};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::parked::Told;
use super::question::{Choice, question_text};
use super::way::Way;
use crate::model::answerable::Answerable;
use crate::model::posture::Channel;
use crate::model::role::Role;
use crate::model::text::shown;
use crate::model::verdict::Remember;
use crate::ports::approval::Kind;
use crate::ports::reviewer::{Question, Reply, Reviewer, Roles};

/// What asks.
const METHOD: &str = "elicitation/create";
/// The form's one property.
const DECISION: &str = "decision";

/// Asks one client.
pub struct ElicitationReviewer {
    way: Way,
    /// Who answers, in words for the record.
    approver: String,
    /// What they are, as far as the authentication vouches for it (R20).
    roles: BTreeSet<Role>,
    can_ask: bool,
    hung_up: CancellationToken,
}

impl ElicitationReviewer {
    /// Makes the channel to the client behind `peer`, which shook hands and can be asked if it can be shown forms. After
    /// `hung_up` nobody answers any more.
    #[must_use]
    pub fn new(peer: Peer<RoleServer>, answerable: Answerable, hung_up: CancellationToken) -> Self {
        let client = peer.peer_info().map(|info| info.client_info.name.clone()).unwrap_or_default();
        Self::by(Way::Requests(peer), &client, answerable, hung_up)
    }

    /// The same for a client that is asked in this way; `client` is what it calls itself.
    pub(super) fn by(way: Way, client: &str, answerable: Answerable, hung_up: CancellationToken) -> Self {
        let approver = format!("elicitation by client `{}`", shown(client, 64));
        Self { way, approver, roles: BTreeSet::new(), can_ask: answerable.forms, hung_up }
    }

    /// The same, for a person of whom the authentication says that they have these roles (R20).
    #[must_use]
    pub fn with_roles(self, roles: BTreeSet<Role>) -> Self {
        Self { roles, ..self }
    }

    fn reply(&self, question: &Question, answer: &Value) -> Reply {
        reply(question, answer, &self.approver, &self.roles)
    }

    async fn exchange(&self, question: &Question) -> Reply {
        let peer = match &self.way {
            Way::Requests(peer) => peer,
            Way::Results(_) => {
                return match self.way.park(METHOD, params(question), question.deadline).await {
                    // Of another shape, or missing, an answer chooses nothing.
                    Some(Told::Result(text)) => self.reply(question, &serde_json::from_str(&text).unwrap_or_default()),
                    Some(Told::Missing) => Reply::Declined,
                    Some(Told::NoRoom) => Reply::Nobody,
                    None => Reply::Cancelled,
                };
            }
        };
        let request = ServerRequest::ElicitRequest(ElicitRequest::new(form(question)));
        let options = PeerRequestOptions::no_options().with_meta(RequestMetaObject(MetaObject(meta(question))));
        let handle = match peer.send_cancellable_request(request, options).await {
            Ok(handle) => handle,
            Err(error) => {
                tracing::warn!(%error, "the client could not be asked");
                return Reply::Nobody;
            }
        };
        let mut asked = Asked(Some(handle));
        match asked.answer().await {
            Ok(answer) => self.reply(question, &serde_json::to_value(answer).unwrap_or_default()),
            // It declared that it can ask, and says now that it cannot.
            Err(ServiceError::McpError(error)) => {
                tracing::warn!(code = error.code.0, "the client refused to ask");
                Reply::Nobody
            }
            Err(_) => Reply::Cancelled,
        }
    }
}

/// Returns what the result of an elicitation chooses (approval-results 5.3, under R20): of what was offered, by the form or by
/// the key `persist` that clients know which know approval requests; where both say something, the narrower. Anything else is
/// a refusal.
fn reply(question: &Question, answer: &Value, approver: &str, roles: &BTreeSet<Role>) -> Reply {
    match answer.get("action").and_then(Value::as_str) {
        Some("accept") => {}
        Some("cancel") => return Reply::Cancelled,
        _ => return Reply::Declined,
    }
    let persist = answer.pointer("/_meta/persist").and_then(Value::as_str);
    let by_meta = match persist {
        Some("session") => Some(Choice::Allow(Remember::Session)),
        Some("always") => Some(Choice::Allow(Remember::Always)),
        _ => None,
    };
    let offered = Choice::offered(question);
    let by_form = match answer.get("content").filter(|content| !content.is_null()) {
        None => None,
        Some(Value::Object(content)) if !content.contains_key(DECISION) => None,
        Some(content) => {
            let word = content.get(DECISION).and_then(Value::as_str);
            Some(word.and_then(|word| Choice::parse(question, word)).unwrap_or(Choice::Decline))
        }
    };
    let said = [by_form, by_meta].into_iter().flatten();
    let allows = said.map(|choice| match choice {
        Choice::Allow(remember) if offered.contains(&choice) => Some(remember),
        _ => None,
    });
    // One refusal among them refuses; nothing said chooses nothing.
    match allows.collect::<Option<Vec<_>>>().and_then(|allowed| allowed.into_iter().min()) {
        Some(remember) => Reply::Allowed {
            remember,
            approver: question.named(approver, roles),
            channel: Channel::Elicitation,
            roles: Roles::Of(roles.clone()),
        },
        None => Reply::Declined,
    }
}

#[async_trait]
impl Reviewer for ElicitationReviewer {
    async fn ask(&self, question: &Question) -> Reply {
        let may_answer =
            question.may_be_answered_by(Channel::Elicitation) && question.wants_other_than(&self.roles).is_none();
        if !self.can_ask || !may_answer {
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

/// The parameters of the request that a client of the stateless era finds in a result.
fn params(question: &Question) -> Value {
    let mut params = serde_json::to_value(form(question)).unwrap_or_default();
    if let Some(params) = params.as_object_mut() {
        params.insert("_meta".to_owned(), Value::Object(meta(question)));
    }
    params
}

/// What clients that know approval requests read (approval-results 5.2). What is no call of a tool is none of those requests:
/// such a client must not show an answer to a server as a call.
fn meta(question: &Question) -> Map<String, Value> {
    let mut meta = Map::new();
    if question.kind != Kind::Tool {
        return meta;
    }
    meta.insert("codex_approval_kind".to_owned(), json!("mcp_tool_call"));
    let offers = |remember| question.options.contains(&remember);
    let persist = match (offers(Remember::Session), offers(Remember::Always)) {
        (true, true) => Some(json!(["session", "always"])),
        (true, false) => Some(json!("session")),
        (false, true) => Some(json!("always")),
        (false, false) => None,
    };
    meta.extend(persist.map(|persist| ("persist".to_owned(), persist)));
    let mut put = |key: &str, text: Option<&str>| meta.extend(text.map(|text| (key.to_owned(), json!(text))));
    put("tool_title", question.title.as_deref());
    put("tool_description", question.description.as_deref());
    if let Some(connector) = &question.connector {
        put("source", Some("connector"));
        put("connector_id", Some(&connector.id));
        put("connector_name", connector.name.as_deref());
        put("connector_description", connector.description.as_deref());
    }
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
    use crate::model::layer::{LayerKind, LayerRef};
    use crate::model::role::LayerRoles;
    use crate::ports::reviewer::AskedConnector;

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

    /// What a row of the table comes to.
    #[derive(Debug, PartialEq)]
    enum Outcome {
        Allowed(Remember),
        Declined,
        Cancelled,
    }

    #[test]
    fn r20_q01_to_q16_an_answer_chooses_what_was_offered_or_nothing() {
        use Outcome::{Allowed, Cancelled, Declined};
        use Remember::{Always, Never, Session};
        let (all, some, once): (&[_], &[_], &[_]) = (&[Never, Session, Always], &[Never, Session], &[Never]);
        let accept = |content: Value, meta: Value| {
            let mut answer = json!({ "action": "accept" });
            for (key, value) in [("content", content), ("_meta", meta)] {
                if !value.is_null() {
                    answer[key] = value;
                }
            }
            answer
        };
        let (none, chosen, persist) =
            (Value::Null, |word: &str| json!({ "decision": word }), |what: Value| json!({ "persist": what }));
        // The row, what the reference makes of it where ours is another, what was offered, the answer, what it comes to.
        let rows = [
            ("Q02", "Approved: R20 wants a choice", all, accept(none.clone(), none.clone()), Declined),
            ("Q03", "", all, accept(none.clone(), persist(json!("session"))), Allowed(Session)),
            ("Q03 with an empty form", "", all, accept(json!({}), persist(json!("session"))), Allowed(Session)),
            ("Q04", "", all, accept(none.clone(), persist(json!("always"))), Allowed(Always)),
            ("Q05 array", "Approved", all, accept(none.clone(), persist(json!(["session"]))), Declined),
            ("Q05 unknown", "Approved", all, accept(none.clone(), persist(json!("forever"))), Declined),
            ("Q05 and a choice", "", all, accept(chosen("allow"), persist(json!(["session"]))), Allowed(Never)),
            (
                "Q06",
                "by label, in the fallback alone",
                all,
                accept(chosen("allow-for-session"), none.clone()),
                Allowed(Session),
            ),
            ("Q06 label", "ApprovedForSession", all, accept(chosen("Allow for this session"), none.clone()), Declined),
            (
                "Q07",
                "by label, in the fallback alone",
                all,
                accept(chosen("always-allow"), none.clone()),
                Allowed(Always),
            ),
            (
                "Q07 array",
                "ApprovedMcpPolicyAmendment",
                all,
                accept(json!({ "decision": ["always-allow"] }), none.clone()),
                Declined,
            ),
            ("Q08", "Approved", all, accept(chosen("Cancel"), none.clone()), Declined),
            ("Q08 our word", "", all, accept(chosen("decline"), none.clone()), Declined),
            (
                "Q08 and persist",
                "ApprovedForSession",
                all,
                accept(chosen("Cancel"), persist(json!("session"))),
                Declined,
            ),
            ("Q09 no object", "Approved", all, accept(json!("allow"), none.clone()), Declined),
            (
                "Q09 no object, and persist",
                "ApprovedForSession",
                all,
                accept(json!([]), persist(json!("session"))),
                Declined,
            ),
            ("Q09 other keys", "Approved", all, accept(json!({ "x": "allow" }), none.clone()), Declined),
            ("Q10", "", all, accept(chosen("always-allow"), persist(json!("session"))), Allowed(Session)),
            (
                "Q10 the other way",
                "ApprovedMcpPolicyAmendment: meta wins",
                all,
                accept(chosen("allow"), persist(json!("always"))),
                Allowed(Never),
            ),
            ("Q11", "", all, json!({ "action": "decline", "content": chosen("allow") }), Declined),
            ("Q11 and persist", "", all, json!({ "action": "decline", "_meta": persist(json!("session")) }), Declined),
            ("Q12", "", all, json!({ "action": "cancel", "_meta": persist(json!("session")) }), Cancelled),
            ("Q12 unknown", "Abort", all, json!({ "action": "maybe" }), Declined),
            ("Q12 none", "Abort", all, json!({}), Declined),
            ("Q13 session", "Approved, for this call", once, accept(none.clone(), persist(json!("session"))), Declined),
            ("Q13 always", "Approved, for this call", once, accept(none.clone(), persist(json!("always"))), Declined),
            ("Q16", "stored for the session", some, accept(none.clone(), persist(json!("always"))), Declined),
            (
                "Q16 and a choice",
                "stored for the session",
                some,
                accept(chosen("allow"), persist(json!("always"))),
                Declined,
            ),
            ("Q16 by form", "stored for the session", some, accept(chosen("always-allow"), none.clone()), Declined),
            ("no result at all", "", all, none, Declined),
        ];
        for (row, theirs, offered, answer, expected) in rows {
            let outcome = match reply(&question(offered), &answer, "x", &BTreeSet::new()) {
                Reply::Allowed { remember, .. } => Allowed(remember),
                Reply::Declined => Declined,
                Reply::Cancelled => Cancelled,
                other => panic!("{row}: {other:?}"),
            };
            assert_eq!(outcome, expected, "{row} (the reference: {theirs}): {answer}");
        }
    }

    #[test]
    fn q01_a_question_whose_call_is_over_is_called_off() {
        let (asks, out) = tokio::sync::mpsc::channel(1);
        drop(out);
        let answerable = Answerable { forms: true, ..Answerable::default() };
        let reviewer = ElicitationReviewer::by(Way::Results(asks), "x", answerable, CancellationToken::new());
        assert_eq!(futures::executor::block_on(reviewer.ask(&question(&[Remember::Never]))), Reply::Cancelled);
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

    #[test]
    fn the_meta_tells_of_the_tool_and_of_its_connector_what_is_known() {
        let plain = Value::Object(meta(&question(&[Remember::Never])));
        let keys = ["source", "connector_id", "connector_name", "connector_description", "tool_description"];
        assert!(keys.iter().all(|key| plain.get(key).is_none()), "{plain}");
        let (id, name) = ("calendar".to_owned(), Some("Calendar".to_owned()));
        let of_app = Question {
            description: Some("Makes an event.".to_owned()),
            connector: Some(AskedConnector { id, name, description: None }),
            ..question(&[Remember::Never])
        };
        let told = Value::Object(meta(&of_app));
        let wanted = [json!("connector"), json!("calendar"), json!("Calendar"), Value::Null, json!("Makes an event.")];
        assert_eq!(keys.map(|key| told.get(key).cloned().unwrap_or_default()), wanted);
    }

    #[test]
    fn r23_a_reply_to_a_servers_question_is_no_approval_of_a_call() {
        let reply = Question { kind: Kind::Reply, ..question(&[Remember::Never]) };
        assert_eq!(meta(&reply), Map::new());
    }

    #[test]
    fn r20_a_client_whose_person_lacks_the_role_is_not_asked() {
        let answerable = Answerable { forms: true, ..Answerable::default() };
        let asked = |roles: &[&str]| {
            let (asks, mut out) = tokio::sync::mpsc::channel(1);
            let reviewer = ElicitationReviewer::by(Way::Results(asks), "x", answerable, CancellationToken::new())
                .with_roles(Role::of_groups(roles.iter().copied()));
            let wanted = LayerRoles { layer: LayerRef::new(LayerKind::Managed), roles: Role::of_groups(["security"]) };
            let question = Question { roles: vec![wanted], ..question(&[Remember::Never]) };
            futures::executor::block_on(async {
                tokio::select! {
                    reply = reviewer.ask(&question) => Some(reply),
                    ask = out.recv() => { drop(ask); None }
                }
            })
        };
        assert_eq!(asked(&[]), Some(Reply::Nobody));
        assert_eq!(asked(&["users"]), Some(Reply::Nobody));
        assert_eq!(asked(&["security"]), None, "somebody with the role was not asked");
        let told = reply(
            &Question { kind: Kind::Tool, ..question(&[Remember::Never]) },
            &json!({ "action": "accept", "content": { "decision": "allow" } }),
            "x",
            &Role::of_groups(["security"]),
        );
        assert!(
            matches!(told, Reply::Allowed { roles: Roles::Of(roles), .. } if roles == Role::of_groups(["security"]))
        );
    }
}
