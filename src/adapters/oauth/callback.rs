//! Where the browser comes back to: a listener on 127.0.0.1 that takes one answer and is gone.
//!
//! Promises: only a GET of [`PATH`] with the right `state` counts; everything else (a browser's `/favicon.ico`, another
//! program's guess) is answered with an error and changes nothing. Requests are bounded in size, time and number at once,
//! and an idle connection, as browsers open them in advance, holds up nothing. When the listener is dropped the port is
//! closed.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use url::Url;

use super::http::Refusal;
use crate::model::secret::Secret;

/// The path that counts.
const PATH: &str = "/callback";
/// The most connections at once.
const MAX_CONNECTIONS: usize = 16;
/// The largest head of a request, in bytes: a code may be long, and browsers send cookies of other local servers along.
const MAX_HEAD: usize = 32 * 1024;
/// How long a request may take to arrive.
const REQUEST: Duration = Duration::from_secs(10);
/// How long sending a page may take.
const PAGE: Duration = Duration::from_secs(2);

/// The listener, before anybody knows of it.
pub(super) struct Listener {
    listener: TcpListener,
    redirect_uri: String,
}

/// What the authorisation server sent the browser back with.
pub(super) enum Callback {
    /// A code to be changed for a token, and who says so (RFC 9207).
    Code { code: Secret, issuer: Option<String> },
    /// The person or the server said no.
    Refused(Refusal),
}

impl Listener {
    /// Opens a port that the system chooses (RFC 8252, 7.3).
    pub(super) async fn open() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let redirect_uri = format!("http://127.0.0.1:{}{PATH}", listener.local_addr()?.port());
        Ok(Self { listener, redirect_uri })
    }

    pub(super) fn redirect_uri(&self) -> &str {
        &self.redirect_uri
    }

    /// Waits for the one answer. Waits for ever: the caller has the deadline.
    pub(super) async fn wait(self, state: &str) -> Callback {
        let state: std::sync::Arc<str> = state.into();
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if open.len() < MAX_CONNECTIONS => match accepted {
                    Ok((stream, _)) => _ = open.spawn(serve(stream, state.clone())),
                    // Too many open files, or a client that has gone already: neither is the end.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
                Some(done) = open.join_next() => {
                    if let Ok(Some(callback)) = done {
                        return callback;
                    }
                }
            }
        }
    }
}

/// Answers one request; `Some` if it was the one.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, state: std::sync::Arc<str>) -> Option<Callback> {
    let judged = match timeout(REQUEST, request_line(&mut stream)).await {
        Ok(Ok(Some(line))) => judge(&line, &state),
        Ok(Ok(None)) => Judged::TooLarge,
        Ok(Err(_)) | Err(_) => return None,
    };
    let (status, text, callback) = match judged {
        Judged::Callback(callback @ Callback::Code { .. }) => {
            ("200 OK", "The answer has arrived. You can close this window and go back to the terminal.", Some(callback))
        }
        Judged::Callback(callback @ Callback::Refused(_)) => {
            ("200 OK", "The login was refused. The terminal says more; you can close this window.", Some(callback))
        }
        Judged::NotFound => ("404 Not Found", "There is nothing here.", None),
        Judged::BadMethod => ("405 Method Not Allowed", "Only GET is answered.", None),
        Judged::TooLarge => ("431 Request Header Fields Too Large", "This request is too large.", None),
        Judged::Wrong => ("400 Bad Request", "This is not the answer to the login that is waited for.", None),
    };
    // A code can be used once, and the person has consented: it counts whether or not anybody waits for the page.
    let _ = timeout(PAGE, answer(&mut stream, status, text)).await;
    callback
}

/// Reads the head of a request and returns its first line; `None`: it is too large.
async fn request_line(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read(&mut buffer).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n if head.len() + n > MAX_HEAD => return Ok(None),
            n => head.extend_from_slice(buffer.get(..n).unwrap_or_default()),
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(Some(String::from_utf8_lossy(line).into_owned()))
}

/// What a request line comes to.
enum Judged {
    Callback(Callback),
    NotFound,
    BadMethod,
    TooLarge,
    Wrong,
}

fn judge(line: &str, state: &str) -> Judged {
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let url = Url::parse(&format!("http://127.0.0.1{target}"));
    let url = match url {
        Ok(url) if target.starts_with('/') && url.path() == PATH => url,
        _ => return Judged::NotFound,
    };
    if method != "GET" {
        return Judged::BadMethod;
    }
    let one = |name: &str| {
        let mut values = url.query_pairs().filter(|(key, _)| key == name).map(|(_, value)| value.into_owned());
        // Of two values nobody can tell which one is meant.
        match (values.next(), values.next()) {
            (value, None) => value,
            (_, Some(_)) => None,
        }
    };
    if one("state").is_none_or(|given| given != state) {
        return Judged::Wrong;
    }
    if let Some(error) = one("error") {
        return Judged::Callback(Callback::Refused(Refusal::new(&error, one("error_description").as_deref())));
    }
    match one("code").filter(|code| !code.is_empty()) {
        Some(code) => Judged::Callback(Callback::Code { code: Secret::new(code), issuer: one("iss") }),
        None => Judged::Wrong,
    }
}

/// Sends a page and closes. The page loads nothing, is kept by nobody, and tells no other page where it was.
async fn answer(stream: &mut (impl AsyncWrite + Unpin), status: &str, text: &str) -> io::Result<()> {
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Portcullis</title><p>{text}</p></html>\n"
    );
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\
         Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n\r\n",
        page.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(page.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(target: &str) -> &'static str {
        match judge(&format!("GET {target} HTTP/1.1"), "right") {
            Judged::Callback(Callback::Code { .. }) => "code",
            Judged::Callback(Callback::Refused(_)) => "refused",
            Judged::NotFound => "not found",
            Judged::BadMethod => "method",
            Judged::TooLarge => "too large",
            Judged::Wrong => "wrong",
        }
    }

    #[test]
    fn only_the_path_with_the_state_counts() {
        assert_eq!(judged("/callback?code=c&state=right&iss=i"), "code");
        assert_eq!(judged("/callback?error=access_denied&state=right"), "refused");
        for other in ["/favicon.ico", "/", "/callback/", "/x?code=c&state=right", "@evil/callback", "callback", ""] {
            assert_eq!(judged(other), "not found", "{other}");
        }
        for wrong in [
            "/callback",
            "/callback?code=c",
            "/callback?code=c&state=wrong",
            "/callback?code=c&state=wrong&state=right",
            "/callback?code=c&code=d&state=right",
            "/callback?state=right",
            "/callback?code=&state=right",
            "/callback?error=access_denied&state=wrong",
        ] {
            assert_eq!(judged(wrong), "wrong", "{wrong}");
        }
        assert!(matches!(judge("POST /callback?code=c&state=right HTTP/1.1", "right"), Judged::BadMethod));
    }

    #[tokio::test]
    async fn a_code_counts_although_the_browser_has_closed_before_its_page() {
        let (mut browser, stream) = tokio::io::duplex(1024);
        browser.write_all(b"GET /callback?code=c&state=right HTTP/1.1\r\n\r\n").await.unwrap();
        drop(browser);
        assert!(matches!(serve(stream, "right".into()).await, Some(Callback::Code { .. })));
    }
}
