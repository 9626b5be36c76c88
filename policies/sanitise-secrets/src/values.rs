//! Whether the value of something is a secret, or only stands for one.

use super::rules::name;

/// Whether an unquoted value is an expression of a programming language.
pub(super) fn code(value: &[u8]) -> bool {
    let dotted = value.iter().filter(|b| **b == b'.').count();
    let path = dotted > 0 && value.iter().all(|b| name(*b) || matches!(b, b'.' | b'[' | b']'));
    value.iter().any(|b| matches!(b, b'(' | b'[' | b'{' | b'=' | b'|')) && !value.ends_with(b"=") || path
}

/// Whether a value only stands for a secret.
pub(crate) fn placeholder(value: &[u8]) -> bool {
    const WORDS: &[&[u8]] = &[
        b"example",
        b"xxxx",
        b"your",
        b"changeme",
        b"change-me",
        b"change_me",
        b"placeholder",
        b"redacted",
        b"dummy",
        b"sample",
        b"insert",
        b"replace",
        b"****",
        b"...",
        b"todo",
        b"<",
        b"${",
        b"$(",
        b"{{",
        b"%(",
        b"[redacted",
        b"process.env",
        b"os.environ",
        b"getenv",
        b"not-a-real",
        b"fake",
    ];
    let lower = value.to_ascii_lowercase();
    let stands = [
        &b"null"[..],
        b"none",
        b"true",
        b"false",
        b"undefined",
        b"string",
        b"password",
        b"secret",
        b"required",
        b"optional",
        b"empty",
    ];
    WORDS.iter().any(|word| lower.windows(word.len()).any(|part| part == *word))
        || stands.contains(&lower.as_slice())
        || value.first().is_some_and(|b| matches!(b, b'$' | b'%' | b'[' | b'{'))
}

/// Whether a value has more than a few different characters; `aaaa` and `00000000` are none.
pub(super) fn varied(value: &[u8]) -> bool {
    let mut seen = [false; 256];
    for b in value {
        if let Some(seen) = seen.get_mut(usize::from(*b)) {
            *seen = true;
        }
    }
    let kinds = seen.iter().filter(|seen| **seen).count();
    kinds >= 3 && (value.len() < 20 || kinds >= 8)
}
