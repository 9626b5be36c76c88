//! Text with `${NAME}` references, resolved as late as possible and never printed resolved (R4).

use std::borrow::Cow;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use crate::model::text::shown;

/// A text of the configuration that may name environment variables as `${NAME}`; `$${` stands for `${` itself.
///
/// `Debug` shows the names only: literal parts of an environment value may be secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable(String),
}

/// A text has `${` without a variable's name and `}`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`${{` must be followed by a variable's name and `}}`; write `$${{` for the characters themselves")]
pub struct BadTemplate;

/// A variable that a template names is not set, or is not Unicode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the environment variable `{0}` is not set")]
pub struct MissingVariable(pub String);

/// Whether a text is an environment variable's name: `[A-Za-z_][A-Za-z0-9_]*`, at most 128 characters.
#[must_use]
pub fn is_variable_name(text: &str) -> bool {
    let head = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    head && text.len() <= 128 && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Template {
    /// Parses a text.
    ///
    /// # Errors
    /// [`BadTemplate`]; the text is not in it, since it may be a secret.
    pub fn parse(text: &str) -> Result<Self, BadTemplate> {
        let (mut parts, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some((before, after)) = rest.split_once("${") {
            if let Some(escaped) = before.strip_suffix('$') {
                literal.push_str(escaped);
                literal.push_str("${");
                rest = after;
                continue;
            }
            let (name, behind) = after.split_once('}').ok_or(BadTemplate)?;
            if !is_variable_name(name) {
                return Err(BadTemplate);
            }
            literal.push_str(before);
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            parts.push(Part::Variable(name.to_owned()));
            rest = behind;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// Returns the text as the layer wrote it. Not for printing where it may be an environment value or a header.
    #[must_use]
    pub fn as_written(&self) -> &str {
        &self.text
    }

    /// Returns the names of the variables.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Variable(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    /// Returns the text itself, if it names no variable.
    #[must_use]
    pub fn literal(&self) -> Option<String> {
        self.resolve(&|_| None).ok()
    }

    /// Returns the text with its variables put in.
    ///
    /// # Errors
    /// [`MissingVariable`] with the name of the first one that `lookup` does not know.
    pub fn resolve(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, MissingVariable> {
        let texts = self.parts.iter().map(|part| match part {
            Part::Text(text) => Ok(Cow::Borrowed(text.as_str())),
            Part::Variable(name) => lookup(name).map(Cow::Owned).ok_or_else(|| MissingVariable(shown(name, 128))),
        });
        texts.collect()
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.variables()).finish()
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Template {
    fn schema_name() -> Cow<'static, str> {
        "Template".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_and_escapes_kept() {
        let template = Template::parse("a${X}b$${Y}${X}").unwrap();
        assert_eq!(template.variables().collect::<Vec<_>>(), ["X", "X"]);
        assert_eq!(template.resolve(&|_| Some("1".into())).unwrap(), "a1b${Y}1");
        assert_eq!(template.resolve(&|_| None), Err(MissingVariable("X".into())));
    }

    #[test]
    fn a_reference_without_a_name_is_refused() {
        for bad in ["${", "${}", "${a b}", "${1}", "x${A"] {
            assert_eq!(Template::parse(bad), Err(BadTemplate), "{bad}");
        }
        assert_eq!(Template::parse("$HOME $").unwrap().variables().count(), 0);
    }

    #[test]
    fn debug_never_shows_literal_text() {
        assert_eq!(format!("{:?}", Template::parse("secret${X}").unwrap()), r#"["X"]"#);
    }
}
