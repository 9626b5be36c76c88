//! A server that is made with rmcp, over HTTP in both eras.

use std::borrow::Cow;

use async_trait::async_trait;
use axum::Router;
use portcullis::config::server_keys::Lifecycle;
use portcullis::model::answerable::Answerable;
use portcullis::ports::questions::{NoAnswer, Questions, ServerQuestion};
use portcullis::ports::upstream::ConnectionEvent;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ElicitRequestParams, InputRequiredResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion, ServerCapabilities,
    ServerConfig, SubscriptionFilter,
};
use rmcp::service::{RequestContext, RoleServer, SubscriptionContext};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, ServerHandler};
use serde_json::json;
use tokio::sync::Semaphore;

use super::*;
use crate::support::{Seen, eventually};

/// The server. Its tools do what their names say.
#[derive(Clone)]
struct Real {
    modern: bool,
    /// How often a call was cancelled.
    cancelled: Arc<Semaphore>,
    /// How many calls hang.
    hanging: Arc<Semaphore>,
    /// Each permit is a change of the tools.
    change: Arc<Semaphore>,
}

impl Real {
    fn start(modern: bool) -> (Self, HttpServer) {
        let none = || Arc::new(Semaphore::new(0));
        let real = Self { modern, cancelled: none(), hanging: none(), change: none() };
        let served = real.clone();
        let service: StreamableHttpService<Self, LocalSessionManager> = StreamableHttpService::new(
            move || Ok(served.clone()),
            Arc::default(),
            StreamableHttpServerConfig::default(),
        );
        let server = HttpServer::start_router(Router::new().fallback_service(service));
        (real, server)
    }

    async fn ask(&self, request: &CallToolRequestParams, context: &RequestContext<RoleServer>) -> CallToolResponse {
        let question = json!({ "mode": "form", "message": "sure?",
            "requestedSchema": { "type": "object", "properties": { "ok": { "type": "boolean" } } } });
        if !self.modern {
            let params: ElicitRequestParams = serde_json::from_value(question).unwrap();
            let answer = context.peer.create_elicitation(params).await;
            return says(&answer.map_or_else(|error| error.to_string(), |answer| format!("{:?}", answer.action)));
        }
        match &request.input_responses {
            Some(responses) => {
                says(&format!("{} {}", responses["q"]["action"], request.request_state.as_deref().unwrap()))
            }
            None => {
                let asked = json!({ "q": { "method": "elicitation/create", "params": question } });
                InputRequiredResult::new(Some(serde_json::from_value(asked).unwrap()), Some("state".to_owned())).into()
            }
        }
    }
}

fn says(text: &str) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

impl ServerHandler for Real {
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        if self.modern {
            Cow::Borrowed(&[ProtocolVersion::V_2026_07_28])
        } else {
            Cow::Borrowed(&[ProtocolVersion::V_2025_11_25])
        }
    }

    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.supported_by(&self.get_info().capabilities))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        loop {
            tokio::select! {
                permit = self.change.acquire() => permit.unwrap().forget(),
                () = context.cancelled() => return Ok(()),
            }
            context.sink().notify_tool_list_changed().await.unwrap();
        }
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
        let tools = ["t", "count", "hang", "ask", "change"].map(tool);
        Ok(serde_json::from_value(
            json!({ "resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private" }),
        )
        .unwrap())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        match request.name.as_ref() {
            "count" => {
                let token = context.meta.get_progress_token().unwrap();
                for n in 1..=100 {
                    let progress = ProgressNotificationParam::new(token.clone(), f64::from(n));
                    context.peer.notify_progress(progress).await.unwrap();
                }
            }
            "hang" => {
                self.hanging.add_permits(1);
                context.ct.cancelled().await;
                self.cancelled.add_permits(1);
            }
            "ask" => return Ok(self.ask(&request, &context).await),
            "change" => {
                context.peer.notify_tool_list_changed().await.unwrap();
            }
            _ => {}
        }
        Ok(says(&request.name))
    }
}

/// Accepts whatever is asked.
struct Accepts;

#[async_trait]
impl Questions for Accepts {
    fn answerable(&self) -> Answerable {
        Answerable::RELAYED
    }

    async fn ask(&self, question: ServerQuestion) -> Result<Arc<str>, NoAnswer> {
        assert_eq!(question.value()["message"], "sure?");
        Ok(r#"{"action":"accept","content":{"ok":true}}"#.into())
    }
}

/// What works the same in both eras.
async fn works(modern: bool) -> (Arc<dyn Connection>, Arc<Told>, Real, HttpServer) {
    let (real, server) = Real::start(modern);
    let (connection, told) = How::default().connect(&server).await;
    assert_eq!(list(&connection).await, 5);
    lives(&connection).await;

    let seen = Seen::new();
    let order = OutgoingCall { progress: Some(seen.clone()), ..outgoing("count") };
    assert_eq!(said(end(connection.hand_over(order).await.unwrap()).await), "count");
    let counts: Vec<f64> = seen.all().iter().map(|progress| progress.progress).collect();
    assert_eq!(counts, (1..=100).map(f64::from).collect::<Vec<_>>());

    // What belongs to the hop stays on it.
    let Ok(Answer::Result(result)) = call(&connection, "t").await else { panic!("no result") };
    let text = result.verbatim().unwrap();
    assert!(!text.contains("resultType") && !text.contains("io.modelcontextprotocol/serverInfo"), "{text}");

    let call = start(&connection, "hang").await;
    real.hanging.acquire().await.unwrap().forget();
    call.cancel("enough").await;
    timeout(PATIENCE, real.cancelled.acquire()).await.expect("the cancellation arrives").unwrap().forget();
    lives(&connection).await;
    (connection, told, real, server)
}

#[tokio::test]
async fn pitfall_1_5_15_an_rmcp_server_of_the_older_era_works_whole() {
    let (connection, told, _real, _server) = works(false).await;
    // Another session's call is in flight: the stream says whose question it is.
    let other = OutgoingCall { caller: Caller::local("other"), ..outgoing("hang") };
    let _other = connection.hand_over(other).await.unwrap();
    let asking = OutgoingCall { questions: Some(Arc::new(Accepts)), ..outgoing("ask") };
    assert_eq!(said(end(connection.hand_over(asking).await.unwrap()).await), "Accept");
    assert_eq!(told.saw(ConnectionEvent::QuestionRefused), 0);
    assert_eq!(said(call(&connection, "change").await), "change");
    eventually("the change", || (told.changes() >= 1).then_some(())).await;
    connection.close().await;
}

#[tokio::test]
async fn pitfall_1_5_15_an_rmcp_server_of_the_stateless_era_works_whole() {
    let (connection, told, real, _server) = works(true).await;
    let asking = OutgoingCall { questions: Some(Arc::new(Accepts)), ..outgoing("ask") };
    assert_eq!(said(end(connection.hand_over(asking).await.unwrap()).await), "\"accept\" state");
    real.change.add_permits(1);
    eventually("the change", || (told.changes() >= 1).then_some(())).await;
    connection.close().await;
}

#[tokio::test]
async fn pitfall_13_14_a_server_that_asks_whom_nobody_can_be_asked_gets_no_question_through() {
    for modern in [false, true] {
        let (_real, server) = Real::start(modern);
        let (connection, told) = How::default().connect(&server).await;
        match call(&connection, "ask").await {
            Ok(Answer::Result(result)) => {
                assert!(!modern && result.verbatim().unwrap().contains("refused"), "{result:?}")
            }
            other => assert!(modern, "{other:?}"),
        }
        assert_eq!(told.saw(ConnectionEvent::QuestionRefused), 1);
    }
}

#[tokio::test]
async fn pitfall_13_the_setting_decides_which_era_is_spoken() {
    let (_real, server) = Real::start(false);
    let why = How { lifecycle: Lifecycle::Modern, ..How::default() }.refused(&server.url()).await;
    assert!(why.contains("handshake failed"), "{why}");
    let (connection, _) = How { lifecycle: Lifecycle::Legacy, ..How::default() }.connect(&server).await;
    lives(&connection).await;
}
