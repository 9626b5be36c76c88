//! Where strings and numbers stand in a text that is JSON, and what they say.
//!
//! The text was parsed before, so that a quote outside of a string begins one, and nothing has to be checked again.

use std::ops::Range;

/// A string with escapes, unescaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Literal {
    /// Its bytes in the text, without the quotes.
    pub(super) at: Range<usize>,
    /// What it says. A surrogate without its other half reads as U+FFFD.
    pub(super) text: String,
}

/// Returns all strings of a JSON text, keys included, that are spelled with an escape.
pub(super) fn escaped_strings(text: &str) -> Vec<Literal> {
    let mut found = Vec::new();
    each_string(text, |at| {
        if let Some(spelled) = text.get(at.clone())
            && spelled.contains('\\')
        {
            found.push(Literal { at, text: unescape(spelled) });
        }
    });
    found
}

/// Returns all numbers of a JSON text as they are spelled, in order.
pub(super) fn numbers(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut outside = |range: Range<usize>| {
        let between = text.get(range).unwrap_or_default();
        let pieces = between.split(|c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E'));
        // Of `true` and `false` an `e` is left.
        found.extend(pieces.filter(|piece| piece.starts_with(|c: char| c == '-' || c.is_ascii_digit())));
    };
    let mut from = 0;
    each_string(text, |at| {
        outside(from..at.start);
        from = at.end;
    });
    outside(from..text.len());
    found
}

/// Calls `each` with the range of every string, without its quotes.
fn each_string(text: &str, mut each: impl FnMut(Range<usize>)) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at += 1;
        if *byte != b'"' {
            continue;
        }
        let start = at;
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'"' => break,
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
        each(start..at.min(bytes.len()));
        at += 1;
    }
}

fn unescape(spelled: &str) -> String {
    let mut out = String::with_capacity(spelled.len());
    let mut units: Vec<u16> = Vec::new();
    let mut rest = spelled;
    let flush = |units: &mut Vec<u16>, out: &mut String| {
        out.extend(char::decode_utf16(units.drain(..)).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)));
    };
    while let Some(c) = rest.chars().next() {
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
        if c != '\\' {
            flush(&mut units, &mut out);
            out.push(c);
            continue;
        }
        let Some(escape) = rest.chars().next() else { break };
        rest = rest.get(escape.len_utf8()..).unwrap_or_default();
        if escape == 'u' {
            let unit = rest.get(..4).and_then(|digits| u16::from_str_radix(digits, 16).ok());
            units.push(unit.unwrap_or(0xFFFD));
            rest = rest.get(4..).unwrap_or_default();
            continue;
        }
        flush(&mut units, &mut out);
        out.push(match escape {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'b' => '\u{8}',
            'f' => '\u{c}',
            other => other,
        });
    }
    flush(&mut units, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn strings_with_escapes_are_found_at_their_place() {
        let text = r#"{"a\u0062":"plain","c":["x\\\"y",1]}"#;
        let found = escaped_strings(text);
        assert_eq!(found.iter().map(|l| l.text.as_str()).collect::<Vec<_>>(), ["ab", "x\\\"y"]);
        assert_eq!(&text[found[1].at.clone()], r#"x\\\"y"#);
    }

    #[test]
    fn numbers_are_found_as_they_are_spelled_and_not_inside_strings() {
        let text = r#"{"1":[1.50,-2e+3,true,false,null,"4 5"],"\"6":12345678901234567890123}"#;
        assert_eq!(numbers(text), ["1.50", "-2e+3", "12345678901234567890123"]);
    }

    #[test]
    fn a_lone_surrogate_reads_as_the_replacement_character() {
        assert_eq!(unescape(r"a\ud83d\ude00b\ud800c"), "a\u{1f600}b\u{fffd}c");
    }

    proptest! {
        #[test]
        fn what_serde_json_escapes_is_unescaped(text in any::<String>()) {
            let spelled = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(unescape(&spelled[1..spelled.len() - 1]), text);
        }

        #[test]
        fn no_text_makes_it_panic(text in any::<String>()) {
            let _ = (escaped_strings(&text), numbers(&text), unescape(&text));
        }
    }
}
