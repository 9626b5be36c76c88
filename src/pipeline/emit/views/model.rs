//! What a model reads of an answer: a wall-time header and a body, cut to the model's policy.
//!
//! Rules: approval-results 9 (body) and 8.1, 8.3 (cutting). One deviation, on purpose: images beside
//! `structuredContent` are kept when the model takes images; [`ModelViewOptions::structured_replaces_images`] restores
//! the reference, which loses them. The gateway does not use this view (R32).
//!
//! Media that the model does not take at all is text by now (`emit::media`). What is left is prepared ([`MediaLimits`]): it is
//! decoded with limits, made smaller where it must be, or a placeholder stands for it. Nothing is fetched: an image or audio
//! whose data is an address has a placeholder, prepared or not. The body is cut once, when all of that is done.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::prepare::{self, MediaLimits};
use super::truncate::{self, Policy};
use crate::model::answer::ToolResult;
use crate::model::media::{LeftOut, Media};
use crate::pipeline::emit::sanitise::Clean;
use crate::ports::telemetry::{self, View};

/// What a second of audio costs, in tokens.
const TOKENS_PER_SECOND: usize = 10;
/// Bytes of a second of uncompressed speech (8 kHz, 16 bit): the least that is common, so a length is never guessed
/// too short.
const PCM_BYTES_PER_SECOND: usize = 16_000;
/// Bytes of a second of compressed speech (32 kbit/s), low for the same reason.
const COMPRESSED_BYTES_PER_SECOND: usize = 4_000;

/// How much the model takes, and in which form. What kinds of media it takes is the call's
/// ([`CallRequest::takes`](crate::pipeline::CallRequest::takes)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelViewOptions {
    /// The budget before the allowance. Default: 10,000 tokens.
    pub truncation: Policy,
    /// Whether images may be asked for in original size; if not, `original` becomes `high`.
    pub original_detail: bool,
    /// Whether `structuredContent` drops the images beside it, as the reference does. Default: no.
    pub structured_replaces_images: bool,
    /// The limits within which media is decoded and made smaller; none: it is given as the server spelled it, unchecked.
    pub media: Option<MediaLimits>,
}

impl Default for ModelViewOptions {
    fn default() -> Self {
        Self {
            truncation: Policy::default(),
            original_detail: false,
            structured_replaces_images: false,
            media: Some(MediaLimits::default()),
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
    ///
    /// Waits for media to be decoded, which happens on threads for blocking work and a few at a time.
    pub async fn of(clean: &Clean, wall: Duration, options: &ModelViewOptions) -> Self {
        let (mut answer, was_cut) = render(clean.result(), wall, options).await;
        if was_cut {
            telemetry::cut(View::Model);
        }
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

/// Renders the body for a model, and says whether it was cut. `wall` runs from the start of the call and includes waiting for
/// people.
async fn render(result: &ToolResult, wall: Duration, options: &ModelViewOptions) -> (ModelAnswer, bool) {
    let header = format!("Wall time: {:.4} seconds\nOutput:", wall.as_secs_f64());
    let policy = options.truncation.with_allowance();
    let (body, was_cut) = match choose(result, options) {
        Chosen::Text(text) => {
            let whole = if text.is_empty() { header } else { format!("{header}\n{text}") };
            let cut = truncate::cut(&whole, policy);
            let was_cut = cut != whole;
            (ModelBody::Text(cut), was_cut)
        }
        Chosen::Items(items) => {
            let (items, images_left_out) = match options.media {
                Some(limits) => prepare::media(items, limits).await,
                None => (items, 0),
            };
            let header = BodyItem::InputText { text: header };
            let (kept, was_cut) = within(std::iter::once(header).chain(items), policy, images_left_out);
            (ModelBody::Items(kept), was_cut)
        }
    };
    (ModelAnswer { body, success: !result.is_error() }, was_cut)
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
            .filter(|block| block.is(Media::Image) && !options.structured_replaces_images)
            .map(Block::item)
            .collect();
        let text = sorted(structured);
        if images.is_empty() {
            return Chosen::Text(text);
        }
        return Chosen::Items(std::iter::once(BodyItem::InputText { text }).chain(images).collect());
    }
    if encrypted || blocks.iter().any(|block| block.is(Media::Image) || block.is(Media::Audio)) {
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
    /// Media that is an address, not data.
    Remote(Media),
    /// Resources, links, unknown types, and media without usable data.
    Other(&'a Value),
}

impl<'a> Block<'a> {
    fn read(block: &'a Value, options: &ModelViewOptions) -> Self {
        let meta = |key: &str| block.get("_meta").and_then(|meta| meta.get(key));
        match block.get("type").and_then(Value::as_str) {
            Some("text") => match block.get("text").and_then(Value::as_str) {
                Some(text) if meta("codex/encryptedContent") == Some(&Value::Bool(true)) => Self::Encrypted(text),
                Some(text) => Self::Text(block, text),
                None => Self::Other(block),
            },
            Some(kind) => match (Media::of_type(kind), data_url(block)) {
                (None, _) | (Some(_), None) => Self::Other(block),
                (Some(media), Some(DataUrl::Remote)) => Self::Remote(media),
                (Some(Media::Image), Some(DataUrl::Inline(url))) => {
                    let detail = meta("codex/imageDetail").and_then(Value::as_str);
                    Self::Image { url, detail: Detail::of(detail, options.original_detail) }
                }
                (Some(Media::Audio), Some(DataUrl::Inline(url))) => Self::Audio(url),
            },
            None => Self::Other(block),
        }
    }

    /// Whether it is media of this kind, data or address.
    fn is(&self, media: Media) -> bool {
        match self {
            Self::Image { .. } => media == Media::Image,
            Self::Audio(_) => media == Media::Audio,
            Self::Remote(remote) => media == *remote,
            Self::Text(..) | Self::Encrypted(_) | Self::Other(_) => false,
        }
    }

    fn item(&self) -> BodyItem {
        match self {
            Self::Text(_, text) => BodyItem::InputText { text: (*text).to_owned() },
            Self::Encrypted(text) => BodyItem::EncryptedContent { encrypted_content: (*text).to_owned() },
            Self::Image { url, detail } => BodyItem::InputImage { image_url: url.clone(), detail: *detail },
            Self::Audio(url) => BodyItem::InputAudio { audio_url: url.clone() },
            Self::Remote(media) => BodyItem::left_out(LeftOut::Remote, *media),
            Self::Other(block) => BodyItem::InputText { text: sorted(block) },
        }
    }

    fn into_json(self) -> Value {
        match self {
            Self::Text(block, _) | Self::Other(block) => block.clone(),
            // A body with one of these is made of items.
            Self::Encrypted(_) | Self::Image { .. } | Self::Audio(_) | Self::Remote(_) => Value::Null,
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

impl BodyItem {
    /// The text that stands for media which is left out.
    pub(super) fn left_out(why: LeftOut, media: Media) -> Self {
        Self::InputText { text: why.placeholder(media).to_owned() }
    }
}

/// What a media block holds.
enum DataUrl {
    /// A data URL.
    Inline(String),
    /// The address of something elsewhere.
    Remote,
}

/// Returns the data of a media block; `None` when the block is malformed. Whether it is base64 is not checked here.
fn data_url(block: &Value) -> Option<DataUrl> {
    let data = block.get("data")?.as_str()?;
    let mime = match block.get("mimeType").or_else(|| block.get("mime_type")) {
        None | Some(Value::Null) => "application/octet-stream",
        Some(mime) => mime.as_str()?,
    };
    let begins = |scheme: &str| data.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    Some(if begins("http://") || begins("https://") {
        DataUrl::Remote
    } else if data.starts_with("data:") {
        DataUrl::Inline(data.to_owned())
    } else {
        DataUrl::Inline(format!("data:{mime};base64,{data}"))
    })
}

/// Keeps what fits into the budget, in order, and says how much was left out, and whether anything was. Images and encrypted
/// items are free. `images` were left out before: too many.
fn within(items: impl IntoIterator<Item = BodyItem>, policy: Policy, images: usize) -> (Vec<BodyItem>, bool) {
    let mut left = policy.budget();
    let mut was_cut = false;
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
                    (left, was_cut) = (0, true);
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
    for (count, what) in [(texts, "text"), (audios, "audio"), (images, "image")] {
        if count > 0 {
            kept.push(BodyItem::InputText { text: format!("[omitted {count} {what} items ...]") });
            was_cut = true;
        }
    }
    (kept, was_cut)
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
