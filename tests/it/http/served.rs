//! The whole way from a configuration file through `portcullis serve` to servers over HTTP.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use super::*;
use crate::support::eventually;
use crate::support::http_server::{self, Asked, event, legacy, status, stream};
use crate::support::served::Served;

/// A server that does what the argument `do` says, in sessions that end when a test says so.
#[derive(Default)]
struct Web {
    session: AtomicUsize,
    held: AtomicUsize,
    most: AtomicUsize,
    gate: Option<Arc<Semaphore>>,
    broken_off: Mutex<Value>,
}

impl Web {
    fn new() -> Arc<Self> {
        Arc::new(Self { gate: Some(Arc::new(Semaphore::new(0))), ..Self::default() })
    }

    fn serve(self: &Arc<Self>, at: Option<std::net::SocketAddr>) -> HttpServer {
        let web = Arc::clone(self);
        HttpServer::start_with(at, None, legacy, move |asked| {
            let web = Arc::clone(&web);
            async move { web.answer(asked).await }
        })
    }

    fn gate(&self) -> &Semaphore {
        self.gate.as_deref().unwrap()
    }

    fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    async fn answer(&self, asked: Asked) -> Option<axum::response::Response> {
        let session = format!("session-{}", self.session.load(Ordering::SeqCst));
        if asked.method() == "initialize" {
            let mut response = legacy(&asked);
            response.headers_mut().insert("mcp-session-id", session.parse().unwrap());
            return Some(response);
        }
        if asked.verb == "POST" && asked.header("mcp-session-id").is_some_and(|theirs| theirs != session) {
            return Some(status(404));
        }
        if asked.header("last-event-id") == Some("first") {
            let answer = Asked { body: json!({ "id": *self.broken_off.lock() }), ..asked };
            return Some(stream(&[&event(&answer.says("at last"))]));
        }
        asked.tool()?;
        match asked.body["params"]["arguments"]["do"].as_str()? {
            "hold" => {
                let now = self.held.fetch_add(1, Ordering::SeqCst) + 1;
                self.most.fetch_max(now, Ordering::SeqCst);
                self.gate().acquire().await.unwrap().forget();
                self.held.fetch_sub(1, Ordering::SeqCst);
                None
            }
            "break off" => {
                *self.broken_off.lock() = asked.body["id"].clone();
                Some(stream(&["id: first\nretry: 20\ndata\n\n"]))
            }
            text => Some(http_server::json(&asked.says(text))),
        }
    }
}

fn table(name: &str, server: &HttpServer, keys: &str) -> String {
    format!("[mcp_servers.{name}]\nurl = {:?}\ndefault_tools_approval_mode = \"approve\"\n{keys}\n", server.url())
}

fn text_of(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn code_of(answer: &Value) -> &str {
    answer["result"]["_meta"]["portcullis/refusal"]["code"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

async fn serves(served: &mut Served, server: &str) {
    let answer = served.call(&format!("{server}__t"), &json!({ "do": "it" })).await;
    assert_eq!(text_of(&answer), "it");
}

async fn ask(served: &mut Served, id: &str, what: &str) {
    served.request(id, "tools/call", &json!({ "name": "web__t", "arguments": { "do": what } }).to_string()).await;
}

#[tokio::test]
async fn a_configured_server_gets_its_headers_and_calls_up_to_its_concurrency_and_recovers() {
    let (web, other) =
        (Web::new(), HttpServer::start(async |asked| asked.tool().map(|_| http_server::json(&asked.says("it")))));
    let mut server = web.serve(None);
    let address = server.address;
    let keys = "http_headers = { X-Plain = \"plain\" }\nenv_http_headers = { X-Env = \"A_HEADER\" }\n\
                bearer_token_env_var = \"A_TOKEN\"\nconcurrency = 2";
    let config = table("web", &server, keys) + &table("other", &other, "");
    let mut served = Served::greeted(&config, &[("A_HEADER", "from-env"), ("A_TOKEN", "token")]).await;
    serves(&mut served, "web").await;
    serves(&mut served, "other").await;
    for asked in server.asked() {
        let given = ["x-plain", "x-env", "authorization"].map(|name| asked.header(name));
        assert_eq!(given, [Some("plain"), Some("from-env"), Some("Bearer token")], "{}", asked.method());
    }
    for asked in other.asked() {
        assert!(["x-plain", "x-env", "authorization"].iter().all(|name| asked.header(name).is_none()));
    }

    let ids = ["1", "2", "3", "4", "5", "6"];
    for id in ids {
        ask(&mut served, id, "hold").await;
    }
    eventually("two calls in flight", || (web.held() == 2).then_some(())).await;
    // Another server is not held up, and what it is asked comes after the six.
    serves(&mut served, "other").await;
    web.gate().add_permits(ids.len());
    for id in ids {
        assert_eq!(text_of(&served.answer(json!(id)).await), "t");
    }
    assert_eq!(web.most.load(Ordering::SeqCst), 2);

    web.session.fetch_add(1, Ordering::SeqCst);
    serves(&mut served, "web").await;
    assert_eq!(server.count("initialize"), 2, "one renewal");

    ask(&mut served, "broken", "break off").await;
    assert_eq!(text_of(&served.answer(json!("broken")).await), "at last");
    let resumed = server.asked().into_iter().filter(|asked| asked.header("last-event-id") == Some("first"));
    assert_eq!(resumed.map(|asked| asked.verb).collect::<Vec<_>>(), ["GET"]);

    ask(&mut served, "lost", "hold").await;
    eventually("the call in flight", || (web.held() == 1).then_some(())).await;
    server.die();
    assert_eq!(code_of(&served.answer(json!("lost")).await), "ambiguous");
    serves(&mut served, "other").await;
    let refused = served.call("web__t", &json!({ "do": "it" })).await;
    assert!(["not-sent", "not-available", "ambiguous"].contains(&code_of(&refused)), "{refused}");
    let _again = web.serve(Some(address));
    serves(&mut served, "web").await;
    assert!(served.finish().await.success());
}

#[tokio::test]
async fn pitfall_18_no_token_header_argument_or_answer_is_logged_at_any_level() {
    let web = Web::new();
    let server = web.serve(None);
    let keys = format!(
        "http_headers = {{ X-Plain = \"{HUSH}-1\" }}\nenv_http_headers = {{ X-Env = \"A_HEADER\" }}\n\
         bearer_token_env_var = \"A_TOKEN\""
    );
    let (header, token) = (format!("{HUSH}-2"), format!("{HUSH}-3"));
    let env = [("A_HEADER", &*header), ("A_TOKEN", &*token), ("PORTCULLIS_LOG", "trace")];
    let mut served = Served::greeted(&table("web", &server, &keys), &env).await;
    let arguments = json!({ "do": format!("{HUSH}-4"), HUSH: HUSH });
    assert!(text_of(&served.call("web__t", &arguments).await).contains(HUSH), "the answer");
    served.call("web__t", &json!({ "do": "break off", "with": HUSH })).await;
    assert!(served.finish().await.success());
    let call = server.asked().into_iter().find(|asked| asked.tool().is_some()).unwrap();
    assert_eq!(call.header("authorization"), Some(&*format!("Bearer {token}")));
    let stderr = served.stderr();
    assert!(stderr.contains("ready server=web"), "nothing was logged: {stderr}");
    let telling: Vec<&str> = stderr.lines().filter(|line| line.contains(HUSH)).collect();
    assert!(telling.is_empty(), "{telling:#?}");
}
