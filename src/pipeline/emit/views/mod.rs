//! The forms in which one clean answer is shown.
//!
//! | view | for whom | what it has |
//! |---|---|---|
//! | `model` | a model | a header and a body, media prepared, cut once to the model's limit |
//! | `script` | scripts, and what is kept of their calls | the whole result without its `_meta` |
//! | `hook` | `PostToolUse` hooks | the whole result |
//! | `event` | the completed item | the result, or what fits of it into a megabyte; else a sentence |
//! | `stale` | whoever called a tool that has changed | the new definition |
//!
//! A view never changes the answer: all render from the same [`Clean`](super::sanitise::Clean), and none from another view
//! (R28, R32). The gateway serves the clean answer itself.

pub mod event;
pub mod hook;
pub mod model;
pub mod script;
pub mod stale;

mod medium;
mod prepare;

pub(in crate::pipeline) use self::medium::{Room, is_image};
pub use self::prepare::MediaLimits;
pub(in crate::pipeline) use self::prepare::decoding;
pub use crate::model::truncate;
