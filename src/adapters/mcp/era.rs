//! The protocol era of one connection: with a handshake, or stateless (the era is a property of a hop).
//!
//! What differs on our way to a server is here: what a request's `_meta` must say, and which members of an answer mean
//! something on this hop only.

use rmcp::model::{Implementation, ProtocolVersion};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::model::answerable::Answerable;

/// Keys of the protocol in `_meta`.
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CLIENT: &str = "io.modelcontextprotocol/clientInfo";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// What a server says of itself in each answer. It belongs to its hop; as provenance it is kept under our own key.
const SERVER: &str = "io.modelcontextprotocol/serverInfo";
const SERVER_KEPT: &str = "portcullis/serverInfo";
/// How keys begin that only this host writes.
const OURS: &str = "portcullis/";
/// The member that says what kind of result it is.
const RESULT_TYPE: &str = "resultType";

/// The era.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Era {
    /// `initialize`, 2024-11-05 to 2025-11-25.
    #[default]
    Legacy,
    /// Each request stands for itself, from 2026-07-28.
    Modern,
}

/// What a result of a server is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ResultType {
    /// The answer; an absent type means that, too.
    Complete,
    /// Questions that have to be answered first.
    InputRequired,
    /// Something that was not asked for.
    Other(String),
}

impl Era {
    /// Adds to a request's `_meta` what the era wants there: who asks, in which version, and what its client can be asked.
    pub(super) fn stamp(self, meta: &mut Map<String, Value>, answerable: Answerable) {
        if self == Self::Modern {
            let us = us();
            meta.insert(VERSION.to_owned(), Value::from(ProtocolVersion::NO_INITIALIZE.as_str()));
            meta.insert(CLIENT.to_owned(), json!({ "name": us.name, "version": us.version }));
            meta.insert(CAPABILITIES.to_owned(), Value::Object(answerable.to_capabilities()));
        }
    }

    /// Returns what kind of result a text is.
    pub(super) fn result_type(self, text: &str) -> ResultType {
        if self == Self::Legacy || !may_hold(text, RESULT_TYPE) {
            return ResultType::Complete;
        }
        let kind = members(text).and_then(|members| members.into_iter().rfind(|(key, _)| key == RESULT_TYPE));
        match kind.map(|(_, raw)| serde_json::from_str::<String>(raw.get())) {
            None => ResultType::Complete,
            Some(Ok(kind)) if kind == "complete" => ResultType::Complete,
            Some(Ok(kind)) if kind == "input_required" => ResultType::InputRequired,
            Some(Ok(kind)) => ResultType::Other(kind),
            Some(Err(_)) => ResultType::Other("no text".to_owned()),
        }
    }

    /// Takes off a result what means something on this hop only, and what only we may say. Every other member stays as it
    /// was spelled.
    pub(super) fn strip(self, text: &str) -> Option<String> {
        let typed = self == Self::Modern && may_hold(text, RESULT_TYPE);
        if !typed && !may_hold(text, SERVER) && !may_hold(text, OURS) {
            return None;
        }
        let mut changed = false;
        let mut out = Vec::new();
        for (key, raw) in members(text)? {
            if typed && key == RESULT_TYPE {
                changed = true;
            } else if let Some(meta) = (key == "_meta").then(|| renamed(raw.get())).flatten() {
                changed = true;
                out.push((key, meta));
            } else {
                out.push((key, raw.get().to_owned()));
            }
        }
        changed.then(|| object(&out))
    }
}

/// Returns a result as a client of the stateless era wants it: of the type `complete`, whatever else it says. Every other member
/// stays as it was spelled. `None`: no object.
pub(super) fn complete(text: &str) -> Option<String> {
    const TYPE: &str = r#""resultType":"complete""#;
    if may_hold(text, RESULT_TYPE) {
        // An older server may call its result anything; only we ask questions of our client.
        let kept = members(text)?.into_iter().filter(|(key, _)| key != RESULT_TYPE);
        let typed = std::iter::once((RESULT_TYPE.to_owned(), r#""complete""#.to_owned()));
        return Some(object(&typed.chain(kept.map(|(key, raw)| (key, raw.get().to_owned()))).collect::<Vec<_>>()));
    }
    let rest = text.trim_start().strip_prefix('{')?;
    let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
    Some(format!("{{{TYPE}{comma}{rest}"))
}

/// Whether an answer to discovery says that the server speaks versions with a handshake only.
pub(super) fn wants_handshake(answer: &str) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Discovered {
        supported_versions: Vec<ProtocolVersion>,
    }
    #[derive(Deserialize)]
    struct Supported {
        supported: Vec<ProtocolVersion>,
    }
    #[derive(Deserialize)]
    struct Refused {
        data: Supported,
    }
    #[derive(Deserialize)]
    struct Answer {
        result: Option<Discovered>,
        error: Option<Refused>,
    }
    let Ok(Answer { result, error }) = serde_json::from_str(answer) else { return false };
    let refused = error.map(|refused| refused.data.supported);
    let versions = result.map(|discovered| discovered.supported_versions).or(refused).unwrap_or_default();
    let known = |version: &ProtocolVersion| ProtocolVersion::KNOWN_VERSIONS.contains(version);
    let mut spoken = versions.iter().filter(|version| known(version)).peekable();
    spoken.peek().is_some() && spoken.all(ProtocolVersion::has_initialize)
}

/// Whether a text may have a key of this name: as it is, or spelled with escapes. Most texts have neither.
fn may_hold(text: &str, name: &str) -> bool {
    text.contains(name) || text.contains("\\u") || text.contains("\\/")
}

/// Who we are to a server.
pub(super) fn us() -> Implementation {
    Implementation::new("portcullis", env!("CARGO_PKG_VERSION"))
}

/// Returns a `_meta` in which the server's own name stands under our key, and no key of ours that the server wrote.
fn renamed(meta: &str) -> Option<String> {
    let members = members(meta)?;
    members.iter().any(|(key, _)| key == SERVER || key.starts_with(OURS)).then(|| {
        let of = |key: &str| if key == SERVER { SERVER_KEPT.to_owned() } else { key.to_owned() };
        let kept = members.iter().filter(|(key, _)| !key.starts_with(OURS));
        object(&kept.map(|(key, raw)| (of(key), raw.get().to_owned())).collect::<Vec<_>>())
    })
}

/// The members of an object in their order, each value as it was spelled. `None`: no object.
fn members(text: &str) -> Option<Vec<(String, &RawValue)>> {
    struct Members<'a>(Vec<(String, &'a RawValue)>);

    impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;

            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Vec<(String, &'de RawValue)>;

                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object")
                }

                fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                    let mut members = Vec::new();
                    while let Some(member) = map.next_entry()? {
                        members.push(member);
                    }
                    Ok(members)
                }
            }

            deserializer.deserialize_map(Visitor).map(Members)
        }
    }

    serde_json::from_str::<Members<'_>>(text).ok().map(|members| members.0)
}

fn object(members: &[(String, String)]) -> String {
    let members: Vec<String> =
        members.iter().map(|(key, raw)| format!("{}:{raw}", Value::from(key.as_str()))).collect();
    format!("{{{}}}", members.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_lists_older_versions_only_wants_a_handshake() {
        let result = |versions: &str| format!(r#"{{"id":1,"result":{{"supportedVersions":{versions},"zz":1}}}}"#);
        let error = |versions: &str| {
            format!(r#"{{"id":1,"error":{{"code":-32022,"message":"m","data":{{"supported":{versions}}}}}}}"#)
        };
        for answer in [&result as &dyn Fn(&str) -> String, &error] {
            assert!(wants_handshake(&answer(r#"["2025-11-25","2099-01-01"]"#)));
            assert!(!wants_handshake(&answer(r#"["2026-07-28","2025-11-25"]"#)));
            assert!(!wants_handshake(&answer(r#"["2099-01-01"]"#)), "nothing that could be spoken");
            assert!(!wants_handshake(&answer("[]")));
        }
        assert!(!wants_handshake(r#"{"id":1,"error":{"code":1,"message":"m"}}"#));
    }

    #[test]
    fn a_request_of_the_stateless_era_says_who_asks_and_what_its_client_can_do() {
        let mut meta = Map::new();
        Era::Legacy.stamp(&mut meta, Answerable::RELAYED);
        assert!(meta.is_empty());
        Era::Modern.stamp(&mut meta, Answerable { roots: true, ..Answerable::default() });
        assert_eq!(meta[VERSION], "2026-07-28");
        assert_eq!(meta[CAPABILITIES], json!({ "roots": {} }));
        assert_eq!(meta[CLIENT]["name"], "portcullis");
    }

    #[test]
    fn pitfall_1_the_type_of_a_result_belongs_to_its_hop() {
        let modern = r#"{ "resultType":"complete","zz":1.50,"content":[ {"a" : 1} ]}"#;
        assert_eq!(Era::Modern.result_type(modern), ResultType::Complete);
        assert_eq!(Era::Modern.strip(modern).unwrap(), r#"{"zz":1.50,"content":[ {"a" : 1} ]}"#);
        assert_eq!(Era::Legacy.strip(modern), None, "in the older era it is a member like any other");
        assert_eq!(Era::Modern.strip(r#"{"content":["resultType"]}"#), None);
        assert_eq!(Era::Modern.result_type(r#"{"content":[]}"#), ResultType::Complete);
        assert_eq!(Era::Modern.result_type(r#"{"resultType":"input_required"}"#), ResultType::InputRequired);
        assert_eq!(Era::Modern.result_type(r#"{"resultType":"task"}"#), ResultType::Other("task".to_owned()));
    }

    #[test]
    fn pitfall_1_an_answer_towards_the_stateless_era_is_complete_whatever_an_older_server_calls_it() {
        let typed = |text: &str| complete(text).unwrap();
        assert_eq!(typed(r#"{ "zz":1.50}"#), r#"{"resultType":"complete", "zz":1.50}"#);
        assert_eq!(typed("{ }"), r#"{"resultType":"complete" }"#);
        assert_eq!(typed(r#"{"a":[ 1 ],"resultType":"input_required"}"#), r#"{"resultType":"complete","a":[ 1 ]}"#);
        assert_eq!(typed(r#"{"result\u0054ype":7}"#), r#"{"resultType":"complete"}"#);
        assert_eq!(complete("[]"), None);
    }

    #[test]
    fn pitfall_15_the_name_of_a_server_is_kept_under_our_own_key() {
        let text = r#"{"content":[],"_meta":{"a":1.0,"io.modelcontextprotocol/serverInfo":{"name":"x"},"b":[]}}"#;
        let stripped = Era::Legacy.strip(text).unwrap();
        assert_eq!(stripped, r#"{"content":[],"_meta":{"a":1.0,"portcullis/serverInfo":{"name":"x"},"b":[]}}"#);
        let forged = r#"{"_meta":{"portcullis/serverInfo":1,"io.modelcontextprotocol/serverInfo":2}}"#;
        assert_eq!(Era::Legacy.strip(forged).unwrap(), r#"{"_meta":{"portcullis/serverInfo":2}}"#);
        let forged = r#"{"_meta":{"portcullis/serverInfo":1,"port\u0063ullis/x":1,"a":[1.0]}}"#;
        assert_eq!(Era::Legacy.strip(forged).unwrap(), r#"{"_meta":{"a":[1.0]}}"#);
    }

    #[test]
    fn a_key_is_what_it_says_however_it_is_spelled() {
        let asks = r#"{"result\u0054ype":"input_required"}"#;
        assert_eq!(Era::Modern.result_type(asks), ResultType::InputRequired);
        let escaped = r#"{"_meta":{"io.modelcontextprotocol\/serverInfo":{"name":"x"}}}"#;
        assert_eq!(Era::Legacy.strip(escaped).unwrap(), r#"{"_meta":{"portcullis/serverInfo":{"name":"x"}}}"#);
        let text = r#"{"content":[{"text":"a\/b \u00e9 \"resultType\""}]}"#;
        assert_eq!(Era::Modern.strip(text), None, "values are not touched");
    }
}
