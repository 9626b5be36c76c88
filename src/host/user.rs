//! Who runs this process, and what they are logged in to.

use std::sync::Arc;

use super::network;
use crate::adapters::clock::SystemClock;
use crate::adapters::oauth::{Http, Logins};
use crate::adapters::wasm::{Cache, Compiling, Options};
use crate::config::Places;
use crate::model::caller::Caller;

/// The largest user database that is read, in bytes.
const MAX_PASSWD: u64 = 1024 * 1024;

/// Returns the caller of a local process: tenant `local`, the operating system's user, a fresh session.
#[must_use]
pub fn local_caller() -> Caller {
    Caller::local(&name_of(rustix::process::getuid().as_raw()))
}

/// The user's name by the system's database. Never by `$USER`, which whoever starts us may choose.
fn name_of(uid: u32) -> String {
    use std::io::Read as _;

    let mut text = String::new();
    let read = std::fs::File::open("/etc/passwd").and_then(|file| file.take(MAX_PASSWD).read_to_string(&mut text));
    let found = read.ok().and_then(|_| name_in(&text, uid));
    // A user of a directory service, or none at all, as in a container.
    found.unwrap_or_else(|| format!("uid-{uid}"))
}

fn name_in(passwd: &str, uid: u32) -> Option<String> {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let mut lines = passwd.lines().map(fields);
    let line = lines.find(|fields| fields.get(2).and_then(|id| id.parse().ok()) == Some(uid))?;
    line.into_iter().next().filter(|name| !name.is_empty())
}

/// Returns the logins of whoever runs this process; none without a place for the user's state.
#[must_use]
pub fn local_logins(places: &Places) -> Option<Logins> {
    let state = places.state.as_ref()?;
    let http = Http::new(network::client_builder);
    Some(Logins::new(state, places.user, &local_caller(), http, Arc::new(SystemClock)))
}

/// Returns how a program of ours gets at compiled code: from the user's cache, else from a child of its own. Only for a
/// program that answers to [`COMMAND`](crate::adapters::wasm::compile::COMMAND).
///
/// # Errors
/// The system does not say which program runs.
pub fn sandbox(places: &Places) -> std::io::Result<Options> {
    let cache = places.cache.as_ref().zip(places.state.as_ref()).and_then(|(cache, state)| {
        let opened = Cache::open(&cache.join("compiled"), &state.join("cache.key"), places.user);
        opened.inspect_err(|error| tracing::warn!(%error, "compiled policies are not kept")).ok()
    });
    Ok(Options { compiling: Compiling::in_child_of_ours()?, cache })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_id_only() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n# 7:x\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(name_in(passwd, 1000).as_deref(), Some("ada"));
        assert_eq!(name_in(passwd, 7), None);
    }
}
