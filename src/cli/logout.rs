//! `logout`: the tokens of a server are forgotten, here and at its authorisation server.

use portcullis::adapters::oauth::{LoggedOut, Revoked, Target, logout};
use portcullis::model::text::shown;
use serde_json::json;

use super::args::{Format, Global};
use super::exit::{Exit, Trouble};
use super::{login, render, setup};

/// Logs out. Not being logged in is no failure: what was wanted is so.
pub(crate) async fn run(global: &Global, server: &str) -> Result<Exit, Trouble> {
    let stop = setup::stop_on_signals()?;
    let found = login::Found::new(global, server)?;
    let target = Target::to_forget(&found.server, &login::variable).map_err(|error| login::no_oauth(&error))?;
    let ended = tokio::select! {
        ended = Box::pin(logout(&found.logins, &target)) => ended.map_err(|error| Trouble::from_error(Exit::Failed, &error))?,
        () = stop.cancelled() => return Err(Trouble::new(Exit::Failed, "interrupted")),
    };
    let (was, revoked, text) = match ended {
        LoggedOut::WasNot => (false, false, "nobody was logged in".to_owned()),
        LoggedOut::Gone(Revoked::Yes) => (true, true, "the tokens are removed and revoked".to_owned()),
        LoggedOut::Gone(Revoked::NotOffered) => {
            let text =
                "the tokens are removed; the authorisation server offers no revocation, so they hold until they end";
            (true, false, text.to_owned())
        }
        LoggedOut::Gone(Revoked::Failed(why)) => {
            (true, false, format!("the tokens are removed, but could not be revoked: {}", shown(&why, 500)))
        }
    };
    match global.format {
        Format::Human => render::data(&format!("`{}`: {text}.\n", target.server()))?,
        Format::Json => render::json(&json!({
            "server": target.server(), "was_logged_in": was, "revoked": revoked, "text": text,
        }))?,
    }
    Ok(Exit::Done)
}
