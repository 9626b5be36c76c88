pub mod file;
pub mod open;
pub mod parse;
pub mod policy_keys;
pub mod problem;
pub mod server_keys;
pub mod template;
mod unknown;
