//! Tokens, headers and redirects: what proves who we are goes to the configured origin only and is in no text.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use portcullis::ports::credentials::NoCredential;
use portcullis::ports::upstream::Unanswered;

use super::*;
use crate::support::http_server::{Asked, status};

/// A login whose tokens a test lists; each refused one is followed by the next.
#[derive(Default)]
struct Login {
    tokens: Mutex<VecDeque<&'static str>>,
    rejected: Mutex<Vec<Option<String>>>,
}

impl Login {
    fn with(tokens: &[&'static str]) -> Arc<Self> {
        Arc::new(Self { tokens: Mutex::new(tokens.iter().copied().collect()), ..Self::default() })
    }
}

#[async_trait]
impl Credentials for Login {
    async fn bearer(&self) -> Result<Option<Secret>, NoCredential> {
        Ok(self.tokens.lock().front().map(|token| Secret::new(*token)))
    }

    async fn rejected(&self, token: &Secret, challenge: Option<&str>) -> Result<Option<Secret>, NoCredential> {
        self.rejected.lock().push(challenge.map(str::to_owned));
        let mut tokens = self.tokens.lock();
        assert_eq!(tokens.pop_front(), Some(token.expose()));
        match tokens.front() {
            Some(next) => Ok(Some(Secret::new(*next))),
            None => {
                let server = ServerName::parse("web").unwrap();
                Err(NoCredential::LoginNeeded { server, why: "the refresh token has expired".to_owned() })
            }
        }
    }
}

fn challenge(code: u16, challenge: &str) -> axum::response::Response {
    let mut response = status(code);
    response.headers_mut().insert("www-authenticate", challenge.parse().unwrap());
    response
}

/// Takes one token only.
fn guarded(token: &'static str) -> HttpServer {
    HttpServer::start(move |asked| async move {
        let given = asked.header("authorization").map(str::to_owned);
        (given != Some(format!("Bearer {token}"))).then(|| challenge(401, "Bearer realm=\"x\""))
    })
}

#[tokio::test]
async fn configured_headers_and_the_token_go_with_every_request() {
    let server = guarded(HUSH);
    let headers = vec![("X-Key".to_owned(), Secret::new(HUSH))];
    let how = How { bearer: Some(Secret::new(HUSH)), headers, ..How::default() };
    let (connection, _) = how.connect(&server).await;
    lives(&connection).await;
    connection.close().await;
    assert!(server.asked().iter().all(|asked| asked.header("x-key") == Some(HUSH)));
    assert_eq!(server.count("DELETE"), 1);
}

#[tokio::test]
async fn a_header_of_the_protocol_cannot_be_configured() {
    let server = HttpServer::start(async |_| None);
    let headers = vec![("Mcp-Session-Id".to_owned(), Secret::new(HUSH))];
    let why = How { headers, ..How::default() }.refused(&server.url()).await;
    assert!(why.contains("`Mcp-Session-Id` is set by the protocol"), "{why}");
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn a_server_that_wants_a_login_says_which_command_gives_one() {
    let server = guarded(HUSH);
    let why = How::default().refused(&server.url()).await;
    assert!(why.contains("the server wants a login: run `portcullis login web`"), "{why}");
    let why = How { bearer: Some(Secret::new("stale")), ..How::default() }.refused(&server.url()).await;
    assert!(why.contains("refused the configured bearer token"), "{why}");
    let headers = vec![("Authorization".to_owned(), Secret::new(HUSH))];
    let why = How { headers, ..How::default() }.refused(&server.url()).await;
    assert!(why.contains("refused the configured `Authorization` header"), "{why}");
    let nobody = How { login: Some(Login::with(&[])), ..How::default() };
    assert!(nobody.refused(&server.url()).await.contains("portcullis login web"));
}

#[tokio::test]
async fn a_token_that_expires_in_the_middle_is_replaced_and_the_call_is_made_once_more() {
    let executed = Arc::new(AtomicUsize::new(0));
    let counted = executed.clone();
    let server = HttpServer::start(move |asked| {
        let counted = counted.clone();
        async move {
            let expired = counted.load(Ordering::SeqCst) >= 1;
            let wanted = if expired { "Bearer new" } else { "Bearer old" };
            if asked.header("authorization") != Some(wanted) && asked.verb == "POST" {
                return Some(challenge(401, "Bearer error=\"invalid_token\""));
            }
            counted.fetch_add(usize::from(asked.tool().is_some()), Ordering::SeqCst);
            None
        }
    });
    let login = Login::with(&["old", "new"]);
    let (connection, _) = How { login: Some(login.clone()), ..How::default() }.connect(&server).await;
    lives(&connection).await;
    lives(&connection).await;
    assert_eq!(*login.rejected.lock(), [Some("Bearer error=\"invalid_token\"".to_owned())]);
    assert_eq!((server.count("tools/call"), executed.load(Ordering::SeqCst)), (3, 2));
}

#[tokio::test]
async fn a_refused_token_is_replaced_once_and_a_second_refusal_was_not_sent() {
    let server = HttpServer::start(async |asked| asked.tool().map(|_| challenge(401, "Bearer")));
    let login = Login::with(&["a", "b", "c"]);
    let (connection, _) = How { login: Some(login.clone()), ..How::default() }.connect(&server).await;
    let lost = call(&connection, "t").await;
    assert!(matches!(&lost, Err(Unanswered::NotSent(why)) if why.contains("portcullis login web")), "{lost:?}");
    assert_eq!(server.count("tools/call"), 2);
    assert!(connection.is_open());
    // The port's own reason is what people see.
    call(&connection, "t").await.unwrap_err();
    let lost = call(&connection, "t").await;
    assert!(matches!(&lost, Err(Unanswered::NotSent(why)) if why.contains("refresh token has expired")), "{lost:?}");
}

#[tokio::test]
async fn a_token_without_the_scope_says_which_one_is_needed() {
    let server = HttpServer::start(async |asked| {
        asked.tool().map(|_| challenge(403, "Bearer error=\"insufficient_scope\", scope=\"files:write\""))
    });
    let (connection, _) = connect(&server).await;
    let lost = call(&connection, "t").await;
    assert!(matches!(&lost, Err(Unanswered::NotSent(why)) if why.contains("the scope `files:write`")), "{lost:?}");
}

fn redirect(code: u16, to: &str) -> axum::response::Response {
    let mut response = status(code);
    response.headers_mut().insert("location", to.parse().unwrap());
    response
}

#[tokio::test]
async fn a_redirect_to_another_origin_is_not_followed_and_gets_nothing() {
    let other = HttpServer::start(async |_| None);
    let to = format!("{}?secret={HUSH}", other.url());
    let server = HttpServer::start(move |asked| {
        let to = to.clone();
        async move { asked.tool().map(|_| redirect(307, &to)) }
    });
    let (connection, _) = How { bearer: Some(Secret::new(HUSH)), ..How::default() }.connect(&server).await;
    let why = failed(call(&connection, "t").await);
    assert!(why.contains(&format!("redirects to `{}`", other.address)), "{why}");
    assert!(other.asked().is_empty());
}

#[tokio::test]
async fn a_redirect_within_the_origin_is_followed_with_the_same_message_three_times_at_most() {
    let server = HttpServer::start(async |asked: Asked| {
        let tool = asked.tool()?.to_owned();
        match (tool.as_str(), asked.path.as_str()) {
            ("once", "/mcp") => Some(redirect(308, "/other")),
            ("loop", path) => Some(redirect(307, path)),
            ("found", _) => Some(redirect(302, "/other")),
            ("user", _) => Some(redirect(307, &format!("http://{HUSH}@{}/", asked.header("host")?))),
            _ => None,
        }
    });
    let (connection, _) = How { bearer: Some(Secret::new(HUSH)), ..How::default() }.connect(&server).await;
    assert_eq!(said(call(&connection, "once").await), "once");
    let last = server.asked().pop().unwrap();
    assert_eq!((last.path.as_str(), last.header("authorization").is_some()), ("/other", true));
    assert!(failed(call(&connection, "loop").await).contains("more than 3 times"));
    assert_eq!(server.asked().iter().filter(|asked| asked.tool() == Some("loop")).count(), 4);
    assert!(failed(call(&connection, "found").await).contains("302 Found"));
    assert!(failed(call(&connection, "user").await).contains("with a user or a password"));
    lives(&connection).await;
}

#[tokio::test]
async fn the_token_of_a_login_is_not_sent_over_plain_http_to_another_machine() {
    // An address that is nobody's: nothing is sent there.
    let how = How { login: Some(Login::with(&[HUSH])), ..How::default() };
    let why = how.refused("http://192.0.2.1/mcp").await;
    assert!(why.contains("a token is not sent to `192.0.2.1` over plain `http`"), "{why}");
}

/// The token of a login cannot be given to a command, but every other secret can.
#[test]
fn no_secret_is_in_any_log_or_output() {
    let server = HttpServer::start(async |asked| asked.tool().map(|_| challenge(401, &format!("Bearer x=\"{HUSH}\""))));
    let table = format!(
        "url = \"{}?key=${{SECRET}}\"\nbearer_token_env_var = \"SECRET\"\nenv_http_headers = {{ X-Key = \"SECRET\" }}\n\
         http_headers = {{ X-Other = \"{HUSH}\" }}\ndefault_tools_approval_mode = \"approve\"\n",
        server.url()
    );
    let env = [("SECRET", HUSH), ("PORTCULLIS_LOG", "trace")];
    let (_, text) = command(&table, &["call", "web/t", "{}"], &env);
    assert_eq!(server.count("tools/call"), 1, "{text}");
    assert!(text.contains("ready server=web") && text.contains("refused the configured bearer token"), "{text}");
    assert!(!text.contains(HUSH), "{text}");
    let call = server.asked().into_iter().find(|asked| asked.tool().is_some()).unwrap();
    assert!(call.path.contains(HUSH) && call.header("x-key") == Some(HUSH) && call.header("x-other") == Some(HUSH));
}
