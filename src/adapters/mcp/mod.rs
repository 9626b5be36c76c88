//! MCP over pipes and over HTTP: our own transports for rmcp, the servers behind us, and what the front needs of the wire.
//!
//! Promises: what a server answered and what a client asked is kept as the text that came (rmcp's types lose unknown
//! fields, key order and the spelling of numbers); every message is bounded; rubbish never ends a connection and an
//! oversized answer never hangs a call; progress arrives in order; a question reaches the client of its call or nobody; no
//! process outlives its connection.
//!
//! | file | question |
//! |---|---|
//! | `line` | where does a message end, and when is it too long? |
//! | `envelope` | what kind of message is a text, and whose? |
//! | `outbox` | in which order are messages written? |
//! | `transport` | how does rmcp read and write them? |
//! | `upstream_side`, `client_side` | what is taken out of the stream beside rmcp, per role? |
//! | `answer` | what does a raw answer mean? |
//! | `strays` | and one that nobody waits for? |
//! | `http` | how do the same messages go over HTTP? |
//! | `traffic` | how many bytes passed? |
//! | `child`, `stderr` | how does a server's process live and end? |
//! | `client`, `handshake` | how is a server connected, in which era? |
//! | `connection` | how is it listed and called? |
//! | `listen` | how are changes heard of where there is no session? |
//! | `link`, `rounds` | how is a request sent, waited for, made again, cancelled? |
//! | `asked` | how is a client asked, its answer kept as text? |
//! | `lanes` | who shares a server? |
//! | `era` | what belongs to one hop only? |
//! | `inquiry` | whose question is it? |
//!
//! Does not know about policies, catalogs or names: that is the pipeline's.

pub mod asked;
pub mod child;
pub mod client;
pub mod client_side;
pub mod http;
pub mod lanes;
pub mod transport;

mod answer;
mod connection;
mod envelope;
mod era;
mod handshake;
mod inquiry;
mod line;
mod link;
mod listen;
mod outbox;
mod rounds;
mod stderr;
mod strays;
mod traffic;
mod upstream_side;
