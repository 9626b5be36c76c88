//! What is wrong with a configuration, and where: every problem names its file, line and key.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::model::layer::LayerRef;
use crate::model::text::shown;

/// The longest message of a problem, in characters: a project file writes part of it.
const MAX_MESSAGE: usize = 400;

/// One mistake in one layer. It never holds the value of an environment variable or a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The layer.
    pub layer: LayerRef,
    /// The file; none for `-c` and the embedder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The line, counted from one. For `-c` the number of the flag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The dotted path of the key; empty when the whole file is meant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// The known key that was probably meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

impl Problem {
    /// A problem of a whole layer.
    #[must_use]
    pub fn of_layer(layer: &LayerRef, message: impl AsRef<str>) -> Self {
        Self::at(layer, None, "", message)
    }

    /// A problem of one key.
    #[must_use]
    pub fn at(layer: &LayerRef, line: Option<usize>, key: &str, message: impl AsRef<str>) -> Self {
        Self {
            layer: layer.clone(),
            file: layer.file().map(PathBuf::from),
            line,
            key: shown(key, 200),
            message: shown(message.as_ref(), MAX_MESSAGE),
            suggestion: None,
        }
    }

    /// The same problem, naming the policy that it is in.
    pub(crate) fn of_policy(&self, name: &str) -> Self {
        let message = format!("of the policy `{}`: {}", shown(name, 64), self.message);
        Self { message: shown(&message, MAX_MESSAGE), ..self.clone() }
    }
}

/// Names a line of a layer's file, and the layer.
pub(crate) fn place(layer: &LayerRef, line: Option<usize>) -> String {
    place_in(layer.file(), layer, line)
}

fn place_in(file: Option<&Path>, layer: &LayerRef, line: Option<usize>) -> String {
    let line = line.map_or_else(String::new, |line| format!(":{line}"));
    match file {
        Some(file) => format!("{}{line} ({layer} layer)", shown(&file.display().to_string(), 300)),
        None => format!("{layer} layer{line}"),
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&place_in(self.file.as_deref(), &self.layer, self.line))?;
        if !self.key.is_empty() {
            write!(f, ": `{}`", self.key)?;
        }
        write!(f, ": {}", self.message)?;
        match &self.suggestion {
            Some(suggestion) => write!(f, " (did you mean `{suggestion}`?)"),
            None => Ok(()),
        }
    }
}
