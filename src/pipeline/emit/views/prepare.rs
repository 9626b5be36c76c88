//! Media of a body, prepared for a model: decoded with limits, made smaller, or a placeholder in its place.
//!
//! Rules: approval-results 9, last paragraph. What comes from a server decides how much there is to do, so that everything is
//! bounded: how many images of an answer are looked at, how many pixels all of them have, and how many are decoded at once in
//! the whole process. Decoding runs on threads for blocking work, and its panic is that of one image. Whatever becomes of
//! media, the call's status stays.

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::medium::{self, Room};
use super::model::BodyItem;
use crate::model::media::{LeftOut, Media};

/// How many images and audio clips are decoded at once; each image may take [`MAX_MEMORY`](medium::MAX_MEMORY).
const AT_ONCE: usize = 2;

/// All decoding of the process.
static PLACES: Semaphore = Semaphore::const_new(AT_ONCE);

/// The limits within which media is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaLimits {
    /// The most bytes of one image or audio clip, as a file. Default: 20 MiB.
    pub bytes: usize,
    /// The most pixels of one image, before it is made smaller. Default: 50 million.
    pub pixels: u64,
    /// The most pixels of all images of an answer. Default: 200 million.
    pub all_pixels: u64,
    /// The most images of an answer; of those beyond, their number is told. Default: 100.
    pub images: usize,
}

impl Default for MediaLimits {
    fn default() -> Self {
        Self { bytes: 20 * 1024 * 1024, pixels: 50_000_000, all_pixels: 200_000_000, images: 100 }
    }
}

/// Prepares the media among these items, one after the other. Also returns how many images were too many.
pub(super) async fn media(items: Vec<BodyItem>, limits: MediaLimits) -> (Vec<BodyItem>, usize) {
    let mut prepared = Vec::with_capacity(items.len());
    let (mut images, mut room) = (0_usize, Room::of(&limits));
    for item in items {
        match item {
            BodyItem::InputImage { image_url, detail } => {
                images += 1;
                if images > limits.images {
                    continue;
                }
                let fitting = decoding(move || {
                    let fitted = medium::fit(image_url, detail, &mut room);
                    (fitted, room)
                });
                // A panic is one of the decoder's: what made it do so is no image.
                let (fitted, left) = fitting.await.unwrap_or((Err(LeftOut::Unreadable), room));
                room = left;
                prepared.push(match fitted {
                    Ok(image_url) => BodyItem::InputImage { image_url, detail },
                    Err(why) => BodyItem::left_out(why, Media::Image),
                });
            }
            BodyItem::InputAudio { audio_url } => {
                let bytes = limits.bytes;
                let heard = decoding(move || medium::heard(audio_url, bytes)).await;
                prepared.push(match heard.unwrap_or(Err(LeftOut::Unreadable)) {
                    Ok(audio_url) => BodyItem::InputAudio { audio_url },
                    Err(why) => BodyItem::left_out(why, Media::Audio),
                });
            }
            BodyItem::InputText { .. } | BodyItem::EncryptedContent { .. } => prepared.push(item),
        }
    }
    (prepared, images.saturating_sub(limits.images))
}

/// Runs the work where it may block, as soon as there is a place. `None`: it panicked.
pub(in crate::pipeline) async fn decoding<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    // The semaphore is never closed. The place is given back by the thread: a view that is dropped does not make two of one.
    let place = PLACES.acquire().await.ok()?;
    let ended = spawn_blocking(move || {
        let _place = place;
        work()
    });
    ended.await.ok()
}
