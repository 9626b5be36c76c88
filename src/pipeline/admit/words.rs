//! Text becomes the words that a search compares: identifiers are taken apart, English words reduced to their stems.

use rust_stemmers::{Algorithm, Stemmer};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// The longest word that is reduced to its stem, in bytes; no English word is longer.
const MAX_STEMMED: usize = 40;

/// Words that a question has and that say nothing of a tool, sorted. Few: a word that is in most texts counts for little
/// anyway, and one like `all` or `not` may be what a tool's name is about.
const EMPTY_WORDS: [&str; 49] = [
    "a", "about", "am", "an", "and", "are", "as", "at", "be", "been", "by", "can", "could", "d", "did", "do", "does",
    "for", "have", "how", "i", "in", "is", "it", "its", "ll", "mcp", "me", "my", "of", "on", "or", "please", "s",
    "should", "t", "that", "the", "there", "this", "to", "us", "was", "we", "what", "with", "would", "you", "your",
];

/// Returns the words of a text in its order, repeated ones too.
///
/// An identifier of several parts (`create_issue`, `createIssue`, `list-files`) is each of its parts, and itself as a
/// whole, so that it is found by either. Letters lose their case, accents and width. Time and memory grow with the text.
pub(crate) fn words(text: &str) -> Vec<String> {
    let stemmer = Stemmer::create(Algorithm::English);
    let plain: String = text.nfkd().filter(|c| !is_combining_mark(*c)).collect();
    let mut words = Vec::new();
    for identifier in plain.split(|c: char| !(c.is_alphanumeric() || is_joint(c))) {
        let parts = parts(identifier);
        if parts.len() > 1 {
            words.push(identifier.trim_matches(is_joint).to_lowercase());
        }
        for part in parts {
            let word = part.to_lowercase();
            if EMPTY_WORDS.binary_search(&word.as_str()).is_ok() {
                continue;
            }
            let english = word.len() <= MAX_STEMMED && word.bytes().all(|b| b.is_ascii_lowercase());
            words.push(if english { stemmer.stem(&word).into_owned() } else { word });
        }
    }
    words
}

fn is_joint(c: char) -> bool {
    c == '_' || c == '-'
}

/// Takes an identifier apart: at `_` and `-`, before the capital that follows a small letter or a digit, and before the
/// last capital of several that a small letter follows (`HTTPServer` is `HTTP` and `Server`).
fn parts(identifier: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for piece in identifier.split(is_joint).filter(|piece| !piece.is_empty()) {
        let mut rest = piece;
        let mut before = None::<char>;
        let mut chars = piece.char_indices().peekable();
        let mut start = 0;
        while let Some((at, c)) = chars.next() {
            let next_is_small = chars.peek().is_some_and(|(_, next)| next.is_lowercase());
            let begins = c.is_uppercase() && before.is_some_and(|before| !before.is_uppercase() || next_is_small);
            if begins && let Some((part, tail)) = rest.split_at_checked(at - start) {
                parts.push(part);
                (rest, start) = (tail, at);
            }
            before = Some(c);
        }
        parts.push(rest);
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_empty_words_are_sorted_and_different() {
        assert!(EMPTY_WORDS.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn identifiers_are_their_parts_and_themselves() {
        assert_eq!(words("create_issue"), ["create_issue", "creat", "issu"]);
        assert_eq!(words("createIssue"), ["createissue", "creat", "issu"]);
        assert_eq!(words("list-files"), ["list-files", "list", "file"]);
        assert_eq!(words("__get__HTTPServer2Url_"), ["get__httpserver2url", "get", "http", "server2", "url"]);
        assert_eq!(words("listing the files"), ["list", "file"]);
    }

    #[test]
    fn case_accents_and_width_do_not_set_words_apart() {
        assert_eq!(words("Résumé RESUME ｒｅｓｕｍｅ"), words("resume resume resume"));
    }

    #[test]
    fn separators_alone_are_no_word() {
        assert!(words("-- _ ... the — \u{0}").is_empty());
    }

    proptest! {
        #[test]
        fn any_text_has_words_without_spaces(text in "\\PC{0,200}") {
            for word in words(&text) {
                prop_assert!(!word.is_empty() && !word.contains(char::is_whitespace));
            }
        }

        #[test]
        fn the_words_of_two_texts_are_those_of_each(a in "[ -~]{0,60}", b in "[ -~]{0,60}") {
            let joined = format!("{a} {b}");
            prop_assert_eq!(words(&joined), [words(&a), words(&b)].concat());
        }
    }
}
