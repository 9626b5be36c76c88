//! What a model takes besides text, and the words that stand for what it does not get.

use serde::{Deserialize, Serialize};

/// A kind of input that a model may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Modality {
    /// Text; every model takes it.
    Text,
    /// Images.
    Image,
    /// Audio.
    Audio,
}

/// The input modalities of a model. Text is always one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modalities {
    /// Whether it takes images.
    pub images: bool,
    /// Whether it takes audio.
    pub audio: bool,
}

impl Modalities {
    /// Text alone.
    pub const TEXT: Self = Self { images: false, audio: false };
    /// Everything: nothing becomes text.
    pub const ALL: Self = Self { images: true, audio: true };

    /// Returns the set of these.
    #[must_use]
    pub fn of(listed: impl IntoIterator<Item = Modality>) -> Self {
        listed.into_iter().fold(Self::TEXT, |set, modality| match modality {
            Modality::Text => set,
            Modality::Image => Self { images: true, ..set },
            Modality::Audio => Self { audio: true, ..set },
        })
    }

    /// Returns what both take.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { images: self.images && other.images, audio: self.audio && other.audio }
    }

    /// Returns its members, text first.
    pub fn members(self) -> impl Iterator<Item = Modality> {
        let more = [(self.images, Modality::Image), (self.audio, Modality::Audio)];
        std::iter::once(Modality::Text).chain(more.into_iter().filter_map(|(takes, what)| takes.then_some(what)))
    }
}

impl Default for Modalities {
    /// Everything: whoever knows of no model leaves an answer as it is.
    fn default() -> Self {
        Self::ALL
    }
}

/// Media that a content block can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// An image.
    Image,
    /// Audio.
    Audio,
}

impl Media {
    /// Returns what the type of a content block says; none: it is no media.
    #[must_use]
    pub fn of_type(kind: &str) -> Option<Self> {
        match kind {
            "image" => Some(Self::Image),
            "audio" => Some(Self::Audio),
            _ => None,
        }
    }

    /// Whether a model with these modalities takes it.
    #[must_use]
    pub fn is_taken_by(self, takes: Modalities) -> bool {
        match self {
            Self::Image => takes.images,
            Self::Audio => takes.audio,
        }
    }
}

/// Why media is left out of what a model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftOut {
    /// The model does not take this kind.
    NotTaken,
    /// It is an address, and nothing is fetched.
    Remote,
    /// Only a coarse look was wished for, and there is no such look.
    LowDetail,
    /// It is not what it claims to be.
    Unreadable,
    /// It has too many bytes or pixels.
    TooLarge,
}

impl LeftOut {
    /// Returns the placeholder: one short text in the host's words, with nothing of the answer in it.
    #[must_use]
    pub fn placeholder(self, media: Media) -> &'static str {
        match (media, self) {
            (Media::Image, Self::NotTaken) => "<image content omitted because you do not support image input>",
            (Media::Image, Self::Remote) => "<image content omitted because remote image URLs are not supported>",
            (Media::Image, Self::LowDetail) => "<image content omitted because low image detail is not supported>",
            (Media::Image, Self::Unreadable) => "<image content omitted because it could not be processed>",
            (Media::Image, Self::TooLarge) => "<image content omitted because it is too large>",
            (Media::Audio, Self::NotTaken) => "<audio content omitted because you do not support audio input>",
            (Media::Audio, Self::Remote) => "<audio content omitted because remote audio URLs are not supported>",
            (Media::Audio, Self::LowDetail | Self::Unreadable) => {
                "<audio content omitted because it could not be processed>"
            }
            (Media::Audio, Self::TooLarge) => "<audio content omitted because it is too large>",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modalities_are_a_set_that_always_has_text() {
        let images = Modalities::of([Modality::Image]);
        assert_eq!(images.members().collect::<Vec<_>>(), [Modality::Text, Modality::Image]);
        assert_eq!(images.and(Modalities::ALL), images);
        assert_eq!(images.and(Modalities::of([Modality::Audio, Modality::Text])), Modalities::TEXT);
    }

    #[test]
    fn only_the_exact_types_are_media() {
        assert_eq!(Media::of_type("image"), Some(Media::Image));
        assert_eq!(Media::of_type("Image"), None);
        assert!(Media::Audio.is_taken_by(Modalities::ALL) && !Media::Audio.is_taken_by(Modalities::TEXT));
    }
}
