//! Logins to HTTP servers, against an authorisation server of our own: the whole way through the binary, what is refused,
//! how tokens are kept and renewed, and that no secret is said anywhere.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use portcullis::adapters::oauth::{
    Granted, Http, HttpError, LoggedOut, Login, LoginError, Logins, OauthCredentials, Revoked, Target, logout,
};
use portcullis::config::{EmbeddedLayer, Places, SessionSources, load};
use portcullis::host::network;
use portcullis::model::caller::Caller;
use portcullis::model::layer::LayerKind;
use portcullis::model::name::ServerName;
use portcullis::model::secret::Secret;
use portcullis::ports::clock::Clock;
use portcullis::ports::credentials::{Credentials as _, NoCredential};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr};
use tokio::sync::Semaphore;
use url::Url;

use crate::support::auth_server::{AuthServer, Quirks};
use crate::support::http_server::{self, HttpServer};
use crate::support::served::Served;
use crate::support::{PATIENCE, eventually};

/// A clock that stands until it is moved.
struct Hands(Mutex<Timestamp>);

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

/// A user's state folder, a clock and an authorisation server.
struct Bench {
    dir: tempfile::TempDir,
    clock: Arc<Hands>,
    server: AuthServer,
}

impl Bench {
    async fn new(quirks: Quirks) -> Self {
        let clock = Arc::new(Hands(Mutex::new(Timestamp::from_second(1_700_000_000).unwrap())));
        Self { dir: tempfile::tempdir().unwrap(), clock, server: AuthServer::start(quirks).await }
    }

    fn logins(&self) -> Logins {
        self.logins_of("ada")
    }

    fn logins_of(&self, user: &str) -> Logins {
        let uid = rustix::process::getuid().as_raw();
        let http = Http::new(network::client_builder);
        Logins::new(self.dir.path(), uid, &Caller::local(user), http, Arc::clone(&self.clock) as _)
    }

    fn target(&self) -> Target {
        target(&format!("url = {:?}", self.server.url()))
    }

    fn credentials(&self) -> OauthCredentials {
        self.logins().credentials(self.target())
    }

    async fn log_in_to(&self, target: &Target) -> Result<Granted, LoginError> {
        self.log_in_by(target, None).await
    }

    /// Logs in at an issuer that the person named.
    async fn log_in_by(&self, target: &Target, issuer: Option<&Url>) -> Result<Granted, LoginError> {
        let login = Login::begin(&self.logins(), target, &[], issuer).await?;
        let url = login.url().clone();
        let (granted, _) = tokio::join!(login.finish(PATIENCE), browse(url));
        granted
    }

    /// A login that goes well.
    async fn log_in(&self) -> Granted {
        self.log_in_to(&self.target()).await.unwrap()
    }

    async fn refused(quirks: Quirks) -> LoginError {
        let bench = Self::new(quirks).await;
        let error = bench.log_in_to(&bench.target()).await.unwrap_err();
        assert!(!bench.dir.path().join("oauth").exists(), "something was kept");
        error
    }

    fn forward(&self, seconds: i64) {
        *self.clock.0.lock() += SignedDuration::from_secs(seconds);
    }

    /// The file of the one login.
    fn file(&self) -> PathBuf {
        let files = fs::read_dir(self.dir.path().join("oauth")).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> =
            files.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files.remove(0)
    }

    fn kept(&self) -> Value {
        serde_json::from_slice(&fs::read(self.file()).unwrap()).unwrap()
    }
}

/// The server `s` with these keys.
fn target(keys: &str) -> Target {
    target_with(keys, &|_| None)
}

fn target_with(keys: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Target {
    let text = format!("[mcp_servers.s]\n{keys}\n");
    let layer = EmbeddedLayer { kind: LayerKind::User, text, folder: std::env::temp_dir() };
    let session = SessionSources { embedded: vec![layer], ..SessionSources::default() };
    let resolved = load(&Places::nowhere(), &session);
    Target::of(&resolved.servers[&ServerName::parse("s").unwrap()], lookup).unwrap()
}

fn client() -> reqwest::Client {
    network::client_builder().no_proxy().timeout(PATIENCE).build().unwrap()
}

/// Goes there and wherever it is sent, as a browser does; the last status and page.
async fn browse(url: Url) -> (u16, String) {
    let response = client().get(url).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// Nobody of ours listens there any more. Another program may by now.
async fn assert_closed(back: Url) {
    if let Ok(response) = client().get(back).send().await {
        assert!(!response.text().await.unwrap().contains("<title>Portcullis"), "the port is still open");
    }
}

fn text(secret: Option<Secret>) -> String {
    secret.unwrap().expose().to_owned()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn param(url: &Url, name: &str) -> String {
    url.query_pairs().find(|(key, _)| key == name).unwrap().1.into_owned()
}

#[tokio::test]
async fn a_login_is_kept_for_the_user_alone_and_gives_the_token() {
    let bench = Bench::new(Quirks::default()).await;
    assert_eq!(bench.credentials().bearer().await, Ok(None));
    let granted = bench.log_in().await;
    assert_eq!(granted.scopes, ["tools:call"]);
    assert_eq!(granted.issuer, bench.server.origin());
    assert!(granted.renewable);
    assert_eq!(text(bench.credentials().bearer().await.unwrap()), bench.server.access());
    assert_eq!((mode(&bench.file()), mode(bench.file().parent().unwrap())), (0o600, 0o700));
    let loose = fs::read_dir(bench.file().parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    assert!(loose.into_iter().all(|path| mode(&path) == 0o600));
}

#[tokio::test]
async fn a_login_is_one_principals() {
    let bench = Bench::new(Quirks::default()).await;
    bench.log_in().await;
    assert_eq!(bench.logins_of("bob").credentials(bench.target()).bearer().await, Ok(None));
}

#[tokio::test]
async fn a_token_is_not_used_for_another_url_resource_or_client() {
    let bench = Bench::new(Quirks::default()).await;
    let keys = format!("url = \"{}/${{X}}\"", bench.server.origin());
    let at = |path: &'static str| target_with(&keys, &move |_| Some(path.to_owned()));
    bench.log_in_to(&at("mcp")).await.unwrap();
    let bearer = async |target: Target| bench.logins().credentials(target).bearer().await;
    assert_eq!(text(bearer(at("mcp")).await.unwrap()), bench.server.access());
    let elsewhere = bearer(at("other")).await.unwrap_err().to_string();
    assert!(
        elsewhere.ends_with("another URL than the configured one; log in again: `portcullis login s`"),
        "{elsewhere}"
    );
    for more in ["oauth_resource = \"https://other.example\"", "oauth = { client_id = \"other\" }"] {
        let target = target_with(&format!("{keys}\n{more}"), &|_| Some("mcp".to_owned()));
        assert!(matches!(bearer(target).await, Err(NoCredential::LoginNeeded { .. })), "{more}");
    }
}

#[tokio::test]
async fn the_configured_client_resource_and_scopes_are_used_all_the_way() {
    let bench = Bench::new(Quirks::default()).await;
    let keys = "oauth_resource = \"https://r.example/x\"\noauth = { client_id = \"mine\" }\nscopes = [\"a\", \"b\"]";
    let target = target(&format!("url = {:?}\n{keys}", bench.server.url()));
    bench.server.set(|quirks| quirks.metadata = json!({ "registration_endpoint": null }));
    bench.log_in_to(&target).await.unwrap();
    assert_eq!(bench.server.scopes(), ["a b"]);
    bench.forward(3600);
    bench.logins().credentials(target).bearer().await.unwrap();
    assert_eq!(bench.server.resources(), ["https://r.example/x"; 3]);
    assert_eq!((&bench.kept()["client"]["id"], bench.server.renewals()), (&json!("mine"), 1));
}

#[tokio::test]
async fn the_query_of_the_url_is_not_told_as_the_resource() {
    let bench = Bench::new(Quirks { silent_resource: true, ..Quirks::default() }).await;
    let target = target(&format!("url = \"{}?key=hush\"", bench.server.url()));
    bench.log_in_to(&target).await.unwrap();
    assert_eq!(bench.server.resources(), [bench.server.url(), bench.server.url()]);
    assert!(!bench.kept().to_string().contains("hush"));
}

#[tokio::test]
async fn a_server_that_streams_to_whoever_asks_is_logged_in_to_by_its_metadata() {
    let bench = Bench::new(Quirks { streams: true, ..Quirks::default() }).await;
    // No challenge, so the scopes are those of the metadata.
    assert_eq!(bench.log_in().await.scopes, ["tools:call", "tools:admin"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_make_one_renewal() {
    let bench = Bench::new(Quirks::default()).await;
    bench.log_in().await;
    let old = bench.server.access();
    bench.forward(3600 - 29);
    // Two that know nothing of each other, as two processes would be.
    let both = [bench.credentials(), bench.credentials()];
    let callers = (0..64).map(|i| both[i % 2].clone());
    let callers = callers.map(|credentials| tokio::spawn(async move { text(credentials.bearer().await.unwrap()) }));
    let tokens: Vec<String> = join_all(callers).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(bench.server.renewals(), 1);
    assert!(tokens.iter().all(|token| *token == bench.server.access() && *token != old));
}

#[tokio::test]
async fn a_renewed_login_is_kept_and_can_be_renewed_again() {
    let bench = Bench::new(Quirks::default()).await;
    bench.log_in().await;
    for renewals in 1..=3 {
        bench.forward(3600);
        assert_eq!(text(bench.credentials().bearer().await.unwrap()), bench.server.access());
        assert_eq!(bench.server.renewals(), renewals);
        assert_eq!(bench.kept()["tokens"]["refresh"], bench.server.refresh());
        assert_eq!(mode(&bench.file()), 0o600);
    }
    assert_eq!(bench.kept()["tokens"]["scopes"], json!(["tools:call"]));
}

#[tokio::test]
async fn a_token_with_more_than_30_s_left_is_not_renewed() {
    let bench = Bench::new(Quirks::default()).await;
    bench.log_in().await;
    bench.forward(3600 - 31);
    bench.credentials().bearer().await.unwrap();
    assert_eq!(bench.server.renewals(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_renewal_asks_for_a_login_and_is_not_tried_again() {
    let bench = Bench::new(Quirks { refuses_renewal: Some("invalid_grant"), ..Quirks::default() }).await;
    bench.log_in().await;
    bench.forward(3600);
    let credentials = bench.credentials();
    let callers = (0..16).map(|_| {
        let credentials = credentials.clone();
        tokio::spawn(async move { credentials.bearer().await.unwrap_err() })
    });
    for error in join_all(callers).await {
        let error = error.unwrap();
        assert!(error.to_string().ends_with("log in again: `portcullis login s`"), "{error}");
    }
    assert!(matches!(bench.credentials().bearer().await, Err(NoCredential::LoginNeeded { .. })));
    assert_eq!(bench.server.renewals(), 1);
}

#[tokio::test]
async fn a_renewal_that_fails_for_now_is_tried_again_later() {
    let bench = Bench::new(Quirks { refuses_renewal: Some("503"), ..Quirks::default() }).await;
    bench.log_in().await;
    bench.forward(3600);
    let credentials = bench.credentials();
    let error = credentials.bearer().await.unwrap_err();
    assert!(matches!(&error, NoCredential::Unavailable { why, .. } if why.ends_with("HTTP status 503")), "{error}");
    bench.server.set(|quirks| quirks.refuses_renewal = None);
    assert_eq!(text(credentials.bearer().await.unwrap()), bench.server.access());
}

#[tokio::test]
async fn a_renewal_ends_well_although_its_caller_has_gone() {
    let hold = Arc::new(Semaphore::new(0));
    let bench = Bench::new(Quirks { holds_renewal: Some(Arc::clone(&hold)), ..Quirks::default() }).await;
    bench.log_in().await;
    let old = bench.server.access();
    bench.forward(3600);
    let credentials = bench.credentials();
    let caller = tokio::spawn(async move { credentials.bearer().await });
    eventually("the renewal reaches the server", || (bench.server.renewals() == 1).then_some(())).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    hold.add_permits(1);
    eventually("the new tokens are kept", || (bench.kept()["tokens"]["access"] != *old).then_some(())).await;
    assert_eq!(bench.kept()["tokens"]["refresh"], bench.server.refresh());
}

#[tokio::test]
async fn a_rejected_token_is_renewed_once_unless_another_has_done_it() {
    let bench = Bench::new(Quirks::default()).await;
    bench.log_in().await;
    let (one, other) = (bench.credentials(), bench.credentials());
    let old = one.bearer().await.unwrap().unwrap();
    let new = text(one.rejected(&old, Some("Bearer error=\"invalid_token\"")).await.unwrap());
    assert_eq!((new.as_str(), bench.server.renewals()), (&*bench.server.access(), 1));
    // The same answer reaches one that still had the old token.
    assert_eq!(text(other.rejected(&old, None).await.unwrap()), new);
    assert_eq!(bench.server.renewals(), 1);
}

#[tokio::test]
async fn a_token_that_may_too_little_is_not_renewed_but_named() {
    let bench = Bench::new(Quirks::default()).await;
    bench.log_in().await;
    let credentials = bench.credentials();
    let token = credentials.bearer().await.unwrap().unwrap();
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"tools:admin\"";
    let error = credentials.rejected(&token, Some(challenge)).await.unwrap_err().to_string();
    assert_eq!(error, "the server wants the scopes `tools:admin`; log in again: `portcullis login s`");
    assert_eq!(bench.server.renewals(), 0);
}

#[tokio::test]
async fn a_client_secret_is_kept_and_shown_where_it_is_wanted() {
    let bench = Bench::new(Quirks { client_secret: true, ..Quirks::default() }).await;
    bench.log_in().await;
    bench.forward(3600);
    bench.credentials().bearer().await.unwrap();
    assert_eq!(bench.server.renewals(), 1);
    let ended = logout(&bench.logins(), &bench.target()).await.unwrap();
    assert_eq!(ended, LoggedOut::Gone(Revoked::Yes));
}

#[tokio::test]
async fn a_login_that_others_can_read_is_refused_but_can_be_removed() {
    let bench = Bench::new(Quirks::default()).await;
    bench.log_in().await;
    for shared in [0o640, 0o604] {
        fs::set_permissions(bench.file(), fs::Permissions::from_mode(shared)).unwrap();
        let error = bench.credentials().bearer().await.unwrap_err().to_string();
        assert!(error.contains(&format!("is readable by others (mode {shared:o})")), "{error}");
    }
    assert!(matches!(logout(&bench.logins(), &bench.target()).await, Ok(LoggedOut::Gone(Revoked::Failed(_)))));
    assert_eq!(bench.credentials().bearer().await, Ok(None));
}

#[tokio::test]
async fn a_login_that_is_a_link_too_large_or_damaged_is_refused() {
    let bench = Bench::new(Quirks::default()).await;
    bench.log_in().await;
    let (file, aside) = (bench.file(), bench.dir.path().join("aside"));
    fs::rename(&file, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &file).unwrap();
    assert!(matches!(bench.credentials().bearer().await, Err(NoCredential::Unavailable { .. })));
    fs::remove_file(&file).unwrap();
    for (bytes, why) in [(vec![b' '; 300_000], "has more than"), (b"{\"hush\":1}".to_vec(), "is damaged")] {
        fs::write(&file, bytes).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let error = bench.credentials().bearer().await.unwrap_err().to_string();
        assert!(error.contains(why) && !error.contains("hush"), "{error}");
    }
}

#[tokio::test]
async fn a_logout_revokes_and_removes() {
    let bench = Bench::new(Quirks::default()).await;
    bench.log_in().await;
    let (access, refresh) = (bench.server.access(), bench.server.refresh());
    assert_eq!(logout(&bench.logins(), &bench.target()).await.unwrap(), LoggedOut::Gone(Revoked::Yes));
    assert_eq!(bench.server.revoked(), [refresh, access]);
    assert_eq!(bench.credentials().bearer().await, Ok(None));
    assert_eq!(logout(&bench.logins(), &bench.target()).await.unwrap(), LoggedOut::WasNot);
}

#[tokio::test]
async fn a_logout_removes_even_if_nothing_can_be_revoked() {
    let bench = Bench::new(Quirks::default()).await;
    bench.server.set(|quirks| quirks.metadata = json!({ "revocation_endpoint": null }));
    bench.log_in().await;
    assert_eq!(logout(&bench.logins(), &bench.target()).await.unwrap(), LoggedOut::Gone(Revoked::NotOffered));
    bench
        .server
        .set(|quirks| quirks.metadata = json!({ "revocation_endpoint": format!("{}/none", bench.server.origin()) }));
    bench.log_in().await;
    assert!(matches!(logout(&bench.logins(), &bench.target()).await, Ok(LoggedOut::Gone(Revoked::Failed(_)))));
    assert_eq!(bench.credentials().bearer().await, Ok(None));
}

#[tokio::test]
async fn only_the_right_state_is_taken_and_the_rest_changes_nothing() {
    let bench = Bench::new(Quirks::default()).await;
    let login = Login::begin(&bench.logins(), &bench.target(), &[], None).await.unwrap();
    let url = login.url().clone();
    let back = Url::parse(&param(&url, "redirect_uri")).unwrap();
    assert_eq!((back.host_str(), back.scheme()), (Some("127.0.0.1"), "http"));
    let at = |path: &str, query: &str| {
        let mut url = back.clone();
        url.set_path(path);
        url.set_query(Some(query));
        url
    };
    let finish = tokio::spawn(login.finish(PATIENCE));
    // A connection that says nothing, as browsers open them, holds up nobody.
    let _idle = tokio::net::TcpStream::connect(("127.0.0.1", back.port().unwrap())).await.unwrap();
    assert_eq!(browse(at("/callback", "code=x&state=wrong")).await.0, 400);
    assert_eq!(browse(at("/callback", "error=access_denied&state=wrong")).await.0, 400);
    assert_eq!(browse(at("/favicon.ico", "")).await.0, 404);
    let large = client().get(at("/callback", "")).header("x-large", "a".repeat(40_000)).send().await;
    assert!(large.is_err() || large.unwrap().status() == 431);
    let (status, page) = browse(url).await;
    assert!(status == 200 && page.contains("You can close this window"), "{status} {page}");
    finish.await.unwrap().unwrap();
    assert_closed(back).await;
}

#[tokio::test]
async fn a_callback_that_never_comes_ends_the_login_and_closes_the_port() {
    let bench = Bench::new(Quirks::default()).await;
    let login = Login::begin(&bench.logins(), &bench.target(), &[], None).await.unwrap();
    let back = Url::parse(&param(login.url(), "redirect_uri")).unwrap();
    let error = login.finish(Duration::from_millis(1)).await.unwrap_err();
    assert_eq!(error.to_string(), "nobody came back from the browser within 0.001 s");
    assert_closed(back).await;
}

#[tokio::test]
async fn a_person_who_says_no_ends_the_login() {
    let error = Bench::refused(Quirks { denies: true, ..Quirks::default() }).await;
    assert_eq!(error.to_string(), "the authorisation server refused: access_denied (not today)");
}

#[tokio::test]
async fn another_issuer_than_the_one_asked_is_refused() {
    let metadata = json!({ "issuer": "https://evil.example" });
    let error = Bench::refused(Quirks { metadata, ..Quirks::default() }).await;
    assert!(matches!(&error, LoginError::Issuer { received, .. } if received == "https://evil.example"), "{error}");
    let error = Bench::refused(Quirks { iss: Some("https://evil.example"), ..Quirks::default() }).await;
    assert!(matches!(&error, LoginError::Issuer { received, .. } if received == "https://evil.example"), "{error}");
    let metadata = json!({ "issuer": null });
    assert!(matches!(Bench::refused(Quirks { metadata, ..Quirks::default() }).await, LoginError::Discovery(_)));
}

/// Metadata of an evil server: the person goes to the honest one, and client and code are relayed.
fn mixed_up(honest: &AuthServer, promise: bool) -> Value {
    json!({
        "authorization_endpoint": format!("{}/authorize", honest.origin()),
        "authorization_response_iss_parameter_supported": promise,
    })
}

#[tokio::test]
async fn a_code_of_one_authorisation_server_is_not_given_to_another() {
    let honest = AuthServer::start(Quirks::default()).await;
    let error = Bench::refused(Quirks { metadata: mixed_up(&honest, false), ..Quirks::default() }).await;
    assert!(matches!(error, LoginError::Apart { key: "authorization_endpoint", .. }), "{error}");
    assert!(honest.scopes().is_empty(), "the person was sent there");
    // A promise that the answer names the issuer is held against it: the honest one names nobody, or itself.
    let bench = Bench::new(Quirks { metadata: mixed_up(&honest, true), ..Quirks::default() }).await;
    let error = bench.log_in_to(&bench.target()).await.unwrap_err();
    assert!(matches!(error, LoginError::Nameless(_)), "{error}");
    honest.set(|quirks| quirks.iss = Some("https://honest.example"));
    let error = bench.log_in_to(&bench.target()).await.unwrap_err();
    assert!(matches!(&error, LoginError::Issuer { received, .. } if received == "https://honest.example"), "{error}");
    assert_eq!(honest.scopes().len(), 2);
    assert!(bench.server.secrets().is_empty(), "a code or verifier came");
}

#[tokio::test]
async fn a_provider_of_several_hosts_is_logged_in_to_by_the_issuer_that_the_person_names() {
    let bench = Bench::new(Quirks::default()).await;
    let other = bench.server.origin().replace("127.0.0.1", "localhost");
    let metadata = json!({ "token_endpoint": format!("{other}/token"), "revocation_endpoint": format!("{other}/x") });
    bench.server.set(|quirks| quirks.metadata = metadata);
    let error = bench.log_in_to(&bench.target()).await.unwrap_err();
    assert!(matches!(error, LoginError::Apart { key: "token_endpoint", .. }), "{error}");
    let wrong = Url::parse("https://honest.example").unwrap();
    let error = bench.log_in_by(&bench.target(), Some(&wrong)).await.unwrap_err();
    assert!(matches!(error, LoginError::Unexpected { .. }), "{error}");
    let right = Url::parse(bench.server.origin()).unwrap();
    bench.log_in_by(&bench.target(), Some(&right)).await.unwrap();
}

#[tokio::test]
async fn without_pkce_there_is_no_login() {
    for methods in [json!(null), json!(["plain"]), json!([])] {
        let metadata = json!({ "code_challenge_methods_supported": methods });
        let error = Bench::refused(Quirks { metadata, ..Quirks::default() }).await;
        assert!(matches!(error, LoginError::NoPkce), "{error}");
    }
}

#[tokio::test]
async fn plain_http_beyond_this_machine_is_refused() {
    let elsewhere = Some("http://auth.example".to_owned());
    let error = Bench::refused(Quirks { authorization_server: elsewhere, ..Quirks::default() }).await;
    assert!(matches!(error, LoginError::Http(HttpError::Refused(_))), "{error}");
    for key in ["authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint"] {
        let metadata = json!({ key: "http://auth.example/x?key=hush" });
        let error = Bench::refused(Quirks { metadata, ..Quirks::default() }).await.to_string();
        assert!(error.contains(key) && error.contains("`http://auth.example/x`") && !error.contains("hush"), "{error}");
    }
}

#[tokio::test]
async fn oversized_metadata_is_refused() {
    let metadata = json!({ "padding": "a".repeat(300_000) });
    let error = Bench::refused(Quirks { metadata, ..Quirks::default() }).await;
    assert!(matches!(error, LoginError::Http(HttpError::TooLarge(_))), "{error}");
}

#[tokio::test]
async fn over_tls_the_certificate_decides() {
    let (server, root) = AuthServer::start_secure(Quirks::default()).await;
    let dir = tempfile::tempdir().unwrap();
    let logins = |http| {
        let clock = Arc::new(Hands(Mutex::new(Timestamp::UNIX_EPOCH)));
        Logins::new(dir.path(), rustix::process::getuid().as_raw(), &Caller::local("ada"), http, clock)
    };
    let target = target(&format!("url = {:?}", server.url()));
    let trusts = root.clone();
    let good = logins(Http::new(move || network::client_builder().tls_certs_only([trusts.clone()])));
    let login = Login::begin(&good, &target, &[], None).await.unwrap();
    let browser = network::client_builder().no_proxy().tls_certs_only([root]).build().unwrap();
    let url = login.url().clone();
    let (granted, went) = tokio::join!(login.finish(PATIENCE), browser.get(url).send());
    assert_eq!((granted.unwrap().issuer.as_str(), went.unwrap().status().as_u16()), (server.origin(), 200));
    assert_eq!(text(good.credentials(target.clone()).bearer().await.unwrap()), server.access());

    let wary = logins(Http::new(|| network::client_builder().tls_certs_only([])));
    let error = Login::begin(&wary, &target, &[], None).await.err().unwrap();
    assert!(matches!(error, LoginError::Http(HttpError::Unreachable { .. })), "{error}");
}

#[tokio::test]
async fn a_server_that_registers_nobody_needs_a_configured_client() {
    let metadata = json!({ "registration_endpoint": null });
    assert!(matches!(Bench::refused(Quirks { metadata, ..Quirks::default() }).await, LoginError::NoRegistration));
}

/// The binary with a home of its own.
struct Place {
    dir: tempfile::TempDir,
}

/// What a command printed, and its exit code.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Place {
    fn new(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["work", "home", "config/portcullis", "state", "bin"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let file = dir.path().join("config/portcullis/config.toml");
        fs::write(&file, config).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        Self { dir }
    }

    fn start(&self, args: &[&str]) -> Child {
        start_in(self.dir.path(), args)
    }

    async fn run(&self, args: &[&str]) -> Ran {
        run_in(self.dir.path(), args).await
    }

    /// Logs in: reads where to go from the command, and goes there as the browser.
    async fn log_in(&self, args: &[&str]) -> Ran {
        log_in_in(self.dir.path(), args).await
    }
}

/// Starts a command in the home that is in this folder.
fn start_in(place: &Path, args: &[&str]) -> Child {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(args).current_dir(place.join("work")).env_clear();
    for (name, folder) in
        [("HOME", "home"), ("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "state"), ("PATH", "bin")]
    {
        command.env(name, place.join(folder));
    }
    // Whatever anybody turns on, no secret is said.
    command.env("PORTCULLIS_LOG", "trace").env("SOME_TOKEN", "token-of-the-environment");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.spawn().unwrap()
}

async fn run_in(place: &Path, args: &[&str]) -> Ran {
    let mut child = start_in(place, args);
    let err = BufReader::new(child.stderr.take().unwrap());
    ended(child, err, String::new()).await
}

async fn log_in_in(place: &Path, args: &[&str]) -> Ran {
    let mut child = start_in(place, &[&["login", "s"], args].concat());
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let (url, said) = address(&mut err).await;
    assert_eq!(browse(url).await.0, 200);
    ended(child, err, said).await
}

/// Reads what is said until the address is.
async fn address(err: &mut BufReader<ChildStderr>) -> (Url, String) {
    let mut said = String::new();
    loop {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, err.read_line(&mut line)).await.unwrap();
        assert_ne!(read.unwrap(), 0, "no address: {said}");
        said.push_str(&line);
        if line.starts_with("http://") {
            return (Url::parse(line.trim()).unwrap(), said);
        }
    }
}

async fn ended(mut child: Child, mut err: BufReader<ChildStderr>, mut said: String) -> Ran {
    let mut out = String::new();
    let mut stdout = child.stdout.take().unwrap();
    let read = async { tokio::try_join!(stdout.read_to_string(&mut out), err.read_to_string(&mut said)) };
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    Ran { code: child.wait().await.unwrap().code().unwrap(), out, err: said }
}

/// What a person reads on stderr: the log apart.
fn talk(err: &str) -> String {
    let log = |line: &&str| ["TRACE", "DEBUG", " INFO", " WARN", "ERROR"].iter().any(|level| line.starts_with(level));
    err.lines().filter(|line| !log(line)).map(|line| format!("{line}\n")).collect()
}

fn assert_discreet(server: &AuthServer, ran: &Ran) {
    let secrets = server.secrets();
    assert!(!secrets.is_empty());
    for secret in secrets {
        assert!(
            !ran.out.contains(&secret) && !ran.err.contains(&secret),
            "`{secret}` is said:\n{}{}",
            ran.out,
            ran.err
        );
    }
}

#[tokio::test]
async fn login_and_logout_work_through_the_binary_and_say_no_secret() {
    let server = AuthServer::start(Quirks { client_secret: true, ..Quirks::default() }).await;
    let place = Place::new(&format!("[mcp_servers.s]\nurl = {:?}\n", server.url()));
    let ran = place.log_in(&["--no-browser"]).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.starts_with("Logged in to `s`.\n") && ran.out.contains("\n  scopes tools:call\n"), "{}", ran.out);
    assert!(talk(&ran.err).contains("Waiting for the browser to come back, at most 300 s"), "{}", talk(&ran.err));
    let host = server.origin().trim_start_matches("http://");
    let who = format!(
        "The authorisation server is `{}`: you log in at `{host}`, and the code goes to `{host}`.\n",
        server.origin()
    );
    assert!(talk(&ran.err).starts_with(&who), "{}", talk(&ran.err));
    assert_discreet(&server, &ran);

    let ran = place.run(&["logout", "s"]).await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "`s`: the tokens are removed and revoked.\n"), "{}", ran.err);
    assert_eq!(server.revoked(), [server.refresh(), server.access()]);
    assert_discreet(&server, &ran);
    let ran = place.run(&["logout", "s"]).await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "`s`: nobody was logged in.\n"));
}

#[tokio::test]
async fn login_and_logout_speak_json() {
    let server = AuthServer::start(Quirks::default()).await;
    let place = Place::new(&format!("[mcp_servers.s]\nurl = {:?}\n", server.url()));
    let ran = place.log_in(&["--no-browser", "--format", "json", "--scope", "x", "--scope", "y"]).await;
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&said["server"], &said["scopes"], &said["renewable"]), (&json!("s"), &json!(["x", "y"]), &json!(true)));
    let host = server.origin().trim_start_matches("http://");
    let parties = json!({ "issuer": server.origin(), "authorization_host": host, "token_host": host });
    assert_eq!(talk(&ran.err).lines().next(), Some(&*parties.to_string()));
    assert_eq!((&said["issuer"], &said["token_host"]), (&parties["issuer"], &parties["token_host"]));
    assert!(said["expires"].as_str().unwrap().parse::<Timestamp>().is_ok());
    assert_discreet(&server, &ran);
    let said: Value = serde_json::from_str(&place.run(&["logout", "s", "--format", "json"]).await.out).unwrap();
    assert_eq!((&said["was_logged_in"], &said["revoked"]), (&json!(true), &json!(true)));
}

#[tokio::test]
async fn the_browser_is_started_with_the_address_as_its_one_argument() {
    let server = AuthServer::start(Quirks::default()).await;
    let place = Place::new(&format!("[mcp_servers.s]\nurl = {:?}\n", server.url()));
    let (opener, seen) = (place.dir.path().join("bin/xdg-open"), place.dir.path().join("opened"));
    let script = format!("#!/bin/sh\nprintf '%s\\n' \"$#\" \"$1\" > {0:?}.new\n/bin/mv {0:?}.new {0:?}\n", seen);
    fs::write(&opener, script).unwrap();
    fs::set_permissions(&opener, fs::Permissions::from_mode(0o755)).unwrap();
    if cfg!(target_os = "macos") {
        fs::rename(&opener, place.dir.path().join("bin/open")).unwrap();
    }
    let mut child = place.start(&["login", "s"]);
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let (url, said) = address(&mut err).await;
    let opened = eventually("the browser starts", || fs::read_to_string(&seen).ok()).await;
    assert_eq!(opened, format!("1\n{url}\n"));
    browse(url).await;
    assert_eq!(ended(child, err, said).await.code, 0);
}

#[tokio::test]
async fn a_login_that_fails_says_why_and_no_secret() {
    let server = AuthServer::start(Quirks::default()).await;
    let place = Place::new(&format!("[mcp_servers.s]\nurl = {:?}\n", server.url()));
    let ran = place.run(&["login", "s", "--timeout", "1"]).await;
    assert_eq!(ran.code, 1);
    let said = talk(&ran.err);
    assert!(said.contains("No browser could be started"), "{said}");
    assert!(said.contains("error: nobody came back from the browser within 1 s\n  hint: "), "{said}");

    // A code that was changed for nothing is a secret all the same.
    server.set(|quirks| quirks.iss = Some("https://evil.example"));
    let ran = place.log_in(&["--no-browser"]).await;
    assert_eq!(ran.code, 1);
    assert!(talk(&ran.err).contains("error: the authorisation server says that it is `https://evil.example`"));
    assert_discreet(&server, &ran);
}

#[tokio::test]
async fn a_login_that_could_go_astray_says_what_differs_and_names_the_flag() {
    let server = AuthServer::start(Quirks::default()).await;
    let metadata = json!({ "token_endpoint": format!("{}/token", server.origin().replace("127.0.0.1", "localhost")) });
    server.set(|quirks| quirks.metadata = metadata);
    let place = Place::new(&format!("[mcp_servers.s]\nurl = {:?}\n", server.url()));
    let ran = place.run(&["login", "s", "--no-browser"]).await;
    let said = talk(&ran.err);
    let port = server.origin().rsplit(':').next().unwrap();
    let differs = format!("the `token_endpoint` of the authorisation server is at `localhost:{port}`, another origin");
    assert!(ran.code == 1 && said.contains(&differs) && said.contains("`portcullis login s --issuer URL`"), "{said}");
    let ran = place.log_in(&["--no-browser", "--issuer", server.origin()]).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[tokio::test]
async fn a_signal_ends_a_login_that_waits() {
    let server = AuthServer::start(Quirks::default()).await;
    let place = Place::new(&format!("[mcp_servers.s]\nurl = {:?}\n", server.url()));
    let mut child = place.start(&["login", "s", "--no-browser"]);
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let (_, said) = address(&mut err).await;
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ran = ended(child, err, said).await;
    assert_eq!(ran.code, 1);
    assert!(talk(&ran.err).ends_with("error: interrupted: nothing is logged in to\n"), "{}", talk(&ran.err));
}

#[tokio::test]
async fn what_cannot_be_logged_in_to_exits_2_and_says_why() {
    let place = Place::new(
        "[mcp_servers.program]\ncommand = \"sh\"\n\
         [mcp_servers.off]\nurl = \"https://a.example\"\nenabled = false\n\
         [mcp_servers.fixed]\nurl = \"https://a.example\"\nbearer_token_env_var = \"SOME_TOKEN\"\n\
         [mcp_servers.plain]\nurl = \"http://a.example/?key=hush\"\n",
    );
    for (server, why) in [
        ("program", "server `program` has no `url`: only HTTP servers are logged in to"),
        ("off", "server `off` is disabled: disabled by the user layer"),
        ("fixed", "server `fixed` gets its token from `bearer_token_env_var`, which wins over a login"),
        ("plain", "the `url` of server `plain` must begin with https://"),
        ("progam", "no server `progam` is configured\n  hint: did you mean `program`?"),
        ("../x", "no server `../x` is configured"),
    ] {
        let ran = place.run(&["login", server]).await;
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.out.is_empty() && talk(&ran.err).contains(why), "{}", talk(&ran.err));
        assert!(!ran.err.contains("hush") && !ran.err.contains("token-of-the-environment"), "{}", ran.err);
    }
}

/// Calls until the server is there: after a failed start, the host tries again at a call only after a while.
async fn served_at_last(served: &mut Served) {
    let give_up = tokio::time::Instant::now() + PATIENCE;
    loop {
        let answer = served.call("s__t", &json!({})).await;
        if answer["result"]["content"][0]["text"] == "t" {
            return;
        }
        assert!(tokio::time::Instant::now() < give_up, "{answer}: {}", served.stderr());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn other_serves(served: &mut Served) {
    assert_eq!(served.call("other__t", &json!({})).await["result"]["content"][0]["text"], "t");
}

fn code(answer: &Value) -> &str {
    answer["result"]["_meta"]["portcullis/refusal"]["code"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[tokio::test]
async fn a_gateway_that_runs_uses_a_login_renews_it_and_stops_with_the_logout() {
    let server = AuthServer::start(Quirks::default()).await;
    let other = HttpServer::start(async |asked| asked.tool().map(|_| http_server::json(&asked.says("t"))));
    let approve = "default_tools_approval_mode = \"approve\"";
    let config = format!(
        "[mcp_servers.s]\nurl = {:?}\n{approve}\n[mcp_servers.other]\nurl = {:?}\n{approve}\n",
        server.url(),
        other.url()
    );
    let mut served = Served::greeted(&config, &[("PORTCULLIS_LOG", "info")]).await;
    let place = served.path("");
    let early = served.call("s__t", &json!({})).await;
    assert_eq!(code(&early), "not-available", "{early}");
    eventually("the command is named", || served.stderr().contains("portcullis login s").then_some(())).await;
    other_serves(&mut served).await;

    assert_eq!(log_in_in(&place, &["--no-browser"]).await.code, 0);
    served_at_last(&mut served).await;
    assert_eq!((server.calls(), server.renewals()), (1, 0));

    server.expire();
    let answer = served.call("s__t", &json!({})).await;
    assert_eq!(answer["result"]["content"][0]["text"], "t", "{answer}");
    assert_eq!((server.calls(), server.renewals()), (2, 1));

    server.set(|quirks| quirks.refuses_renewal = Some("invalid_grant"));
    server.expire();
    let refused = served.call("s__t", &json!({})).await;
    assert_eq!(code(&refused), "not-sent", "{refused}");
    other_serves(&mut served).await;
    assert_eq!(server.calls(), 2);

    server.set(|quirks| quirks.refuses_renewal = None);
    assert_eq!(log_in_in(&place, &["--no-browser"]).await.code, 0);
    served_at_last(&mut served).await;
    let ran = run_in(&place, &["logout", "s"]).await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "`s`: the tokens are removed and revoked.\n"), "{}", ran.err);
    let gone = served.call("s__t", &json!({})).await;
    assert_eq!(code(&gone), "not-sent", "the token would still be good: {gone}");
    other_serves(&mut served).await;
    assert_eq!(server.calls(), 3);
    assert!(served.finish().await.success());
    assert!(server.secrets().iter().all(|secret| !served.stderr().contains(secret)), "{}", served.stderr());
}
