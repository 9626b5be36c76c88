//! `serve`: all configured servers as one MCP server on stdin and stdout.

use std::sync::Arc;

use portcullis::config::Resolved;
use portcullis::config::matcher::unmatched_tools;
use portcullis::gateway::{self, Ended, ServeOptions};
use portcullis::host::Host;
use portcullis::host::listing::Searching;
use portcullis::host::user::local_caller;
use portcullis::host::watch::Watch;
use tokio_util::sync::CancellationToken;

use super::args::Global;
use super::exit::{Exit, Trouble};
use super::{setup, stdio};

/// Serves until the client or a signal ends it.
pub(crate) async fn run(global: &Global) -> Result<Exit, Trouble> {
    let shutdown = setup::stop_on_signals()?;
    let setup::Wired { resolved, mut parts, reloader, logins, desk } = setup::wire(global).await?;
    let telemetry = setup::Sending::start(&resolved, &mut parts);
    let host = Host::start(parts);
    let required = tokio::select! {
        required = host.fleet().await_required() => required,
        () = shutdown.cancelled() => Ok(()),
    };
    if let Err(why) = required {
        host.shutdown(std::time::Duration::ZERO).await;
        return Err(Trouble::new(Exit::Failed, why).hint("`portcullis tools` shows what each server said"));
    }
    let (searching, takes) = (Searching::of(&resolved.gateway), resolved.output.input_modalities.value);
    let desk = match resolved.queue.value {
        Some(false) => None,
        Some(true) => Some(desk.patient()),
        None => Some(desk),
    };
    // Ends with the host, or when serving ends.
    tokio::spawn(Watch::new(&host, reloader, &resolved, logins).run(shutdown.clone()));
    tokio::spawn(warn(Arc::clone(&host), resolved, shutdown.clone()));
    let options = ServeOptions { shutdown, searching, takes, desk, ..ServeOptions::default() };
    let served = gateway::serve(host, local_caller(), stdio::input(), stdio::output(), options).await;
    telemetry.finish().await;
    match served.map_err(|error| Trouble::from_error(Exit::Failed, &error))? {
        Ended::Client(why) => tracing::info!(%why, "the client has gone"),
        Ended::Shutdown => tracing::info!("ended by a signal"),
    }
    Ok(Exit::Done)
}

/// Says once which policies are for tools that no server has, as soon as every server is ready or has failed.
async fn warn(host: Arc<Host>, resolved: Arc<Resolved>, shutdown: CancellationToken) {
    tokio::select! {
        () = host.fleet().settle_fully() => {}
        () = shutdown.cancelled() => return,
    }
    for warning in unmatched_tools(&resolved, &host.known_tools()) {
        tracing::warn!(%warning, "a policy's `match` fits no tool");
    }
}
