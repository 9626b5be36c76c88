use base64::Engine as _;
use proptest::prelude::*;

use super::samples::{drawn, in_format};
use super::*;

const AMPLE: Room = Room { bytes: 20 << 20, pixels: 50_000_000, left: 200_000_000 };

fn url(mime: &str, bytes: &[u8]) -> String {
    format!("data:{mime};base64,{}", STANDARD.encode(bytes))
}

fn fitted(bytes: &[u8], detail: Detail, mut room: Room) -> Result<(String, Vec<u8>), LeftOut> {
    let url = fit(url("image/png", bytes), detail, &mut room)?;
    let (mime, bytes) = decoded(&url, usize::MAX / 8).unwrap();
    Ok((mime.to_owned(), bytes))
}

/// What becomes of a file, as the size that a model gets.
fn size(bytes: &[u8], detail: Detail) -> Result<(u32, u32), LeftOut> {
    let (_, bytes) = fitted(bytes, detail, AMPLE)?;
    let image = image::load_from_memory(&bytes).unwrap();
    Ok((image.width(), image.height()))
}

#[test]
fn an_image_that_fits_passes_byte_for_byte_under_its_true_type() {
    let drawn = drawn(40, 30);
    for (format, mime) in [
        (ImageFormat::Png, "image/png"),
        (ImageFormat::Jpeg, "image/jpeg"),
        (ImageFormat::Gif, "image/gif"),
        (ImageFormat::WebP, "image/webp"),
    ] {
        let file = in_format(&drawn, format);
        assert_eq!(fitted(&file, Detail::High, AMPLE), Ok((mime.to_owned(), file)));
    }
    let file = in_format(&drawn, ImageFormat::Png);
    let padded = STANDARD.encode(&file);
    let bare = format!("data:image/png;base64,{}", padded.trim_end_matches('='));
    assert_eq!(fit(bare.clone(), Detail::High, &mut { AMPLE }).unwrap(), bare);
}

#[test]
fn an_image_that_breaks_while_it_is_decoded_has_spent_its_pixels() {
    let file = in_format(&drawn(400, 300), ImageFormat::Png);
    let mut room = Room { left: 200_000, ..AMPLE };
    let broken = url("image/png", &file[..file.len() / 2]);
    assert_eq!(fit(broken, Detail::High, &mut room), Err(LeftOut::Unreadable));
    assert_eq!(room.left, 80_000);
    assert_eq!(fit(url("image/png", &file), Detail::High, &mut room), Err(LeftOut::TooLarge));
}

#[test]
fn a_larger_image_is_made_to_fit_2048_pixels_and_2500_patches_or_6000_and_10000() {
    let rows = [
        // Within.
        ((1600, 1600), Detail::High, (1600, 1600)),
        ((2048, 1200), Detail::Auto, (2048, 1200)),
        // Too long; then too many patches.
        ((3000, 300), Detail::High, (2048, 204)),
        ((1601, 1601), Detail::High, (1600, 1600)),
        ((3200, 3200), Detail::Original, (3200, 3200)),
        ((3300, 3300), Detail::Original, (3200, 3200)),
        ((6400, 64), Detail::Original, (6000, 60)),
    ];
    for ((width, height), detail, wanted) in rows {
        let file = in_format(&drawn(width, height), ImageFormat::Png);
        assert_eq!(size(&file, detail), Ok(wanted), "{width} x {height}");
    }
    let jpeg = in_format(&drawn(2500, 10), ImageFormat::Jpeg);
    assert_eq!(fitted(&jpeg, Detail::High, AMPLE).unwrap().0, "image/jpeg");
    let gif = in_format(&drawn(2500, 10), ImageFormat::Gif);
    assert_eq!(fitted(&gif, Detail::High, AMPLE).unwrap().0, "image/png");
    assert_eq!(size(&jpeg, Detail::Low), Err(LeftOut::LowDetail));
}

#[test]
fn what_is_no_image_is_unreadable() {
    let png = in_format(&drawn(40, 30), ImageFormat::Png);
    let half = png.get(..png.len() / 2).unwrap();
    for bytes in [b"PK\x03\x04 a zip".as_slice(), b"", b"\x89PNG\r\n\x1a\n", half, b"<svg xmlns='x'/>", b"BM bitmap"] {
        assert_eq!(fitted(bytes, Detail::High, AMPLE), Err(LeftOut::Unreadable), "{bytes:?}");
    }
    for url in ["data:image/png;base64,no base64", "data:image/png,%89PNG", "data:", "image/png;base64,QQ=="] {
        assert_eq!(fit(url.to_owned(), Detail::High, &mut { AMPLE }).unwrap_err(), LeftOut::Unreadable, "{url}");
    }
}

/// The check sum of a PNG's chunks.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { (sum >> 1) ^ 0xEDB8_8320 } else { sum >> 1 })
    })
}

/// A PNG that claims to have this size.
fn claiming(width: u32, height: u32) -> Vec<u8> {
    let mut png = in_format(&drawn(8, 8), ImageFormat::Png);
    png[16..20].copy_from_slice(&width.to_be_bytes());
    png[20..24].copy_from_slice(&height.to_be_bytes());
    let sum = crc(&png[12..29]);
    png[29..33].copy_from_slice(&sum.to_be_bytes());
    png
}

#[test]
fn a_bomb_is_too_large_before_anything_is_decoded() {
    assert_eq!(size(&claiming(8, 8), Detail::High), Ok((8, 8)), "the check sum is right");
    for (width, height) in [(50_000, 50_000), (65_535, 800), (u32::MAX >> 1, 1), (1, 70_000)] {
        assert_eq!(fitted(&claiming(width, height), Detail::High, AMPLE), Err(LeftOut::TooLarge), "{width} x {height}");
    }
    let file = in_format(&drawn(40, 30), ImageFormat::Png);
    let pixels = Room { pixels: 1199, ..AMPLE };
    assert_eq!(fitted(&file, Detail::High, pixels), Err(LeftOut::TooLarge));
    let bytes = Room { bytes: file.len() - 1, ..AMPLE };
    assert_eq!(fitted(&file, Detail::High, bytes), Err(LeftOut::TooLarge));
    assert!(fitted(&file, Detail::High, Room { bytes: file.len(), pixels: 1200, ..AMPLE }).is_ok());
}

proptest! {
    #[test]
    fn a_frame_gives_the_largest_size_that_it_holds(width in 1_u32..20_000, height in 1_u32..20_000, original: bool) {
        let frame = Frame::of(if original { Detail::Original } else { Detail::High }).unwrap();
        let fitting = frame.fit((width, height));
        prop_assert!(frame.holds(fitting) && fitting.0 >= 1 && fitting.1 >= 1);
        prop_assert!(fitting.0 <= width && fitting.1 <= height);
        if fitting != (width, height) {
            prop_assert!(!frame.holds(scaled((width, height), fitting.0.max(fitting.1) + 1)));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..200) {
        let _ = fitted(&bytes, Detail::High, AMPLE);
        // A real file with something else in its middle.
        let mut png = in_format(&drawn(8, 8), ImageFormat::Png);
        let at = at.min(png.len());
        png.splice(at..at, bytes);
        let _ = fitted(&png, Detail::High, AMPLE);
    }
}
