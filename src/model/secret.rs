//! A text that nothing may print: a token, a client's secret.

use std::fmt;
use std::sync::Arc;

/// A secret text. Its `Debug` shows nothing of it, it has no `Display`, and it is not serialised by accident.
///
/// Memory is not wiped: who can read this process's memory can make its calls too.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a text.
    #[must_use]
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Returns the text. For the one place that sends or stores it, never for a message.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_of_it() {
        assert_eq!(
            format!("{:?} {:#?}", Secret::new("hush"), Some(Secret::new("hush"))),
            "Secret Some(\n    Secret,\n)"
        );
    }
}
