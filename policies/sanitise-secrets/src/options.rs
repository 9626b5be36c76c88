//! The settings: which classes are looked for, and which texts are no secrets.

use portcullis_policy::{String, Vec, format};

use crate::rules::Kind;

/// The most entries of `allow`, and the longest one in bytes.
const MAX_ALLOW: usize = 100;
const MAX_ENTRY: usize = 256;

pub(crate) const SCHEMA: &str = r#"{"type":"object","additionalProperties":false,"properties":{"allow":{"description":"Texts that are never removed; `*` stands for any characters.","type":"array","maxItems":100,"items":{"type":"string","minLength":1,"maxLength":256}},"classes":{"description":"What is looked for. Default: all.","type":"array","uniqueItems":true,"items":{"enum":["cloud-key","token","private-key","url-password","password"]}}}}"#;

/// The settings as they are used.
#[derive(Default)]
pub(crate) struct Options {
    classes: Option<Vec<Kind>>,
    allow: Vec<String>,
}

/// What is wrong: where, and what.
pub(crate) type Wrong = (&'static str, String);

impl Options {
    /// Reads JSON text.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(crate) fn read(json: &str) -> Result<Self, Wrong> {
        let mut reader = Reader { rest: json.trim() };
        let mut options = Self::default();
        let broken = || ("", String::from("must be a table of lists of texts"));
        reader.skip('{').ok_or_else(broken)?;
        if reader.skip('}').is_some() {
            return Ok(options);
        }
        loop {
            let key = reader.text().ok_or_else(broken)?;
            reader.skip(':').ok_or_else(broken)?;
            match key.as_str() {
                "classes" => {
                    let names = reader.texts().ok_or_else(|| ("/classes", String::from("must be a list of texts")))?;
                    options.classes = Some(names.iter().map(|name| kind(name)).collect::<Result<_, _>>()?);
                }
                "allow" => {
                    let texts = reader.texts().ok_or_else(|| ("/allow", String::from("must be a list of texts")))?;
                    if texts.len() > MAX_ALLOW || texts.iter().any(|text| text.is_empty() || text.len() > MAX_ENTRY) {
                        let message = format!("must have at most {MAX_ALLOW} texts of 1 to {MAX_ENTRY} bytes");
                        return Err(("/allow", message));
                    }
                    options.allow = texts;
                }
                other => return Err(("", format!("`{other}` is none of `allow`, `classes`"))),
            }
            if reader.skip(',').is_none() {
                break;
            }
        }
        reader.skip('}').filter(|()| reader.rest.is_empty()).ok_or_else(broken)?;
        Ok(options)
    }

    pub(crate) fn wants(&self, kind: Kind) -> bool {
        self.classes.as_ref().is_none_or(|classes| classes.contains(&kind))
    }

    pub(crate) fn allows(&self, text: &str) -> bool {
        self.allow.iter().any(|pattern| matches(pattern, text))
    }
}

fn kind(name: &str) -> Result<Kind, Wrong> {
    Ok(match name {
        "cloud-key" => Kind::CloudKey,
        "token" => Kind::Token,
        "private-key" => Kind::PrivateKey,
        "url-password" => Kind::UrlPassword,
        "password" => Kind::Password,
        other => {
            let known = "cloud-key, token, private-key, url-password, password";
            return Err(("/classes", format!("`{other}` is none of {known}")));
        }
    })
}

/// Whether a text is what a pattern with `*` says. Greedy by parts: linear for each part.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut left) = text.strip_prefix(first) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return left.ends_with(part);
        }
        let Some(at) = left.find(part) else { return false };
        left = left.get(at + part.len()..).unwrap_or_default();
    }
    true
}

/// As much of JSON as the settings have.
struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn skip(&mut self, wanted: char) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(wanted)?.trim_start();
        Some(())
    }

    fn text(&mut self) -> Option<String> {
        self.rest = self.rest.trim_start().strip_prefix('"')?;
        let mut out = String::new();
        let mut chars = self.rest.chars();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => out.push(match chars.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'u' => {
                        let digits = chars.as_str().get(..4)?;
                        chars = chars.as_str().get(4..)?.chars();
                        char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
                    }
                    same @ ('"' | '\\' | '/') => same,
                    _ => return None,
                }),
                other => out.push(other),
            }
        }
        self.rest = chars.as_str();
        Some(out)
    }

    fn texts(&mut self) -> Option<Vec<String>> {
        self.skip('[')?;
        let mut out = Vec::new();
        if self.skip(']').is_some() {
            return Some(out);
        }
        loop {
            out.push(self.text()?);
            if self.skip(',').is_none() {
                return self.skip(']').map(|()| out);
            }
        }
    }
}
