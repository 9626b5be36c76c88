//! Who runs this process, and what they are logged in to.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::network;
use crate::adapters::clock::SystemClock;
use crate::adapters::oauth::{Http, Logins};
use crate::adapters::wasm::{Cache, Compiling, Options};
use crate::config::Places;
use crate::model::caller::Caller;
use crate::model::role::Role;

/// The largest database of users or groups that is read, in bytes.
const MAX_DATABASE: u64 = 1024 * 1024;

/// Returns the caller of a local process: tenant `local`, the operating system's user, a fresh session.
#[must_use]
pub fn local_caller() -> Caller {
    Caller::local(&name_of(rustix::process::getuid().as_raw()))
}

/// Returns the roles of whoever sits at this process's terminal: the groups that the kernel says this process is in (R20). One
/// that the system's database has no name for is `gid-1000`. None where the kernel does not say.
#[must_use]
pub fn local_roles() -> BTreeSet<Role> {
    let groups = rustix::process::getgroups().unwrap_or_default();
    let ids: BTreeSet<u32> =
        groups.into_iter().chain([rustix::process::getegid()]).map(rustix::process::Gid::as_raw).collect();
    let database = read(Path::new("/etc/group"));
    let names = ids.into_iter().map(|id| name_in(&database, id).unwrap_or_else(|| format!("gid-{id}")));
    let names: Vec<String> = names.collect();
    Role::of_groups(names.iter().map(String::as_str))
}

/// The user's name by the system's database. Never by `$USER`, which whoever starts us may choose.
fn name_of(uid: u32) -> String {
    // A user of a directory service, or none at all, as in a container.
    name_in(&read(Path::new("/etc/passwd")), uid).unwrap_or_else(|| format!("uid-{uid}"))
}

/// Nothing where it cannot be read.
fn read(database: &Path) -> String {
    use std::io::Read as _;

    let mut text = String::new();
    let read = std::fs::File::open(database).and_then(|file| file.take(MAX_DATABASE).read_to_string(&mut text));
    read.map_or_else(|_| String::new(), |_| text)
}

/// Users and groups have the same first three fields: name, password, id.
fn name_in(database: &str, id: u32) -> Option<String> {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let mut lines = database.lines().map(fields);
    let line = lines.find(|fields| fields.get(2).and_then(|own| own.parse().ok()) == Some(id))?;
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
        assert_eq!(name_in("wheel:x:10:ada,bob\nops:x:7:\n", 7).as_deref(), Some("ops"));
    }

    #[test]
    fn r20_the_roles_at_a_terminal_are_the_groups_of_the_process() {
        let roles = local_roles();
        let own = rustix::process::getegid().as_raw();
        let name = name_in(&read(Path::new("/etc/group")), own).unwrap_or_else(|| format!("gid-{own}"));
        assert!(roles.contains(&Role::parse(&name).unwrap()), "{name} is not in {roles:?}");
    }
}
