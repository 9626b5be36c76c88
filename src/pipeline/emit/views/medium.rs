//! One image or audio clip: is it what it claims to be, and small enough for a model?
//!
//! What it is is told by its bytes, never by the type that a server gave it. An image that fits passes byte for byte; a
//! larger one is scaled down and written anew. Formats: PNG, JPEG, GIF (its first picture) and WebP. Sizes are read before
//! anything is decoded, so that a bomb costs no memory.

use std::io::Cursor;

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use image::codecs::jpeg::JpegEncoder;
use image::imageops::FilterType;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder as _, ImageError, ImageFormat, ImageReader, Limits};

use super::model::Detail;
use super::prepare::MediaLimits;
use crate::model::media::LeftOut;

/// The most memory that a decoder may take for one image, in bytes: 50 million pixels of four bytes, and something beside.
pub(super) const MAX_MEMORY: u64 = 256 * 1024 * 1024;
/// The longest side of an image, in pixels, before it is made smaller.
const MAX_SIDE: u32 = 65_535;
/// The side of the squares that models see images in, in pixels.
const PATCH: u32 = 32;
/// The quality of a JPEG that is written anew.
const QUALITY: u8 = 90;

/// Base64 with or without its padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What one image may have, and what is left for it and those after it.
#[derive(Debug, Clone, Copy)]
pub(in crate::pipeline) struct Room {
    /// Bytes, as a file.
    bytes: usize,
    /// Pixels, before it is made smaller.
    pixels: u64,
    /// Pixels of all that are still to come. Spent once decoding begins, however it ends.
    left: u64,
}

impl Room {
    /// What the images of one answer may have together.
    pub(in crate::pipeline) fn of(limits: &MediaLimits) -> Self {
        Self { bytes: limits.bytes, pixels: limits.pixels, left: limits.all_pixels }
    }
}

/// How large an image may be that a model looks at in this detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    side: u32,
    patches: u64,
}

impl Frame {
    /// `None`: there is no such look.
    fn of(detail: Detail) -> Option<Self> {
        match detail {
            Detail::Auto | Detail::High => Some(Self { side: 2048, patches: 2_500 }),
            Detail::Original => Some(Self { side: 6000, patches: 10_000 }),
            Detail::Low => None,
        }
    }

    fn holds(self, (width, height): (u32, u32)) -> bool {
        let patches = u64::from(width.div_ceil(PATCH)) * u64::from(height.div_ceil(PATCH));
        width.max(height) <= self.side && patches <= self.patches
    }

    /// Returns the largest size of the same shape that it holds.
    fn fit(self, size: (u32, u32)) -> (u32, u32) {
        if self.holds(size) {
            return size;
        }
        let longest = size.0.max(size.1);
        // Larger sides make more patches: what does not hold one size holds none above it.
        let (mut holds, mut beyond) = (1, longest.min(self.side) + 1);
        while beyond - holds > 1 {
            let middle = holds + (beyond - holds) / 2;
            if self.holds(scaled(size, middle)) { holds = middle } else { beyond = middle }
        }
        scaled(size, holds)
    }
}

/// Returns the size with this longest side.
fn scaled((width, height): (u32, u32), longest: u32) -> (u32, u32) {
    let other = |side: u32| {
        let scaled = u64::from(side) * u64::from(longest) / u64::from(width.max(height).max(1));
        u32::try_from(scaled).unwrap_or(longest).max(1)
    };
    (other(width), other(height))
}

/// Fits an image to what a model takes, and returns a data URL with its true type. Blocks while it decodes.
pub(super) fn fit(url: String, detail: Detail, room: &mut Room) -> Result<String, LeftOut> {
    let frame = Frame::of(detail).ok_or(LeftOut::LowDetail)?;
    let (mime, bytes) = decoded(&url, room.bytes)?;
    let format = image::guess_format(&bytes).map_err(|_| LeftOut::Unreadable)?;
    let actual = mime_of(format).ok_or(LeftOut::Unreadable)?;
    let (image, orientation) = decode(&bytes, format, room)?;
    let size = (image.width(), image.height());
    let fitting = frame.fit(size);
    let url = if fitting == size && mime == actual {
        url
    } else if fitting == size {
        encoded(actual, &bytes)
    } else {
        let mut smaller = image.resize_exact(fitting.0, fitting.1, FilterType::Triangle);
        // The file that said which side is up is gone.
        smaller.apply_orientation(orientation);
        let (mime, bytes) = written(&smaller, format).map_err(|_| LeftOut::Unreadable)?;
        if bytes.len() > room.bytes {
            return Err(LeftOut::TooLarge);
        }
        encoded(mime, &bytes)
    };
    Ok(url)
}

/// Whether a data URL holds an image that can be read to its end. Blocks while it decodes.
pub(in crate::pipeline) fn is_image(url: &str, room: &mut Room) -> bool {
    let mut readable = || {
        let (_, bytes) = decoded(url, room.bytes).ok()?;
        let format = image::guess_format(&bytes).ok()?;
        mime_of(format)?;
        decode(&bytes, format, room).ok()
    };
    readable().is_some()
}

/// Looks at an audio clip. Its sound is not decoded: nothing here could hear whether it is any.
pub(super) fn heard(url: String, most: usize) -> Result<String, LeftOut> {
    let (mime, bytes) = decoded(&url, most)?;
    // Samples alone have no head that could be known.
    let bare = ["audio/pcm", "audio/l16"].iter().any(|name| mime.to_ascii_lowercase().starts_with(name));
    if bytes.is_empty() || !(bare || is_audio(&bytes)) { Err(LeftOut::Unreadable) } else { Ok(url) }
}

/// Returns the type and the bytes of a base64 data URL.
fn decoded(url: &str, most: usize) -> Result<(&str, Vec<u8>), LeftOut> {
    let (head, data) = url.strip_prefix("data:").and_then(|rest| rest.split_once(',')).ok_or(LeftOut::Unreadable)?;
    let mime = head.strip_suffix(";base64").ok_or(LeftOut::Unreadable)?;
    if data.len() / 4 * 3 > most.saturating_add(3) {
        return Err(LeftOut::TooLarge);
    }
    let bytes = BASE64.decode(data).map_err(|_| LeftOut::Unreadable)?;
    if bytes.len() > most { Err(LeftOut::TooLarge) } else { Ok((mime, bytes)) }
}

fn encoded(mime: &str, bytes: &[u8]) -> String {
    let mut url = format!("data:{mime};base64,");
    STANDARD.encode_string(bytes, &mut url);
    url
}

/// Returns the type of a format that models take; none for any other.
fn mime_of(format: ImageFormat) -> Option<&'static str> {
    match format {
        ImageFormat::Png => Some("image/png"),
        ImageFormat::Jpeg => Some("image/jpeg"),
        ImageFormat::Gif => Some("image/gif"),
        ImageFormat::WebP => Some("image/webp"),
        _ => None,
    }
}

/// Decodes an image whose size fits. Also returns which side is up, and how many pixels it has.
fn decode(bytes: &[u8], format: ImageFormat, room: &mut Room) -> Result<(DynamicImage, Orientation), LeftOut> {
    let why = |error: ImageError| match error {
        ImageError::Limits(_) => LeftOut::TooLarge,
        _ => LeftOut::Unreadable,
    };
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_MEMORY);
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(why)?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels > room.pixels.min(room.left) || decoder.total_bytes() > MAX_MEMORY {
        return Err(LeftOut::TooLarge);
    }
    room.left -= pixels;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let image = DynamicImage::from_decoder(decoder).map_err(why)?;
    Ok((image, orientation))
}

/// Writes an image down: a JPEG as one, anything else as a PNG, which loses nothing.
fn written(image: &DynamicImage, format: ImageFormat) -> Result<(&'static str, Vec<u8>), ImageError> {
    let mut bytes = Vec::new();
    if format == ImageFormat::Jpeg {
        image.to_rgb8().write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, QUALITY))?;
        return Ok(("image/jpeg", bytes));
    }
    // More than eight bits a channel are of no use to a model.
    let image: DynamicImage = if image.color().has_alpha() { image.to_rgba8().into() } else { image.to_rgb8().into() };
    image.write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png)?;
    Ok(("image/png", bytes))
}

/// Whether a file begins like audio of a common form.
fn is_audio(bytes: &[u8]) -> bool {
    let begins = |head: &[u8]| bytes.starts_with(head);
    let then = |at: usize, head: &[u8]| bytes.get(at..).is_some_and(|rest| rest.starts_with(head));
    let frame = matches!(bytes, [0xFF, second, ..] if second & 0xE0 == 0xE0);
    begins(b"RIFF") && then(8, b"WAVE")
        || begins(b"FORM") && (then(8, b"AIFF") || then(8, b"AIFC"))
        || [b"ID3".as_slice(), b"OggS", b"fLaC", b"#!AMR", &[0x1A, 0x45, 0xDF, 0xA3]].into_iter().any(begins)
        || then(4, b"ftyp")
        // A frame of MPEG audio or of AAC, without a file around it.
        || frame
}

/// Images that the tests of this folder share.
#[cfg(test)]
pub(super) mod samples {
    use super::*;

    /// A picture with something on it.
    pub(in crate::pipeline::emit::views) fn drawn(width: u32, height: u32) -> DynamicImage {
        let pixel = |x: u32, y: u32| image::Rgb([x as u8, y as u8, (x ^ y) as u8]);
        image::RgbImage::from_fn(width, height, pixel).into()
    }

    pub(in crate::pipeline::emit::views) fn in_format(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Vec::new();
        image.write_to(&mut Cursor::new(&mut bytes), format).unwrap();
        bytes
    }

    /// A PNG of this size, as base64.
    pub(in crate::pipeline::emit::views) fn png(width: u32, height: u32) -> String {
        STANDARD.encode(in_format(&drawn(width, height), ImageFormat::Png))
    }
}

#[cfg(test)]
#[path = "medium_tests.rs"]
mod tests;
