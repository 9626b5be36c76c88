//! Which questions of a server a client can answer.
//!
//! Read from the capabilities that the client declared, in the words of the protocol (2025-11-25 "Capabilities"), and
//! written in the same words to a server of the stateless era, which is told with every request.

use serde_json::{Map, Value, json};

/// What a server can ask its client for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuestionKind {
    /// A form to fill in or an address to visit: `elicitation/create`.
    Elicitation,
    /// A model's answer: `sampling/createMessage`.
    Sampling,
    /// The client's folders: `roots/list`.
    Roots,
}

impl QuestionKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Elicitation, Self::Sampling, Self::Roots];

    /// Returns the kind that a method asks for.
    #[must_use]
    pub fn of_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }

    /// Returns the method that asks for it.
    #[must_use]
    pub fn method(self) -> &'static str {
        match self {
            Self::Elicitation => "elicitation/create",
            Self::Sampling => "sampling/createMessage",
            Self::Roots => "roots/list",
        }
    }
}

/// What one client can be asked. Sampling with the context of other servers is not among it: to the client every server is
/// this host, so it would be that of all of them. The default is a client that can be asked nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answerable {
    /// Elicitation by form.
    pub forms: bool,
    /// Elicitation by address.
    pub urls: bool,
    /// Sampling.
    pub sampling: bool,
    /// Sampling with tools.
    pub sampling_tools: bool,
    /// Roots.
    pub roots: bool,
}

impl Answerable {
    /// What this host can relay at all: what a server is told before any client is known.
    pub const RELAYED: Self = Self { forms: true, urls: true, sampling: true, sampling_tools: true, roots: true };

    /// Reads the capabilities that a client declared.
    #[must_use]
    pub fn of_capabilities(capabilities: &Value) -> Self {
        let has = |name: &str| capabilities.get(name).filter(|value| value.is_object());
        let within = |name: &str, part: &str| has(name).is_some_and(|value| value.get(part).is_some());
        let elicitation = has("elicitation").is_some();
        let urls = within("elicitation", "url");
        Self {
            // An empty capability is what clients before the URL mode declare: it means forms.
            forms: elicitation && (within("elicitation", "form") || !urls),
            urls,
            sampling: has("sampling").is_some(),
            sampling_tools: within("sampling", "tools"),
            roots: has("roots").is_some(),
        }
    }

    /// Returns the capabilities that say the same.
    #[must_use]
    pub fn to_capabilities(self) -> Map<String, Value> {
        let part = |name: &str, has: bool| has.then(|| (name.to_owned(), json!({})));
        let mut out = Map::new();
        if self.forms || self.urls {
            let modes: Map<_, _> = [part("form", self.forms), part("url", self.urls)].into_iter().flatten().collect();
            out.insert("elicitation".to_owned(), Value::Object(modes));
        }
        if self.sampling {
            out.insert("sampling".to_owned(), Value::Object(part("tools", self.sampling_tools).into_iter().collect()));
        }
        out.extend(part("roots", self.roots));
        out
    }

    /// Says which capability is missing for a question with these parameters, if one is.
    #[must_use]
    pub fn lacks(self, kind: QuestionKind, params: &Value) -> Option<&'static str> {
        let (has, what) = match kind {
            QuestionKind::Elicitation if params.get("mode").is_some_and(|mode| mode == "url") => {
                (self.urls, "elicitation.url")
            }
            QuestionKind::Elicitation => (self.forms, "elicitation"),
            QuestionKind::Sampling if params.get("tools").is_some() || params.get("toolChoice").is_some() => {
                (self.sampling && self.sampling_tools, "sampling.tools")
            }
            QuestionKind::Sampling => (self.sampling, "sampling"),
            QuestionKind::Roots => (self.roots, "roots"),
        };
        (!has).then_some(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_as_the_same() {
        for bits in 0..32_u8 {
            let bit = |n: u8| bits & (1 << n) != 0;
            let answerable = Answerable {
                forms: bit(0),
                urls: bit(1),
                sampling: bit(2),
                sampling_tools: bit(2) && bit(3),
                roots: bit(4),
            };
            let capabilities = Value::Object(answerable.to_capabilities());
            assert_eq!(Answerable::of_capabilities(&capabilities), answerable, "{capabilities}");
        }
    }

    #[test]
    fn an_empty_elicitation_capability_means_forms() {
        let answerable = Answerable::of_capabilities(&json!({ "elicitation": {} }));
        assert_eq!(answerable, Answerable { forms: true, ..Answerable::default() });
        assert_eq!(Answerable::of_capabilities(&json!({ "elicitation": true, "roots": 1 })), Answerable::default());
    }

    #[test]
    fn a_question_needs_the_very_capability() {
        let forms = Answerable { forms: true, sampling: true, ..Answerable::default() };
        let lacks = |kind, params| forms.lacks(kind, &params);
        assert_eq!(lacks(QuestionKind::Elicitation, json!({})), None);
        assert_eq!(lacks(QuestionKind::Elicitation, json!({ "mode": "url" })), Some("elicitation.url"));
        assert_eq!(lacks(QuestionKind::Sampling, json!({})), None);
        assert_eq!(lacks(QuestionKind::Sampling, json!({ "tools": [] })), Some("sampling.tools"));
        assert_eq!(lacks(QuestionKind::Roots, json!({})), Some("roots"));
    }
}
