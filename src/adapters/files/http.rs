//! Uploads over HTTP: one POST with the bytes of the file, answered by a reference to it.
//!
//! ```text
//! POST <upload_url>
//! Content-Type: <by the name, else application/octet-stream>
//! Content-Length: <bytes>
//! Content-Disposition: attachment; filename*=UTF-8''<name, percent-encoded>
//! Repr-Digest: sha-256=:<base64>:
//! Authorization: Bearer <token>
//! Portcullis-Connector-Id, Portcullis-Action-Name, Portcullis-Model: <an App's, percent-encoded as the name is>
//!
//! 2xx { "file_id": "…", "download_url": "…", "mime_type"?: "…", "file_name"?: "…" }
//! ```
//!
//! Promises: redirects are not followed; over plain http nothing leaves this machine; the answer has at most
//! [`MAX_ANSWER`] bytes; an upload where nothing moves for [`IDLE`], or that takes [`TOTAL`], ends; no error holds the token, the
//! address, or what was answered. The file is read by position from its descriptor and compared with what was bound (R27).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::Stream;
use futures::stream::try_unfold;
use reqwest::header::{AUTHORIZATION, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Body, Client, ClientBuilder, Response};
use serde_json::{Map, Value};
use tokio::sync::Notify;
use url::Url;

use super::reading::Chunks;
use crate::config::template::is_variable_name;
use crate::model::here::is_private;
use crate::model::json::{Json, Limits};
use crate::model::text::shown;
use crate::ports::files::{FileError, OpenFile, UploadError, UploadFor, UploadProgress, Uploaded, Uploader};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long an upload may stand still, its answer included.
const IDLE: Duration = Duration::from_secs(60);
/// How long an upload may take in all.
const TOTAL: Duration = Duration::from_secs(30 * 60);
/// The largest answer, in bytes.
const MAX_ANSWER: usize = 64 * 1024;
/// The longest id, type or name of an answer, in bytes.
const MAX_TEXT: usize = 1024;
/// The longest header about a call, in bytes.
const MAX_HEADER: usize = 1024;
/// The longest address of an answer, in bytes.
const MAX_URL: usize = 8 * 1024;

type Build = dyn Fn() -> ClientBuilder + Send + Sync;
type Look = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Uploads to one address.
#[derive(Clone)]
pub struct HttpUploads(Arc<Inner>);

struct Inner {
    url: Url,
    token: Option<String>,
    builder: Box<Build>,
    variable: Box<Look>,
    client: OnceLock<Result<Client, String>>,
}

impl std::fmt::Debug for HttpUploads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HttpUploads")
    }
}

impl HttpUploads {
    /// Uploads to `url`, with the token that is in the variable `token`, if one is named. `builder` brings TLS and its roots;
    /// `variable` reads the environment, at each upload.
    #[must_use]
    pub fn new(
        url: Url,
        token: Option<String>,
        builder: impl Fn() -> ClientBuilder + Send + Sync + 'static,
        variable: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let (builder, variable) = (Box::new(builder), Box::new(variable));
        Self(Arc::new(Inner { url, token, builder, variable, client: OnceLock::new() }))
    }

    /// Made at the first use: what needs no upload needs no certificates.
    fn client(&self) -> Result<&Client, UploadError> {
        let built = self.0.client.get_or_init(|| {
            let agent = concat!("portcullis/", env!("CARGO_PKG_VERSION"));
            let builder = (self.0.builder)().redirect(Policy::none()).referer(false).user_agent(agent);
            let builder = builder.connect_timeout(CONNECT).read_timeout(IDLE).timeout(TOTAL);
            // A proxy is no part of this machine.
            let plain = self.0.url.scheme() == "http";
            let builder = if plain { builder.no_proxy().tls_certs_only([]) } else { builder.https_only(true) };
            builder.build().map_err(|error| cause(&error))
        });
        built.as_ref().map_err(|why| UploadError::Unusable(format!("there is no HTTP client: {why}")))
    }

    fn authorization(&self) -> Result<Option<HeaderValue>, UploadError> {
        let Some(name) = &self.0.token else { return Ok(None) };
        let unusable = |why: &str| {
            let name = if is_variable_name(name) { name } else { "?" };
            UploadError::Unusable(format!("the environment variable `{name}` {why}"))
        };
        let token = (self.0.variable)(name).ok_or_else(|| unusable("is not set"))?;
        let value = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
        let mut value = value.map_err(|_| unusable("has characters that a header cannot hold"))?;
        if token.trim().is_empty() {
            return Err(unusable("is empty"));
        }
        value.set_sensitive(true);
        Ok(Some(value))
    }

    async fn send(&self, file: &OpenFile, purpose: &Purpose, body: Body) -> Result<Uploaded, UploadError> {
        let facts = &file.facts;
        let known = mime_guess::from_path(&facts.name).first().map(|kind| kind.to_string());
        let mut request = self.client()?.post(self.0.url.clone()).body(body);
        request = request.header(CONTENT_TYPE, known.as_deref().unwrap_or("application/octet-stream"));
        request = request.header(CONTENT_LENGTH, facts.length);
        request = request.header(CONTENT_DISPOSITION, format!("attachment; filename*=UTF-8''{}", encoded(&facts.name)));
        request = request.header("repr-digest", format!("sha-256=:{}:", STANDARD.encode(facts.sha256.as_bytes())));
        for (name, value) in purpose {
            request = request.header(*name, value);
        }
        if let Some(token) = self.authorization()? {
            request = request.header(AUTHORIZATION, token);
        }
        let answer = request.send().await.map_err(|error| failed(&error))?;
        let status = answer.status();
        if !status.is_success() {
            return Err(UploadError::Refused(status.as_u16()));
        }
        uploaded(&body_of(answer).await?, known, &facts.name)
    }
}

#[async_trait]
impl Uploader for HttpUploads {
    async fn upload(
        &self,
        file: &OpenFile,
        purpose: Option<&UploadFor>,
        progress: Arc<dyn UploadProgress>,
    ) -> Result<Uploaded, UploadError> {
        if !is_private(&self.0.url) {
            return Err(UploadError::Unusable("files are not sent over plain http; use https".to_owned()));
        }
        let purpose = purpose.map_or(Ok(Purpose::new()), headers)?;
        let (moved, why) = (Arc::new(Notify::new()), Arc::new(OnceLock::new()));
        let body = Body::wrap_stream(bytes_of(file.clone(), progress, Arc::clone(&moved), Arc::clone(&why)));
        let mut sending = std::pin::pin!(self.send(file, &purpose, body));
        let sent = loop {
            tokio::select! {
                biased;
                sent = &mut sending => break sent,
                () = moved.notified() => {}
                () = tokio::time::sleep(IDLE) => break Err(UploadError::Slow),
            }
        };
        // What is wrong with the file is why the connection broke off, or why an early answer came.
        match why.get() {
            Some(error) => Err(UploadError::File(FileError::clone(error))),
            None => sent,
        }
    }
}

/// Headers about the call.
type Purpose = Vec<(&'static str, String)>;

fn headers(purpose: &UploadFor) -> Result<Purpose, UploadError> {
    let mut told = vec![("portcullis-connector-id", encoded(&purpose.connector))];
    told.push(("portcullis-action-name", encoded(&purpose.action)));
    told.extend(purpose.model.as_deref().map(|model| ("portcullis-model", encoded(model))));
    match told.iter().find(|(_, value)| value.len() > MAX_HEADER) {
        Some((name, _)) => Err(UploadError::Unusable(format!("its `{name}` has more than {MAX_HEADER} bytes"))),
        None => Ok(told),
    }
}

/// The bytes of a file as they are asked for, each chunk read off the reactor.
fn bytes_of(
    file: OpenFile,
    progress: Arc<dyn UploadProgress>,
    moved: Arc<Notify>,
    why: Arc<OnceLock<FileError>>,
) -> impl Stream<Item = Result<Bytes, FileError>> + Send + 'static {
    let length = file.facts.length;
    try_unfold((Chunks::of(file), 0_u64), move |(mut chunks, sent)| {
        let (progress, moved, why) = (Arc::clone(&progress), Arc::clone(&moved), Arc::clone(&why));
        async move {
            let read = tokio::task::spawn_blocking(move || (chunks.next(), chunks)).await;
            let (next, chunks) = read.map_err(|_| FileError::Unreadable("reading it was broken off".to_owned()))?;
            let next = next.inspect_err(|error| _ = why.set(error.clone()))?;
            moved.notify_one();
            Ok(next.map(|chunk| {
                let sent = sent + chunk.len() as u64;
                progress.sent(sent, length);
                (chunk, (chunks, sent))
            }))
        }
    })
}

async fn body_of(mut answer: Response) -> Result<Vec<u8>, UploadError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| failed(&error))? {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Err(UploadError::BadAnswer("it has more than 65536 bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Reads the answer. What it does not say of the file is what we know.
fn uploaded(body: &[u8], known: Option<String>, name: &str) -> Result<Uploaded, UploadError> {
    let limits = Limits { bytes: MAX_ANSWER, depth: 16 };
    let text = std::str::from_utf8(body).map_err(|_| UploadError::BadAnswer("it is no UTF-8"))?;
    let json = Json::parse(text, limits).map_err(|_| UploadError::BadAnswer("it is no usable JSON"))?;
    let Value::Object(answer) = json.into_value_lossy() else {
        return Err(UploadError::BadAnswer("it is no JSON object"));
    };
    let file_id = text_of(&answer, "file_id", MAX_TEXT, "its `file_id` is not usable")?;
    let url = text_of(&answer, "download_url", MAX_URL, "its `download_url` is not usable")?;
    let address = url.as_deref().and_then(|url| Url::parse(url).ok());
    let usable = address.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    Ok(Uploaded {
        file_id: file_id.ok_or(UploadError::BadAnswer("it has no `file_id`"))?,
        download_url: url
            .filter(|_| usable)
            .ok_or(UploadError::BadAnswer("it has no `download_url` that is an http or https address"))?,
        mime_type: text_of(&answer, "mime_type", MAX_TEXT, "its `mime_type` is not usable")?.or(known),
        file_name: text_of(&answer, "file_name", MAX_TEXT, "its `file_name` is not usable")?
            .unwrap_or_else(|| name.to_owned()),
    })
}

/// A text of the answer; none where it is absent or null.
fn text_of(
    answer: &Map<String, Value>,
    key: &str,
    max: usize,
    fault: &'static str,
) -> Result<Option<String>, UploadError> {
    match answer.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.is_empty() && text.len() <= max => Ok(Some(text.clone())),
        Some(_) => Err(UploadError::BadAnswer(fault)),
    }
}

/// A value of an extended parameter (RFC 8187).
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(one).collect()
}

fn failed(error: &reqwest::Error) -> UploadError {
    if error.is_timeout() { UploadError::Slow } else { UploadError::Unreachable(cause(error)) }
}

/// The innermost cause, which names no address.
fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = match innermost.downcast_ref::<reqwest::Error>() {
        Some(_) => "the request failed".to_owned(),
        None => innermost.to_string(),
    };
    shown(&text, 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_no_reference_is_an_error_without_its_words() {
        let long = format!(r#"{{"file_id":"{}","download_url":"https://a.example/f"}}"#, "x".repeat(MAX_TEXT + 1));
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"file_id":"hush"}"#,
            r#"{"file_id":"","download_url":"https://a.example/f"}"#,
            r#"{"file_id":7,"download_url":"https://a.example/f"}"#,
            r#"{"file_id":"hush","download_url":"/hush"}"#,
            r#"{"file_id":"hush","download_url":"file:///hush"}"#,
            r#"{"file_id":"hush","file_id":"b","download_url":"https://a.example/f"}"#,
            r#"{"file_id":"hush","download_url":"https://a.example/f","mime_type":1}"#,
            &long,
        ] {
            let error = uploaded(bad.as_bytes(), None, "f").unwrap_err();
            assert!(matches!(error, UploadError::BadAnswer(_)), "{bad}");
            assert!(!error.to_string().contains("hush"));
        }
    }

    #[test]
    fn what_an_answer_does_not_say_is_what_we_know() {
        let text = br#"{"download_url":"https://a.example/f?sig=1","file_id":"id","mime_type":null,"more":{}}"#;
        let found = uploaded(text, Some("text/csv".to_owned()), "a.csv").unwrap();
        assert_eq!((found.mime_type.as_deref(), found.file_name.as_str()), (Some("text/csv"), "a.csv"));
        let text = br#"{"download_url":"https://a.example/f","file_id":"id","mime_type":"a/b","file_name":"c"}"#;
        let found = uploaded(text, None, "a.csv").unwrap();
        assert_eq!((found.mime_type.as_deref(), found.file_name.as_str()), (Some("a/b"), "c"));
    }

    #[test]
    fn a_name_goes_into_a_header_without_breaking_it() {
        assert_eq!(encoded("a b\r\n\"é.csv"), "a%20b%0D%0A%22%C3%A9.csv");
    }
}
