//! Where a conversion is: a list of segments on the stack, written out only where something is to be told.

use crate::model::{json, text};

/// The longest pointer that is told, in characters: a server writes its keys.
const MAX_POINTER: usize = 256;

/// A place in a schema.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    Root,
    Key(&'a At<'a>, &'a str),
    Index(&'a At<'a>, usize),
}

impl At<'_> {
    /// Returns the JSON Pointer, fit to be shown.
    pub(super) fn pointer(&self) -> String {
        let mut segments = Vec::new();
        let mut at = self;
        loop {
            at = match at {
                At::Root => break,
                At::Key(parent, key) => {
                    segments.push(text::prefix(key, 4 * MAX_POINTER).to_owned());
                    parent
                }
                At::Index(parent, index) => {
                    segments.push(index.to_string());
                    parent
                }
            };
        }
        let mut pointer = String::new();
        for segment in segments.iter().rev() {
            json::push_pointer(&mut pointer, segment);
        }
        text::shown(&pointer, MAX_POINTER)
    }
}
