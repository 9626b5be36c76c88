//! Where the secrets of a text are: one pass over its bytes, linear but for a bounded look around each candidate.

use super::Vec;
use super::rules::{Charset, Kind, PREFIXED, Prefixed, SECRET_NAMES, base64, name, word};
use super::values::{code, placeholder, varied};

/// The bytes of a secret.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) kind: Kind,
}

/// How far a quote, a separator or the end of a value is looked for, in bytes.
const NEAR: usize = 512;
/// How long a private key may be; behind that, its end is not looked for.
const LONGEST_KEY: usize = 64 * 1024;

/// How many bytes are looked at in one step.
const STEP: usize = 32;

/// Returns the secrets of a text, in order of place and apart.
///
/// A secret is found by a byte of it that texts seldom have between such neighbours, and from there its beginning. Whole steps of
/// bytes are looked at together: in a sandbox each turn of a loop counts its fuel and looks at the clock.
#[cfg_attr(target_arch = "wasm32", target_feature(enable = "simd128"))]
pub(crate) fn scan(text: &str) -> Vec<Found> {
    let bytes = text.as_bytes();
    let mut search = Search { bytes, found: Vec::new(), done: 0, at: 0 };
    // The first byte has none before it.
    search.look(0);
    let mut from = 1;
    while let Some(words) = step(bytes, from).map(marks) {
        if words.iter().fold(0, |all, word| all | word) != 0 {
            for (first, word) in (from..).step_by(8).zip(words) {
                let mut left = word;
                while left != 0 {
                    search.look(first + (left.trailing_zeros() / 8) as usize);
                    left &= left - 1;
                }
            }
        }
        from = (from + STEP).max(search.at);
    }
    (from..bytes.len()).for_each(|at| search.look(at));
    search.found
}

struct Search<'t> {
    bytes: &'t [u8],
    found: Vec<Found>,
    /// Where the last secret ends; what is found later does not begin before it.
    done: usize,
    /// The next byte that may tell of one.
    at: usize,
}

impl Search<'_> {
    /// Looks whether the byte at `at` tells of a secret.
    fn look(&mut self, at: usize) {
        let Some(byte) = self.bytes.get(at).filter(|_| at >= self.at) else { return };
        let tells = TELLS.get(usize::from(*byte)).copied().unwrap_or_default();
        let Some(hit) = tell(self.bytes, at, self.done, tells) else { return };
        if hit.end > hit.start.max(self.done) {
            self.at = hit.end.max(at + 1);
            self.done = hit.end;
            merge(&mut self.found, hit);
        }
    }
}

/// The bytes of the step that begins at `from`, three times: those before each, themselves, those after each.
fn step(bytes: &[u8], from: usize) -> Option<[&[u8; STEP]; 3]> {
    let bytes = bytes.get(from.checked_sub(1)?..from + STEP + 1)?;
    Some([bytes.first_chunk()?, bytes.get(1..)?.first_chunk()?, bytes.last_chunk()?])
}

/// Which bytes of a step may tell of a secret: eight to a word, the first one lowest, 1 for each that may.
fn marks([before, here, after]: [&[u8; STEP]; 3]) -> [u64; STEP / 8] {
    let (mut marks, mut words) = ([0; STEP], [0; STEP / 8]);
    for (((mark, before), here), after) in marks.iter_mut().zip(before).zip(here).zip(after) {
        *mark = u8::from(may_tell(*before, *here, *after));
    }
    for (word, eight) in words.iter_mut().zip(marks.as_chunks().0) {
        *word = u64::from_le_bytes(*eight);
    }
    words
}

/// Whether a byte between two others may tell of a secret; now and then it says so of one that does not.
///
/// Without a branch, so that the compiler can ask for sixteen at once, and in few steps: two bytes that differ in one bit are
/// asked for together.
const fn may_tell(before: u8, here: u8, after: u8) -> bool {
    let assigned = (here | 0x10 == b'=') | (here == b':');
    let amazon_or_google = (here ^ before == b'A' ^ b'I') & (here | 8 == b'I');
    let bearer_or_basic = (here | 32 == b'b') & (after | 0x24 == b'e');
    let dot = (here == b'.') & ((before == b'G') | (before == b'9'));
    assigned | (here == b'_') | (here & 0xFE == b'J') | (here == b'P') | amazon_or_google | bearer_or_basic | dot
}

/// Of what a byte may tell.
const PREFIX: u8 = 1;
const PEM: u8 = 2;
const ASSIGNED: u8 = 4;
const BEARER: u8 = 8;
const PUTTY: u8 = 16;

/// What each byte may tell of.
const TELLS: [u8; 256] = {
    let mut tells = [0; 256];
    let mut at = 0;
    while at < PREFIXED.len() {
        tells[PREFIXED[at].tell() as usize] |= PREFIX;
        at += 1;
    }
    tells[b'-' as usize] |= PEM;
    tells[b':' as usize] |= ASSIGNED;
    tells[b'=' as usize] |= ASSIGNED;
    tells[b'b' as usize] |= BEARER;
    tells[b'B' as usize] |= BEARER;
    tells[b'P' as usize] |= PUTTY;
    tells
};

/// Which prefixes may be where two bytes stand in a row, by [`pair`]: a bit for each of [`PREFIXED`].
const AT_PAIR: [u64; 256] = {
    let mut prefixes = [0; 256];
    let mut at = 0;
    while at < PREFIXED.len() {
        let rule = &PREFIXED[at];
        let (before, here) = (rule.0[rule.told_by() - 1], rule.tell());
        assert!(may_tell(before, here, 0), "a prefix that is never looked for");
        prefixes[pair([before, here])] |= 1 << at;
        at += 1;
    }
    prefixes
};

/// The last two letters of the names of secrets, by [`pair`].
const ENDS: [bool; 256] = {
    let mut ends = [false; 256];
    let mut at = 0;
    while at < SECRET_NAMES.len() {
        let name = SECRET_NAMES[at].0;
        ends[pair([name[name.len() - 2], name[name.len() - 1]])] = true;
        at += 1;
    }
    ends
};

/// Whether the name of a secret may end with these two letters.
fn ends(before: u8, last: u8) -> bool {
    ENDS.get(pair([before.to_ascii_lowercase(), last.to_ascii_lowercase()])).is_some_and(|known| *known)
}

/// A number for two bytes; few others share it.
const fn pair([before, byte]: [u8; 2]) -> usize {
    (before.wrapping_mul(31) ^ byte) as usize
}

fn tell(bytes: &[u8], at: usize, done: usize, tells: u8) -> Option<Found> {
    let mut hit = None;
    if tells & PREFIX != 0 {
        hit = prefixed(bytes, at, done);
    }
    if hit.is_none() && tells & PEM != 0 {
        hit = pem(bytes, at);
    }
    if hit.is_none() && tells & ASSIGNED != 0 {
        hit = url(bytes, at).or_else(|| telegram(bytes, at, done)).or_else(|| assigned(bytes, at));
    }
    if hit.is_none() && tells & BEARER != 0 {
        hit = bearer(bytes, at);
    }
    if hit.is_none() && tells & PUTTY != 0 {
        hit = putty(bytes, at);
    }
    hit
}

/// A secret that begins before the end of the last one belongs to it.
fn merge(found: &mut Vec<Found>, hit: Found) {
    match found.last_mut() {
        Some(last) if hit.start < last.end => {
            last.start = last.start.min(hit.start);
            last.end = last.end.max(hit.end);
        }
        _ => found.push(hit),
    }
}

/// Whether a word goes on here; what was found ends at `done`, and the word with it.
fn inside_word(bytes: &[u8], at: usize, done: usize) -> bool {
    at != done && at.checked_sub(1).and_then(|before| bytes.get(before)).is_some_and(|b| name(*b))
}

fn run(bytes: &[u8], from: usize, most: usize, of: Charset) -> usize {
    bytes.get(from..).unwrap_or_default().iter().take(most).take_while(|b| of(**b)).count()
}

/// The token of whose prefix the byte at `told` is the one that tells.
fn prefixed(bytes: &[u8], told: usize, done: usize) -> Option<Found> {
    let two = *bytes.get(told.checked_sub(1)?..)?.first_chunk()?;
    let mut left = AT_PAIR.get(pair(two)).copied().unwrap_or_default();
    let rule = loop {
        if left == 0 {
            return None;
        }
        let rule = PREFIXED.get(left.trailing_zeros() as usize)?;
        let rest = told.checked_sub(rule.told_by()).and_then(|at| bytes.get(at..)).unwrap_or_default();
        // Most words differ in the first byte already.
        if rest.first() == rule.0.first() && rest.starts_with(rule.0) {
            break rule;
        }
        left &= left - 1;
    };
    let &Prefixed(prefix, of, least, most, kind) = rule;
    let at = told - rule.told_by();
    if prefix == b"eyJ" && at.checked_sub(1).and_then(|before| bytes.get(before)) == Some(&b'.') {
        return None;
    }
    // The others are found inside a word, too: texts that were split are joined without anything between.
    if rule.needs_word() && inside_word(bytes, at, done) {
        return None;
    }
    let from = at + prefix.len();
    let mut length = run(bytes, from, most + 1, of);
    if least == most && length > most {
        return None;
    }
    length = length.min(most);
    while length > 0 && bytes.get(from + length - 1) == Some(&b'.') {
        length -= 1;
    }
    let value = bytes.get(from..from + length)?;
    let shape = match prefix {
        b"eyJ" => {
            let mut parts = value.split(|b| *b == b'.');
            let (head, body, signature) = (parts.next()?, parts.next()?, parts.next());
            head.len() >= 12 && body.starts_with(b"eyJ") && signature.is_some_and(|s| s.len() >= 16)
        }
        b"SG." => value.iter().filter(|b| **b == b'.').count() == 1,
        // What ends at a word is `sk-` in prose or in a style sheet.
        b"sk-" | b"pypi-" => value.iter().any(u8::is_ascii_digit) && value.iter().any(u8::is_ascii_uppercase),
        _ => true,
    };
    let good = length >= least && shape && !placeholder(value) && varied(value);
    good.then_some(Found { start: at, end: from + length, kind })
}

/// `1234567890:AA...`, 35 characters behind the colon.
fn telegram(bytes: &[u8], colon: usize, done: usize) -> Option<Found> {
    if bytes.get(colon + 1) != Some(&b'A') {
        return None;
    }
    let before = bytes.get(..colon)?;
    let digits = before.iter().rev().take(11).take_while(|b| b.is_ascii_digit()).count();
    let length = run(bytes, colon + 1, 36, name);
    let value = bytes.get(colon + 1..colon + 1 + length)?;
    let start = colon.checked_sub(digits)?;
    let good =
        (8..=10).contains(&digits) && length == 35 && value.starts_with(b"AA") && !inside_word(bytes, start, done);
    (good && varied(value)).then_some(Found { start, end: colon + 1 + length, kind: Kind::Token })
}

/// `Authorization: Bearer ...` and `Basic`.
fn bearer(bytes: &[u8], at: usize) -> Option<Found> {
    let rest = bytes.get(at..)?;
    let is = |word: &[u8]| rest.get(..word.len()).is_some_and(|begins| begins.eq_ignore_ascii_case(word));
    let (word, basic) = match rest.get(1)? {
        b'e' | b'E' if is(b"bearer ") => (7, false),
        b'a' | b'A' if is(b"basic ") => (6, true),
        _ => return None,
    };
    let before = bytes.get(at.saturating_sub(18)..at)?;
    let (start, most) = (at + word, 8192);
    let length = run(bytes, start, most, base64);
    let value = bytes.get(start..start + length)?;
    let authorization = before.to_ascii_lowercase().windows(13).any(|w| w == b"authorization");
    let long = length >= 20 || (authorization && length >= 8);
    let mixed = value.iter().any(u8::is_ascii_digit) && value.iter().any(u8::is_ascii_alphabetic);
    let good = long && (authorization || (mixed && !basic)) && !placeholder(value) && varied(value);
    good.then_some(Found { start, end: start + length, kind: Kind::Token })
}

fn ends_with(text: &[u8], end: &[u8]) -> bool {
    text.len().checked_sub(end.len()).and_then(|at| text.get(at..)).is_some_and(|t| t.eq_ignore_ascii_case(end))
}

/// A PEM block of a private key, to its end line; where that is missing, to the last character that a key can have.
fn pem(bytes: &[u8], at: usize) -> Option<Found> {
    let rest = bytes.get(at..)?;
    let label = rest.strip_prefix(b"-----BEGIN ")?;
    let label_end = label.iter().take(64).position(|b| *b == b'-')?;
    let label = label.get(..label_end)?;
    if !(ends_with(label, b"PRIVATE KEY") || ends_with(label, b"PRIVATE KEY BLOCK")) {
        return None;
    }
    let from = 11 + label_end + 5;
    let body = rest.get(from..rest.len().min(LONGEST_KEY))?;
    // Only to the next line of dashes, so that many beginnings without an end cost no more than their length.
    let end = match find(body, b"-----").filter(|end| body.get(*end..).is_some_and(|b| b.starts_with(b"-----END "))) {
        Some(end) => {
            let tail = body.get(end + 9..)?;
            let dashes = tail.iter().take(64).position(|b| *b == b'-').unwrap_or(0);
            from + end + 9 + dashes + run(tail, dashes, 5, |b| b == b'-')
        }
        None => {
            from + body
                .iter()
                .take_while(|b| base64(**b) || matches!(b, b'\n' | b'\r' | b' ' | b'\\' | b':' | b','))
                .count()
        }
    };
    // A block of nothing is a word about keys.
    (end >= from + 16).then_some(Found { start: at, end: at + end, kind: Kind::PrivateKey })
}

fn putty(bytes: &[u8], at: usize) -> Option<Found> {
    let rest = bytes.get(at..)?;
    if !rest.starts_with(b"PuTTY-User-Key-File-") {
        return None;
    }
    let rest = rest.get(..rest.len().min(LONGEST_KEY))?;
    let rest = rest.get(..find(rest.get(1..)?, b"PuTTY-User-Key-File-").map_or(rest.len(), |next| next + 1))?;
    let private = find(rest, b"Private-Lines:")?;
    let end = find(rest.get(private..)?, b"Private-MAC:").map_or(rest.len(), |mac| {
        let from = private + mac + 12;
        from + run(rest, from, 1, |b| b == b' ') + run(rest, from + 1, 128, |b| b.is_ascii_hexdigit())
    });
    // A cut at the bound must not fall inside a character.
    let end = (0..=end).rev().find(|end| rest.get(*end).is_none_or(|b| b & 0xC0 != 0x80)).unwrap_or(end);
    let whole = bytes.get(at + end).is_none_or(|b| b & 0xC0 != 0x80);
    whole.then_some(Found { start: at, end: at + end, kind: Kind::PrivateKey })
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// `scheme://user:password@host`: the password alone.
fn url(bytes: &[u8], colon: usize) -> Option<Found> {
    let rest = bytes.get(colon..)?.strip_prefix(b"://")?;
    if !colon.checked_sub(1).and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_alphanumeric) {
        return None;
    }
    let stop =
        |b: &u8| matches!(b, b'/' | b'?' | b'#' | b'"' | b'\'' | b'<' | b'>' | b'`' | b'\\') || b.is_ascii_whitespace();
    let authority = rest.get(..rest.iter().take(NEAR).position(stop).unwrap_or(rest.len().min(NEAR)))?;
    let host = authority.iter().rposition(|b| *b == b'@')?;
    let user = authority.get(..host)?.iter().position(|b| *b == b':')?;
    let value = authority.get(user + 1..host)?;
    let words: [&[u8]; 6] = [b"password", b"pass", b"pwd", b"secret", b"token", b"***"];
    let stands = words.iter().any(|word| value.eq_ignore_ascii_case(word)) || placeholder(value);
    let start = colon + 3 + user + 1;
    (!value.is_empty() && !stands).then_some(Found { start, end: start + value.len(), kind: Kind::UrlPassword })
}

/// `password = "value"`, `"password": "value"`, `PASSWORD=value`: the value alone.
fn assigned(bytes: &[u8], separator: usize) -> Option<Found> {
    let (mut key_end, is_colon) = (separator, bytes.get(separator) == Some(&b':'));
    while let Some(b' ' | b'\t' | b'"' | b'\'' | b'\\') = key_end.checked_sub(1).and_then(|at| bytes.get(at)) {
        key_end -= 1;
        if separator - key_end > 8 {
            return None;
        }
    }
    let kind = secret_name(bytes.get(key_end.saturating_sub(64)..key_end)?)?;
    let mut start = separator + 1 + run(bytes, separator + 1, 8, |b| matches!(b, b' ' | b'\t'));
    // Inside a string, the quotes have backslashes.
    let escaped = bytes.get(start) == Some(&b'\\');
    let quote = bytes.get(start + usize::from(escaped)).copied().filter(|b| matches!(b, b'"' | b'\'' | b'`'));
    let stop: fn(u8, u8) -> bool = match quote {
        Some(_) => {
            start += usize::from(escaped) + 1;
            |b, quote| b == quote || b == b'\n'
        }
        None => |b, _| {
            b.is_ascii_whitespace() || matches!(b, b';' | b',' | b'&' | b'"' | b'\'' | b'}' | b')' | b'<' | b'\\')
        },
    };
    let rest = bytes.get(start..)?;
    let mut length = rest
        .iter()
        .take(NEAR)
        .position(|b| stop(*b, quote.unwrap_or_default()))
        .unwrap_or_else(|| rest.len().min(NEAR));
    if quote.is_some() && rest.get(length) != quote.as_ref() {
        return None;
    }
    if escaped && length > 0 && rest.get(length - 1) == Some(&b'\\') {
        length -= 1;
    }
    let value = rest.get(..length)?;
    let mut end = start + length;
    while bytes.get(end).is_some_and(|b| b & 0xC0 == 0x80) {
        end += 1;
    }
    let classes = [u8::is_ascii_lowercase, u8::is_ascii_uppercase, u8::is_ascii_digit, u8::is_ascii_punctuation];
    let classes = classes.iter().filter(|of| value.iter().any(of)).count();
    let strong = length >= 6 && classes >= 2 && (value.iter().any(u8::is_ascii_digit) || classes >= 3);
    let good = match (quote, kind) {
        // A name, a call or a type stands without quotes where code is; a value of a configuration has a digit.
        (None, _) => strong && value.iter().any(u8::is_ascii_digit) && !code(value) && !(is_colon && length < 8),
        (Some(_), Kind::Password) => length >= 4 && !value.contains(&b' ') || strong && length < 64,
        (Some(_), _) => length >= 12 && strong && !value.contains(&b' '),
    };
    (good && !placeholder(value) && varied(value)).then_some(Found { start, end, kind })
}

/// What the value of something called like the end of this is.
pub(crate) fn secret_name(key: &[u8]) -> Option<Kind> {
    // Most names end otherwise. Where a `_` or a `-` stands between the last two letters, it takes a closer look.
    let [before, last] = *key.last_chunk::<2>()?;
    if !word(last) || word(before) && !ends(before, last) {
        return None;
    }
    // The end without `_` and `-`, in small letters: as long as the longest name.
    let mut plain = [0; 16];
    let mut from = plain.len();
    for letter in key.iter().rev().take_while(|b| name(**b)).filter(|b| word(**b)).take(plain.len()) {
        from -= 1;
        if let Some(place) = plain.get_mut(from) {
            *place = letter.to_ascii_lowercase();
        }
    }
    let plain = plain.get(from..)?;
    SECRET_NAMES.iter().find(|(name, _)| plain.ends_with(name)).map(|(_, kind)| *kind)
}
