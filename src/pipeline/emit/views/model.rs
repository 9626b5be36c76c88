//! What a model reads of an answer: a wall-time header and a body, cut to the model's policy.
//!
//! Rules: approval-results 9 (body) and 8.1, 8.3 (cutting). One deviation, on purpose: images beside
//! `structuredContent` are kept when the model takes images; [`ModelViewOptions::structured_replaces_images`] restores
//! the reference, which loses them. The gateway does not use this view (R32).
//!
//! Nothing is fetched or decoded: a URL in a block stays the text that it is.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::truncate::{self, Policy};
use crate::model::answer::ToolResult;
use crate::pipeline::emit::sanitise::Clean;

const NO_IMAGES: &str = "<image content omitted because you do not support image input>";
const NO_AUDIO: &str = "<audio content omitted because you do not support audio input>";

/// What a second of audio costs, in tokens.
const TOKENS_PER_SECOND: usize = 10;
/// Bytes of a second of uncompressed speech (8 kHz, 16 bit): the least that is common, so a length is never guessed
/// too short.
const PCM_BYTES_PER_SECOND: usize = 16_000;
/// Bytes of a second of compressed speech (32 kbit/s), low for the same reason.
const COMPRESSED_BYTES_PER_SECOND: usize = 4_000;

/// What the model takes, and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelViewOptions {
    /// The budget before the allowance. Default: 10,000 tokens.
    pub truncation: Policy,
    /// Whether images are an input of this model; if not, a text says that one was left out.
    pub takes_images: bool,
    /// The same for audio.
    pub takes_audio: bool,
    /// Whether images may be asked for in original size; if not, `original` becomes `high`.
    pub original_detail: bool,
    /// Whether `structuredContent` drops the images beside it, as the reference does. Default: no.
    pub structured_replaces_images: bool,
}

impl Default for ModelViewOptions {
    /// A model that takes text and images.
    fn default() -> Self {
        Self {
            truncation: Policy::default(),
            takes_images: true,
            takes_audio: false,
            original_detail: false,
            structured_replaces_images: false,
        }
    }
}

/// An answer as a model reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelAnswer {
    /// The body.
    pub body: ModelBody,
    /// Whether the tool did not say that it failed. The text alone never says so.
    pub success: bool,
}

/// The body of a [`ModelAnswer`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ModelBody {
    /// One text.
    Text(String),
    /// Several items, for answers with media or encrypted content.
    Items(Vec<BodyItem>),
}

/// One item of a body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BodyItem {
    /// Text.
    InputText {
        /// The text.
        text: String,
    },
    /// An image.
    InputImage {
        /// A data URL.
        image_url: String,
        /// How closely the model looks.
        detail: Detail,
    },
    /// Audio.
    InputAudio {
        /// A data URL.
        audio_url: String,
    },
    /// Content that only the model's provider can read.
    EncryptedContent {
        /// The content.
        encrypted_content: String,
    },
}

/// How closely a model looks at an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Detail {
    /// The provider decides.
    Auto,
    /// Little.
    Low,
    /// Much; what is meant when nothing is said.
    High,
    /// In original size.
    Original,
}

/// Proof that what a model reads was rendered from a clean answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ModelView(ModelAnswer);

impl ModelView {
    /// Renders a clean answer. `wall` runs from the start of the call and includes waiting for people.
    #[must_use]
    pub fn of(clean: &Clean, wall: Duration, options: &ModelViewOptions) -> Self {
        let mut answer = render(clean.result(), wall, options);
        answer.add(clean.context());
        Self(answer)
    }

    /// Returns what the model reads.
    #[must_use]
    pub fn answer(&self) -> &ModelAnswer {
        &self.0
    }
}

impl ModelAnswer {
    /// Adds what hooks say. Their texts are bounded, and not cut with the answer: they are the configuration's words.
    fn add(&mut self, context: &[String]) {
        for text in context {
            match &mut self.body {
                ModelBody::Text(body) => {
                    body.push('\n');
                    body.push_str(text);
                }
                ModelBody::Items(items) => items.push(BodyItem::InputText { text: text.clone() }),
            }
        }
    }
}

/// Renders the body for a model. `wall` runs from the start of the call and includes waiting for people.
fn render(result: &ToolResult, wall: Duration, options: &ModelViewOptions) -> ModelAnswer {
    let header = format!("Wall time: {:.4} seconds\nOutput:", wall.as_secs_f64());
    let policy = options.truncation.with_allowance();
    let body = match choose(result, options) {
        Chosen::Text(text) if text.is_empty() => ModelBody::Text(truncate::cut(&header, policy)),
        Chosen::Text(text) => ModelBody::Text(truncate::cut(&format!("{header}\n{text}"), policy)),
        Chosen::Items(items) => {
            let header = BodyItem::InputText { text: header };
            ModelBody::Items(within(std::iter::once(header).chain(items), policy))
        }
    };
    ModelAnswer { body, success: !result.is_error() }
}

enum Chosen {
    Text(String),
    Items(Vec<BodyItem>),
}

/// The first that applies: encrypted content, structured content, media, the content as JSON.
fn choose(result: &ToolResult, options: &ModelViewOptions) -> Chosen {
    let blocks: Vec<Block<'_>> = result.content().iter().map(|block| Block::read(block, options)).collect();
    let encrypted = blocks.iter().any(|block| matches!(block, Block::Encrypted(_)));
    if let Some(structured) = result.structured().filter(|_| !encrypted) {
        let images: Vec<BodyItem> = blocks
            .iter()
            .filter(|block| matches!(block, Block::Image { .. }) && !options.structured_replaces_images)
            .map(Block::item)
            .collect();
        let text = sorted(structured);
        if images.is_empty() {
            return Chosen::Text(text);
        }
        return Chosen::Items(std::iter::once(BodyItem::InputText { text }).chain(images).collect());
    }
    if encrypted || blocks.iter().any(|block| matches!(block, Block::Image { .. } | Block::Audio(_))) {
        return Chosen::Items(blocks.iter().map(Block::item).collect());
    }
    Chosen::Text(sorted(&Value::Array(blocks.into_iter().map(Block::into_json).collect())))
}

/// A content block, read once.
enum Block<'a> {
    Text(&'a Value, &'a str),
    Encrypted(&'a str),
    Image {
        url: String,
        detail: Detail,
    },
    Audio(String),
    /// Media that this model cannot take; the text that stands for it.
    LeftOut(&'static str),
    /// Resources, links, unknown types, and media without usable data.
    Other(&'a Value),
}

impl<'a> Block<'a> {
    fn read(block: &'a Value, options: &ModelViewOptions) -> Self {
        let meta = |key: &str| block.get("_meta").and_then(|meta| meta.get(key));
        match block.get("type").and_then(Value::as_str) {
            // What the model cannot take goes by its type alone: malformed media is left out like any other.
            Some("image") if !options.takes_images => Self::LeftOut(NO_IMAGES),
            Some("audio") if !options.takes_audio => Self::LeftOut(NO_AUDIO),
            Some("text") => match block.get("text").and_then(Value::as_str) {
                Some(text) if meta("codex/encryptedContent") == Some(&Value::Bool(true)) => Self::Encrypted(text),
                Some(text) => Self::Text(block, text),
                None => Self::Other(block),
            },
            Some("image") => data_url(block).map_or(Self::Other(block), |url| {
                let detail = meta("codex/imageDetail").and_then(Value::as_str);
                Self::Image { url, detail: Detail::of(detail, options.original_detail) }
            }),
            Some("audio") => data_url(block).map_or(Self::Other(block), Self::Audio),
            _ => Self::Other(block),
        }
    }

    fn item(&self) -> BodyItem {
        match self {
            Self::Text(_, text) => BodyItem::InputText { text: (*text).to_owned() },
            Self::Encrypted(text) => BodyItem::EncryptedContent { encrypted_content: (*text).to_owned() },
            Self::Image { url, detail } => BodyItem::InputImage { image_url: url.clone(), detail: *detail },
            Self::Audio(url) => BodyItem::InputAudio { audio_url: url.clone() },
            Self::LeftOut(text) => BodyItem::InputText { text: (*text).to_owned() },
            Self::Other(block) => BodyItem::InputText { text: sorted(block) },
        }
    }

    fn into_json(self) -> Value {
        match self {
            Self::Text(block, _) | Self::Other(block) => block.clone(),
            Self::LeftOut(text) => serde_json::json!({ "text": text, "type": "text" }),
            // A body with one of these is made of items.
            Self::Encrypted(_) | Self::Image { .. } | Self::Audio(_) => Value::Null,
        }
    }
}

impl Detail {
    fn of(wish: Option<&str>, original: bool) -> Self {
        match wish {
            Some("auto") => Self::Auto,
            Some("low") => Self::Low,
            Some("original") if original => Self::Original,
            _ => Self::High,
        }
    }
}

/// Returns the data of a media block as a data URL; `None` when the block is malformed.
///
/// Whether the data is base64 is not checked: the provider says so better than we could, and nothing here reads it.
fn data_url(block: &Value) -> Option<String> {
    let data = block.get("data")?.as_str()?;
    let mime = match block.get("mimeType").or_else(|| block.get("mime_type")) {
        None | Some(Value::Null) => "application/octet-stream",
        Some(mime) => mime.as_str()?,
    };
    if data.starts_with("data:") { Some(data.to_owned()) } else { Some(format!("data:{mime};base64,{data}")) }
}

/// Keeps what fits into the budget, in order, and says how much was left out. Images and encrypted items are free.
fn within(items: impl IntoIterator<Item = BodyItem>, policy: Policy) -> Vec<BodyItem> {
    let mut left = policy.budget();
    let (mut texts, mut audios) = (0_usize, 0_usize);
    let mut kept = Vec::new();
    for item in items {
        match item {
            BodyItem::InputText { .. } if left == 0 => texts += 1,
            BodyItem::InputText { text } => {
                let cost = policy.cost(text.len());
                if cost <= left {
                    left -= cost;
                    kept.push(BodyItem::InputText { text });
                } else {
                    kept.push(BodyItem::InputText { text: truncate::cut(&text, policy.with_budget(left)) });
                    left = 0;
                }
            }
            BodyItem::InputAudio { audio_url } => {
                let cost = policy.cost_of_tokens(audio_tokens(&audio_url));
                if cost <= left {
                    left -= cost;
                    kept.push(BodyItem::InputAudio { audio_url });
                } else {
                    audios += 1;
                }
            }
            BodyItem::InputImage { .. } | BodyItem::EncryptedContent { .. } => kept.push(item),
        }
    }
    for (count, what) in [(texts, "text"), (audios, "audio")] {
        if count > 0 {
            kept.push(BodyItem::InputText { text: format!("[omitted {count} {what} items ...]") });
        }
    }
    kept
}

/// Estimates what audio costs from the length of its data.
fn audio_tokens(url: &str) -> usize {
    let (mime, data) = url.split_once(',').unwrap_or(("", url));
    let mime = mime.to_ascii_lowercase();
    let pcm = ["wav", "wave", "pcm", "l16", "aiff"].iter().any(|name| mime.contains(name));
    let per_second = if pcm { PCM_BYTES_PER_SECOND } else { COMPRESSED_BYTES_PER_SECOND };
    let bytes = data.len().div_ceil(4).saturating_mul(3);
    bytes.saturating_mul(TOKENS_PER_SECOND).div_ceil(per_second)
}

/// Returns compact JSON with sorted keys and numbers as they are.
///
/// The reference prints sorted keys, and prompts that differ only in a server's key order would miss the provider's
/// cache. The canonical text for digests is no substitute: it rewrites numbers, and a model would read `15e-1`.
fn sorted(value: &Value) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    value.to_string()
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
