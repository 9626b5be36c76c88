//! Untrusted text made fit to be shown: bounded, control characters visible.

/// Returns at most `max` characters of `text` on one line, with control characters, bidirectional controls and
/// zero-width characters escaped, and `…` where something was left out.
///
/// Terminals and prompts show what this returns; a server must not be able to move the cursor, hide part of a text or
/// reverse its reading order.
#[must_use]
pub fn shown(text: &str, max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max.saturating_mul(4)));
    for (count, c) in text.chars().enumerate() {
        if count == max {
            out.push('…');
            break;
        }
        if c.is_control() || is_invisible(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Format characters that change how the text around them looks (Unicode category Cf and the line separators).
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{00AD}' | '\u{061C}' | '\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}'
        | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}')
}

/// Returns the longest prefix of at most `max` bytes that ends on a character boundary.
#[must_use]
pub fn prefix(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let mut end = max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns a duration in seconds for people: `30 s`, `0.5 s`.
#[must_use]
pub fn seconds(duration: std::time::Duration) -> String {
    format!("{} s", (duration.as_secs_f64() * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_direction_characters_become_visible() {
        assert_eq!(shown("a\u{1b}[31mb\nc\u{202e}d", 64), "a\\u{1b}[31mb\\nc\\u{202e}d");
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        assert_eq!(shown("abcdef", 3), "abc…");
        assert_eq!(shown("abc", 3), "abc");
    }

    #[test]
    fn a_prefix_ends_on_a_character_boundary() {
        assert_eq!(prefix("aé", 2), "a");
        assert_eq!(prefix("aé", 3), "aé");
    }
}
