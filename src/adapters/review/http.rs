//! A reviewer that is a model behind HTTP, in the form of OpenAI's Responses or of its Chat Completions.
//!
//! Promises: one POST an attempt; redirects are not followed; over plain http nothing leaves this machine; at most
//! [`MAX_BODY`] bytes are read; no error holds the key, the address or what was answered, and no answer the key. Overload (408, 429, 5xx), what
//! breaks on the way and an answer that is not in its form may be better the next time; any other status is a failure.

use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Response};
use serde_json::{Value, json};
use url::Url;

use super::without_key;
use crate::config::reviewer::Form;
use crate::model::evidence::{EvidenceImage, RenderedEvidence};
use crate::model::here::is_private;
use crate::model::json::{Json, Limits};
use crate::model::text::shown;
use crate::ports::review::{AutoReviewer, MAX_REVIEW, NoReview, ReviewRequest};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long one attempt may take in all: no longer than a whole review.
const TOTAL: Duration = Duration::from_secs(90);
/// The largest answer with all that is around it, in bytes.
const MAX_BODY: usize = 1024 * 1024;

type Build = dyn Fn() -> ClientBuilder + Send + Sync;
type Look = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Where the model is, and how it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The whole address.
    pub url: Url,
    /// The form of request and answer.
    pub form: Form,
    /// The model's name.
    pub model: String,
    /// The variable that holds the key.
    pub key_env: Option<String>,
}

/// A reviewer that is a model behind HTTP.
pub struct HttpReviewer {
    endpoint: Endpoint,
    builder: Box<Build>,
    variable: Box<Look>,
    client: OnceLock<Result<Client, String>>,
}

impl HttpReviewer {
    /// Makes one. `builder` brings TLS and its roots; `variable` reads our environment, at each attempt.
    #[must_use]
    pub fn new(
        endpoint: Endpoint,
        builder: impl Fn() -> ClientBuilder + Send + Sync + 'static,
        variable: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { endpoint, builder: Box::new(builder), variable: Box::new(variable), client: OnceLock::new() }
    }

    /// Made at the first use: who is not asked needs no certificates.
    fn client(&self) -> Result<&Client, NoReview> {
        let built = self.client.get_or_init(|| {
            let agent = concat!("portcullis/", env!("CARGO_PKG_VERSION"));
            let builder = (self.builder)().redirect(Policy::none()).referer(false).user_agent(agent);
            let builder = builder.connect_timeout(CONNECT).timeout(TOTAL);
            // A proxy is no part of this machine.
            let plain = self.endpoint.url.scheme() == "http";
            let builder = if plain { builder.no_proxy().tls_certs_only([]) } else { builder.https_only(true) };
            builder.build().map_err(|error| cause(&error))
        });
        built.as_ref().map_err(|why| NoReview::Failed(format!("there is no HTTP client: {why}")))
    }

    fn key(&self) -> Result<Option<String>, NoReview> {
        let Some(name) = &self.endpoint.key_env else { return Ok(None) };
        let key = (self.variable)(name).ok_or_else(|| self.unusable("is not set"))?;
        let key = key.trim().to_owned();
        if key.is_empty() { Err(self.unusable("is empty")) } else { Ok(Some(key)) }
    }

    fn authorization(&self, key: &str) -> Result<HeaderValue, NoReview> {
        let value = HeaderValue::from_str(&format!("Bearer {key}"));
        let mut value = value.map_err(|_| self.unusable("has characters that a header cannot hold"))?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn unusable(&self, why: &str) -> NoReview {
        let name = self.endpoint.key_env.as_deref().unwrap_or_default();
        NoReview::Failed(format!("the environment variable `{}` {why}", shown(name, 128)))
    }
}

#[async_trait]
impl AutoReviewer for HttpReviewer {
    async fn review(&self, request: &ReviewRequest) -> Result<String, NoReview> {
        if !is_private(&self.endpoint.url) {
            return Err(NoReview::Failed("actions are not sent over plain http; use https".to_owned()));
        }
        let mut post = self.client()?.post(self.endpoint.url.clone()).json(&body(&self.endpoint, request));
        let key = self.key()?;
        if let Some(key) = &key {
            post = post.header(AUTHORIZATION, self.authorization(key)?);
        }
        let answer = post.send().await.map_err(|error| broken(&error))?;
        let status = answer.status();
        if !status.is_success() {
            let said = format!("the reviewer's server answered HTTP {}", status.as_u16());
            return Err(match status.as_u16() {
                408 | 429 | 500.. => NoReview::Transient(said),
                300..400 => NoReview::Failed(format!("{said}, and redirects are not followed")),
                _ => NoReview::Failed(said),
            });
        }
        Ok(without_key(said(self.endpoint.form, &body_of(answer).await?)?, key.as_deref()))
    }
}

fn body(endpoint: &Endpoint, request: &ReviewRequest) -> Value {
    let (model, instructions, action) = (&endpoint.model, &*request.instructions, &*request.action);
    if let Some(evidence) = request.evidence.after(0) {
        return with_evidence(endpoint, request, &evidence);
    }
    match endpoint.form {
        Form::Responses => json!({ "model": model, "instructions": instructions, "input": action, "store": false }),
        Form::Chat => json!({
            "model": model,
            "messages": [{ "role": "system", "content": instructions }, { "role": "user", "content": action }],
        }),
    }
}

/// The same with the evidence in front of the action: one message of several parts, the action the last of them.
fn with_evidence(endpoint: &Endpoint, request: &ReviewRequest, evidence: &RenderedEvidence) -> Value {
    let (model, instructions) = (&endpoint.model, &*request.instructions);
    let texts = |kind: &str| {
        let text = |text: &str| json!({ "type": kind, "text": text });
        (text(&evidence.text), text(&request.action))
    };
    // Providers know no `original`.
    let detail = |image: &EvidenceImage| match image.detail {
        Some("original") => "high",
        other => other.unwrap_or("auto"),
    };
    match endpoint.form {
        Form::Responses => {
            let (evidence_text, action) = texts("input_text");
            let images = evidence
                .images
                .iter()
                .map(|image| json!({ "type": "input_image", "image_url": &*image.url, "detail": detail(image) }));
            let content: Vec<Value> = std::iter::once(evidence_text).chain(images).chain([action]).collect();
            let input = json!([{ "role": "user", "content": content }]);
            json!({ "model": model, "instructions": instructions, "input": input, "store": false })
        }
        Form::Chat => {
            let (evidence_text, action) = texts("text");
            let images = evidence.images.iter().map(
                |image| json!({ "type": "image_url", "image_url": { "url": &*image.url, "detail": detail(image) } }),
            );
            let content: Vec<Value> = std::iter::once(evidence_text).chain(images).chain([action]).collect();
            json!({
                "model": model,
                "messages": [{ "role": "system", "content": instructions }, { "role": "user", "content": content }],
            })
        }
    }
}

async fn body_of(mut answer: Response) -> Result<Vec<u8>, NoReview> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| broken(&error))? {
        if body.len() + chunk.len() > MAX_BODY {
            return Err(NoReview::Failed(format!("the reviewer's server answered more than {MAX_BODY} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Returns all the text that the model said. It is not searched for a part that would do (R22).
fn said(form: Form, body: &[u8]) -> Result<String, NoReview> {
    let unlike =
        |what: &str| NoReview::Transient(format!("the reviewer's server did not answer in the {form} form: {what}"));
    let text = std::str::from_utf8(body).map_err(|_| unlike("it is no UTF-8"))?;
    let json = Json::parse(text, Limits { bytes: MAX_BODY, depth: 64 }).map_err(|_| unlike("it is no usable JSON"))?;
    let answer = json.into_value_lossy();
    let text = match form {
        Form::Responses => responses(&answer),
        Form::Chat => chat(&answer),
    };
    let text = text.map_err(unlike)?;
    match text.len() <= MAX_REVIEW {
        true => Ok(text),
        false => Err(NoReview::Failed(format!("the reviewer said more than {MAX_REVIEW} bytes"))),
    }
}

fn responses(answer: &Value) -> Result<String, &'static str> {
    if answer.get("status").is_some_and(|status| status != "completed") {
        return Err("its `status` is not `completed`");
    }
    let items = answer.get("output").and_then(Value::as_array).ok_or("it has no `output`")?;
    let messages = items.iter().filter(|item| item.get("type").is_some_and(|kind| kind == "message"));
    let mut text = String::new();
    for message in messages {
        for part in message.get("content").and_then(Value::as_array).ok_or("a message has no `content`")? {
            let is_text = part.get("type").is_some_and(|kind| kind == "output_text");
            text.push_str(part.get("text").and_then(Value::as_str).filter(|_| is_text).ok_or("a part is no text")?);
        }
    }
    Ok(text)
}

fn chat(answer: &Value) -> Result<String, &'static str> {
    let choices = answer.get("choices").and_then(Value::as_array).map(Vec::as_slice);
    let Some([choice]) = choices else { return Err("it has not one of `choices`") };
    let content = choice.pointer("/message/content").and_then(Value::as_str);
    content.map(str::to_owned).ok_or("its message has no text")
}

fn broken(error: &reqwest::Error) -> NoReview {
    NoReview::Transient(match error.is_timeout() {
        true => "the reviewer's server did not answer in time".to_owned(),
        false => format!("the reviewer's server cannot be reached: {}", cause(error)),
    })
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
    fn all_that_was_said_is_the_answer() {
        let responses = r#"{"status":"completed","output":[{"type":"reasoning","summary":[]},{"type":"message","content":
            [{"type":"output_text","text":"Fine: "},{"type":"output_text","text":"{}"}]}]}"#;
        assert_eq!(said(Form::Responses, responses.as_bytes()), Ok("Fine: {}".to_owned()));
        let chat = r#"{"choices":[{"message":{"role":"assistant","content":" {} "},"finish_reason":"stop"}]}"#;
        assert_eq!(said(Form::Chat, chat.as_bytes()), Ok(" {} ".to_owned()));
    }

    #[test]
    fn what_is_not_in_its_form_may_be_better_the_next_time_and_is_not_quoted() {
        let refusal = r#"{"output":[{"type":"message","content":[{"type":"refusal","refusal":"hush"}]}]}"#;
        let incomplete = r#"{"status":"incomplete","output":[{"type":"message","content":[]}]}"#;
        let two = r#"{"choices":[{"message":{"content":"{}"}},{"message":{"content":"{}"}}]}"#;
        let tools = r#"{"choices":[{"message":{"content":null,"tool_calls":["hush"]}}]}"#;
        let cases = [
            (Form::Responses, "hush"),
            (Form::Responses, "{}"),
            (Form::Responses, refusal),
            (Form::Responses, incomplete),
            (Form::Chat, r#"{"choices":[],"choices":[{"message":{"content":"hush"}}]}"#),
            (Form::Chat, r#"{"error":{"message":"hush"}}"#),
            (Form::Chat, two),
            (Form::Chat, tools),
        ];
        for (form, body) in cases {
            let Err(NoReview::Transient(why)) = said(form, body.as_bytes()) else { panic!("{body}") };
            assert!(!why.contains("hush"), "{why}");
        }
    }
}
