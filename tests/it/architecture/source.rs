//! Just enough Rust to read sources: what is code, what is text, what is a test, which paths are named.
//!
//! A parser would know more, but not more of what is asked here, and would have to be kept up with the language.

use std::ops::Range;

/// A source with comments and literals blanked out: same lines, same columns.
pub(super) struct Source {
    /// The code.
    pub(super) code: String,
    /// The contents of its string literals, with their lines.
    pub(super) literals: Vec<(usize, String)>,
}

impl Source {
    pub(super) fn read(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let (mut code, mut literals) = (String::with_capacity(text.len()), Vec::new());
        let (mut at, mut line) = (0, 1);
        while at < chars.len() {
            let (end, literal) = match token_at(&chars, at) {
                Token::Code => (at + 1, None),
                Token::Blank(end) => (end, None),
                Token::Literal { inner, end } => (end, Some(chars[inner].iter().collect::<String>())),
            };
            let keep = matches!(token_at(&chars, at), Token::Code);
            literals.extend(literal.map(|text| (line, text)));
            for c in &chars[at..end] {
                line += usize::from(*c == '\n');
                code.push(if keep || *c == '\n' { *c } else { ' ' });
            }
            at = end;
        }
        Self { code, literals }
    }

    /// The code without items under `#[cfg(test)]`, which keep their lines.
    pub(super) fn without_tests(&self) -> String {
        let mut code: Vec<char> = self.code.chars().collect();
        for span in test_spans(&code) {
            code[span].iter_mut().filter(|c| **c != '\n').for_each(|c| *c = ' ');
        }
        code.into_iter().collect()
    }

    /// How many lines are not under `#[cfg(test)]`.
    pub(super) fn lines_without_tests(&self) -> usize {
        let code: Vec<char> = self.code.chars().collect();
        let newlines = |span: Range<usize>| code[span].iter().filter(|c| **c == '\n').count();
        self.code.lines().count() - test_spans(&code).into_iter().map(newlines).sum::<usize>()
    }
}

enum Token {
    Code,
    Blank(usize),
    Literal { inner: Range<usize>, end: usize },
}

fn token_at(chars: &[char], at: usize) -> Token {
    let get = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let word_before = at > 0 && (get(at - 1).is_alphanumeric() || get(at - 1) == '_');
    match (get(at), get(at + 1)) {
        ('/', '/') => Token::Blank(chars[at..].iter().position(|c| *c == '\n').map_or(chars.len(), |n| at + n)),
        ('/', '*') => {
            let (mut depth, mut i) = (0_usize, at);
            while i < chars.len() {
                match (get(i), get(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 2),
                    ('*', '/') => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
                if depth == 0 {
                    break;
                }
            }
            Token::Blank(i.min(chars.len()))
        }
        ('"', _) => {
            let mut i = at + 1;
            while i < chars.len() && get(i) != '"' {
                i += if get(i) == '\\' { 2 } else { 1 };
            }
            let i = i.min(chars.len());
            Token::Literal { inner: at + 1..i, end: (i + 1).min(chars.len()) }
        }
        ('r', '"' | '#') if !word_before || matches!(get(at - 1), 'b' | 'c') => {
            let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
            let start = at + 1 + hashes;
            if get(start) != '"' {
                return Token::Code;
            }
            let closes = |i: usize| get(i) == '"' && (1..=hashes).all(|n| get(i + n) == '#');
            let end = (start + 1..chars.len()).find(|i| closes(*i)).unwrap_or(chars.len());
            Token::Literal { inner: start + 1..end, end: (end + 1 + hashes).min(chars.len()) }
        }
        ('\'', '\\') => {
            let end = (at + 3..chars.len()).find(|i| get(*i) == '\'').map_or(chars.len(), |i| i + 1);
            Token::Blank(end)
        }
        ('\'', _) if get(at + 2) == '\'' => Token::Blank(at + 3),
        _ => Token::Code,
    }
}

/// From each `#[cfg(test)]` to the end of the item under it.
fn test_spans(code: &[char]) -> Vec<Range<usize>> {
    let marker: Vec<char> = "#[cfg(test)]".chars().collect();
    let mut spans = Vec::new();
    let mut at = 0;
    while at + marker.len() <= code.len() {
        if code[at..].starts_with(&marker) {
            let end = item_end(code, at + marker.len());
            spans.push(at..end);
            at = end;
        } else {
            at += 1;
        }
    }
    spans
}

/// The end of the item that begins at `at`: its `;`, or the brace that closes its first one.
fn item_end(code: &[char], at: usize) -> usize {
    let (mut inner, mut braces) = (0_i32, 0_i32);
    for (i, c) in code.iter().enumerate().skip(at) {
        match c {
            '(' | '[' => inner += 1,
            ')' | ']' => inner -= 1,
            '{' => braces += 1,
            '}' => braces -= 1,
            _ => {}
        }
        if braces < 0 {
            return i; // a field or an arm: it ends with what it belongs to
        }
        if matches!(c, ';' | '}') && inner == 0 && braces == 0 {
            return i + 1;
        }
    }
    code.len()
}

/// A word or a sign, with its line.
#[derive(Clone, Debug)]
struct Lexeme {
    text: String,
    line: usize,
}

fn lexemes(code: &str) -> Vec<Lexeme> {
    let mut out: Vec<Lexeme> = Vec::new();
    for (index, text) in code.lines().enumerate() {
        let line = index + 1;
        let mut rest = text.trim_start();
        while let Some(c) = rest.chars().next() {
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let length = if word > 0 {
                word
            } else if rest.starts_with("::") {
                2
            } else {
                c.len_utf8()
            };
            out.push(Lexeme { text: rest[..length].to_owned(), line });
            rest = rest[length..].trim_start();
        }
    }
    out
}

/// Whether a word occurs in code, and on which lines.
pub(super) fn lines_with(code: &str, word: &str) -> Vec<usize> {
    lexemes(code).into_iter().filter(|lexeme| lexeme.text == word).map(|lexeme| lexeme.line).collect()
}

/// The crates that code names in paths, with their lines.
pub(super) fn crates(code: &str) -> Vec<(usize, String)> {
    let lexemes = lexemes(code);
    let starts = |i: usize| i == 0 || lexemes[i - 1].text != "::";
    let path = |i: usize| lexemes.get(i + 1).is_some_and(|next| next.text == "::");
    let used = |i: usize| i > 0 && lexemes[i - 1].text == "use";
    (0..lexemes.len())
        .filter(|i| starts(*i) && (path(*i) || used(*i)))
        .map(|i| (lexemes[i].line, lexemes[i].text.clone()))
        .collect()
}

/// Every path that begins with `crate`, `super` or `self::super`, resolved from the crate's root, on whatever line it
/// stands; groups are spread out. `module` is the module of the file.
pub(super) fn paths(code: &str, module: &[String]) -> Vec<(usize, Vec<String>)> {
    let lexemes = lexemes(code);
    let text = |i: usize| lexemes.get(i).map_or("", |lexeme| lexeme.text.as_str());
    let mut found = Vec::new();
    // Inline modules that are open, with the depth of their braces.
    let mut inline: Vec<(String, usize)> = Vec::new();
    let (mut depth, mut i) = (0_usize, 0);
    while i < lexemes.len() {
        let here = || module.iter().cloned().chain(inline.iter().map(|(name, _)| name.clone())).collect::<Vec<_>>();
        let begins = i == 0 || text(i - 1) != "::";
        match text(i) {
            "mod" if text(i + 2) == "{" => {
                inline.push((text(i + 1).to_owned(), depth));
                i += 2;
                continue;
            }
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                inline.pop_if(|(_, opened)| *opened == depth);
            }
            // Where a thing may be seen is not a use of that place.
            "pub" if text(i + 1) == "(" => {
                while i < lexemes.len() && text(i) != ")" {
                    i += 1;
                }
            }
            start @ ("crate" | "super" | "self") if begins => {
                let mut base = if start == "crate" { Vec::new() } else { here() };
                if start == "super" {
                    base.pop();
                }
                if start != "self" || text(i + 1) == "::" {
                    let line = lexemes[i].line;
                    let mut ends = Vec::new();
                    i = tree(&lexemes, i + 1, base, &mut ends);
                    found.extend(ends.into_iter().map(|path| (line, path)));
                    continue;
                }
            }
            _ => {}
        }
        i += 1;
    }
    found
}

/// Follows a path, or a tree of paths, from the lexeme after `base`; returns where it ends.
fn tree(lexemes: &[Lexeme], mut i: usize, mut base: Vec<String>, ends: &mut Vec<Vec<String>>) -> usize {
    let text = |i: usize| lexemes.get(i).map_or("", |lexeme| lexeme.text.as_str());
    while text(i) == "::" {
        match text(i + 1) {
            "{" => {
                i += 2;
                while !matches!(text(i), "}" | "") {
                    let mut inner = base.clone();
                    step(&mut inner, text(i));
                    i = tree(lexemes, i + 1, inner, ends);
                    while !matches!(text(i), "," | "}" | "") {
                        i += 1;
                    }
                    i += usize::from(text(i) == ",");
                }
                return i + 1;
            }
            "<" | "" => break,
            segment => {
                step(&mut base, segment);
                i += 2;
            }
        }
    }
    ends.push(base);
    i
}

fn step(path: &mut Vec<String>, segment: &str) {
    match segment {
        "super" => drop(path.pop()),
        "self" => {}
        name => path.push(name.to_owned()),
    }
}
