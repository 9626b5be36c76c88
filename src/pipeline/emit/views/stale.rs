//! The stale answer serves the new definition, so that the next call is made by what was seen (R24).

use crate::model::outcome::Failure;
use crate::model::text;
use crate::pipeline::emit::sanitise::ShownDefinition;

/// The most of a changed definition that the stale answer shows, in bytes.
const MAX_SHOWN_DEFINITION: usize = 16 * 1024;

/// Adds the definition to the failure's message. Tells whether it is there whole: one that is too long for that has not been
/// seen, and the tools must be listed again.
pub fn show(failure: &mut Failure, definition: &ShownDefinition) -> bool {
    let whole = definition.text();
    let shown = text::prefix(whole, MAX_SHOWN_DEFINITION);
    failure.message.push_str(". Its definition is now: ");
    failure.message.push_str(shown);
    if shown.len() == whole.len() {
        return true;
    }
    failure.message.push_str("… (cut: list the tools again to see it whole)");
    false
}
