//! MCP over Streamable HTTP towards a server: each message is a POST, and what comes back is one JSON text or a stream.
//!
//! Promises: what a server answers is kept as the text that came, as over lines; every body, event and header is bounded; a
//! request whose server is gone, slow, confused or lost ends with one clear failure, and never hangs on a stream that
//! is dead; a token goes to the configured origin only, and no header value is in any text. Both eras work: with a
//! session (which is renewed once when the server has forgotten it) and without.
//!
//! | file | question |
//! |---|---|
//! | `upstream` | how is a server connected? |
//! | `endpoint` | where is it, and what goes with every request? |
//! | `client` | how is one HTTP request made: token, redirects, failures? |
//! | `transport` | how does rmcp send and receive over it? |
//! | `order` | what kind of message is it, and which headers does it want? |
//! | `params` | which arguments are headers, too? |
//! | `carrier` | what becomes of a message, and of what comes back? |
//! | `reply` | what kind of answer is an HTTP response? |
//! | `sse` | where does an event end? |
//! | `stream` | how is a stream followed, and taken up again? |
//! | `session` | which session is it, and how is it renewed? |
//!
//! Does not log in: tokens come through a port.

pub mod endpoint;
pub mod upstream;

mod carrier;
mod client;
mod order;
mod params;
mod reply;
mod session;
mod sse;
mod stream;
mod transport;
