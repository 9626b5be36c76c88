//! What is printed where: data to stdout, talk to stderr; JSON in one line; colour only as an aid.

use std::io::{self, IsTerminal as _, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use super::args::{Color, Format};
use super::exit::{Exit, Trouble};

/// The width that texts are wrapped to where there is no terminal.
const WIDTH: usize = 80;
/// The narrowest and the widest that texts are wrapped to.
const WIDTHS: std::ops::RangeInclusive<usize> = 30..=100;

/// A word that stands out.
pub(crate) const STRONG: Style = Style::new().bold();
/// Something went through.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Somebody must look.
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
/// Something was stopped.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// Of less interest.
pub(crate) const FAINT: Style = Style::new().dimmed();

/// Sets the colour choice for both streams.
pub(crate) fn set_color(color: Color) {
    let choice = match color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// Whether stderr is coloured.
pub(crate) fn stderr_has_color() -> bool {
    anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}

/// Returns the text in a style; the style is taken out again where there is no colour.
pub(crate) fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Prints data to stdout. A reader that has gone is no error: it has read what it wanted.
pub(crate) fn data(text: &str) -> Result<(), Trouble> {
    let mut out = anstream::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Prints a value to stdout as one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Trouble> {
    let mut line = serde_json::to_vec(value).map_err(|error| Trouble::from_error(Exit::Failed, &error))?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    written(out.write_all(&line).and_then(|()| out.flush()))
}

fn written(result: io::Result<()>) -> Result<(), Trouble> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Trouble::caused(Exit::Failed, "cannot write to stdout", &error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints talk to stderr, a line.
pub(crate) fn talk(text: &str) {
    // There is nobody left to tell that nobody listens.
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Prints trouble to stderr: what, why, hint. In JSON it is one line with the same fields.
pub(crate) fn trouble(trouble: &Trouble, format: Format) {
    match format {
        Format::Human => {
            talk(&format!("{}: {}", styled(BAD, "error"), trouble.what));
            for cause in &trouble.why {
                talk(&format!("  because: {cause}"));
            }
            if let Some(hint) = &trouble.hint {
                talk(&format!("  {}: {hint}", styled(STRONG, "hint")));
            }
        }
        Format::Json => {
            let (error, because, hint) = (&trouble.what, &trouble.why, &trouble.hint);
            let code = trouble.exit as u8;
            talk(&serde_json::json!({ "error": error, "because": because, "hint": hint, "exit": code }).to_string());
        }
    }
}

/// Returns the width that texts are wrapped to.
pub(crate) fn width() -> usize {
    let stdout = io::stdout();
    let columns = if stdout.is_terminal() {
        rustix::termios::tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
    } else {
        None
    };
    columns.unwrap_or(WIDTH).clamp(*WIDTHS.start(), *WIDTHS.end())
}

/// Returns a label and a text beside it, wrapped: the following lines are indented to where the text begins.
///
/// Widths are counted in characters without styles; a word that is longer than a line gets one of its own and is not split.
pub(crate) fn field(indent: usize, label: &str, text: &str, width: usize) -> String {
    let column = indent + label.chars().count() + 1;
    let mut out = format!("{:indent$}{} ", "", styled(FAINT, label));
    let (mut at, mut empty) = (column, true);
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let length = anstream::adapter::strip_str(word).to_string().chars().count();
        if !empty && at + 1 + length > width {
            out.push('\n');
            out.push_str(&" ".repeat(column));
            (at, empty) = (column, true);
        }
        if !empty {
            out.push(' ');
            at += 1;
        }
        out.push_str(word);
        (at, empty) = (at + length, false);
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_field_is_wrapped_below_its_text() {
        let text = plain(&field(2, "why", "one two three four", 15));
        assert_eq!(text, "  why one two\n      three\n      four\n");
    }

    #[test]
    fn a_word_longer_than_the_line_is_kept_whole() {
        assert_eq!(plain(&field(0, "a", "abcdefghij k", 5)), "a abcdefghij\n  k\n");
    }
}
