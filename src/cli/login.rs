//! `login`: a person goes to the authorisation server in the browser; the tokens stay here.

use std::process::Stdio;
use std::time::Duration;

use portcullis::adapters::oauth::{Granted, Login, LoginError, Logins, NoOauth, Parties, Target};
use portcullis::config::Resolved;
use portcullis::config::server::ResolvedServer;
use portcullis::host::user::local_logins;
use portcullis::model::name::ServerName;
use portcullis::model::text::{seconds, shown};
use serde_json::json;

use super::args::{self, Format, Global};
use super::exit::{Exit, Trouble};
use super::render::{self, GOOD, field, styled};
use super::setup;

/// Logs in, or says why not.
pub(crate) async fn run(global: &Global, args: &args::Login) -> Result<Exit, Trouble> {
    let stop = setup::stop_on_signals()?;
    let found = Found::new(global, &args.server)?;
    let (logins, target) = (&found.logins, found.target()?);
    let granted = tokio::select! {
        granted = Box::pin(log_in(logins, &target, args, global.format)) => granted,
        () = stop.cancelled() => return Err(Trouble::new(Exit::Failed, "interrupted: nothing is logged in to")),
    };
    let (parties, granted) = granted.map_err(|error| failed(&error, target.server().as_str()))?;
    match global.format {
        Format::Human => render::data(&human(target.server().as_str(), &granted))?,
        Format::Json => render::json(&json!({
            "server": target.server(),
            "issuer": granted.issuer,
            "authorization_host": parties.authorization_host,
            "token_host": parties.token_host,
            "resource": granted.resource,
            "scopes": granted.scopes,
            "expires": granted.expires,
            "renewable": granted.renewable,
        }))?,
    }
    Ok(Exit::Done)
}

async fn log_in(
    logins: &Logins,
    target: &Target,
    args: &args::Login,
    format: Format,
) -> Result<(Parties, Granted), LoginError> {
    let login = Login::begin(logins, target, &args.scopes, args.issuer.as_ref()).await?;
    let parties = login.parties().clone();
    introduce(&parties, format);
    render::talk(&format!("To log in to `{}`, go to:\n{}", target.server(), login.url()));
    if !args.no_browser && !open_browser(login.url().as_str()) {
        render::talk("No browser could be started; open the address yourself, on this machine.");
    }
    let patience = Duration::from_secs(args.timeout);
    render::talk(&format!("Waiting for the browser to come back, at most {} (Ctrl-C ends it).", seconds(patience)));
    Ok((parties, login.finish(patience).await?))
}

/// Says who takes part, before anybody goes there: only the person knows whether it is whom they expect.
fn introduce(parties: &Parties, format: Format) {
    let Parties { issuer, authorization_host, token_host } = parties;
    render::talk(&match format {
        Format::Human => format!(
            "The authorisation server is `{issuer}`: you log in at `{authorization_host}`, and the code goes to \
             `{token_host}`.\nGo on only if that is whom you expect."
        ),
        Format::Json => {
            json!({ "issuer": issuer, "authorization_host": authorization_host, "token_host": token_host }).to_string()
        }
    });
}

/// Starts the system's opener, without a shell. Whether it finds a browser only the person sees.
fn open_browser(url: &str) -> bool {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = tokio::process::Command::new(opener);
    // A browser's own talk is none of ours, and it must not end with us.
    command.env_remove(portcullis::host::approver::VARIABLE);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().is_ok()
}

fn human(server: &str, granted: &Granted) -> String {
    let width = render::width();
    let scopes = match granted.scopes.as_slice() {
        [] => "none named".to_owned(),
        scopes => shown(&scopes.join(" "), 2000),
    };
    let until = match (granted.expires, granted.renewable) {
        (Some(expires), true) => format!("{expires:.0}, then renewed by itself"),
        (Some(expires), false) => format!("{expires:.0}, then a new login is needed"),
        (None, _) => "the server says no".to_owned(),
    };
    let mut out = format!("{} to `{server}`.\n", styled(GOOD, "Logged in"));
    for (label, text) in [("by", &granted.issuer), ("for", &granted.resource), ("scopes", &scopes), ("until", &until)] {
        out.push_str(&field(2, label, text, width));
    }
    out
}

fn failed(error: &LoginError, server: &str) -> Trouble {
    let trouble = Trouble::from_error(Exit::Failed, error);
    match error {
        LoginError::NoRegistration => {
            let key = format!("`client_id = \"...\"` in [mcp_servers.{server}.oauth]");
            trouble.hint(format!("{key}; its redirect URI is http://127.0.0.1/callback, with any port"))
        }
        LoginError::Expired(_) => trouble.hint(format!("`portcullis login {server} --timeout SECONDS` waits longer")),
        LoginError::NoMetadata => trouble.hint("`portcullis tools` shows whether the server answers without one"),
        LoginError::Apart { .. } => trouble.hint(format!(
            "if you know that both belong together: `portcullis login {server} --issuer URL`, with the issuer you expect"
        )),
        LoginError::Unexpected { .. } => {
            trouble.hint("log in only if you know it; then name it with `--issuer`, or leave `--issuer` out")
        }
        LoginError::Scope(_) => Trouble { exit: Exit::Usage, ..trouble },
        LoginError::Listen(_)
        | LoginError::Discovery(_)
        | LoginError::Http(_)
        | LoginError::Issuer { .. }
        | LoginError::Endpoint { .. }
        | LoginError::Nameless(_)
        | LoginError::NoPkce
        | LoginError::Refused(_)
        | LoginError::Token(_)
        | LoginError::Answer(_)
        | LoginError::Slow { .. }
        | LoginError::Store(_) => trouble,
    }
}

/// The server that a login or logout is about, and where logins are kept.
pub(super) struct Found {
    /// The logins of this user.
    pub logins: Logins,
    /// The server.
    pub server: ResolvedServer,
}

impl Found {
    /// Looks the name up in the configuration.
    pub(super) fn new(global: &Global, name: &str) -> Result<Self, Trouble> {
        let places = setup::places()?;
        let server = find(&setup::resolve(global, &places), name)?;
        let logins = local_logins(&places).ok_or_else(|| {
            Trouble::new(Exit::Failed, "there is no place to keep logins in").hint("set HOME or XDG_STATE_HOME")
        })?;
        Ok(Self { logins, server })
    }

    fn target(&self) -> Result<Target, Trouble> {
        let server = &self.server;
        if let Err(why) = &server.enabled {
            return Err(Trouble::new(
                Exit::Usage,
                format!("server `{}` is disabled: {}", server.name, shown(why, 500)),
            ));
        }
        Target::of(server, &variable).map_err(|error| no_oauth(&error))
    }
}

/// A variable of our environment; one that is not Unicode counts as not set, and so does the approver key.
pub(super) fn variable(name: &str) -> Option<String> {
    portcullis::host::approver::variable(name)
}

/// Says why a server is not logged in to.
pub(super) fn no_oauth(error: &NoOauth) -> Trouble {
    let trouble = Trouble::from_error(Exit::Usage, error);
    match error {
        NoOauth::OwnToken { key, .. } => trouble.hint(format!("remove `{key}` to log in instead")),
        NoOauth::NotHttp(_) | NoOauth::OtherAuth(_) | NoOauth::Variable { .. } | NoOauth::Url { .. } => trouble,
    }
}

fn find(resolved: &Resolved, name: &str) -> Result<ResolvedServer, Trouble> {
    let server = ServerName::parse(name).ok().and_then(|name| resolved.servers.get(&name));
    if let Some(server) = server {
        return Ok(server.clone());
    }
    let trouble = Trouble::new(Exit::Usage, format!("no server `{}` is configured", shown(name, 64)));
    Err(match resolved.closest_server(name) {
        Some(close) => trouble.hint(format!("did you mean `{close}`?")),
        None => trouble.hint("`portcullis config show` lists the servers"),
    })
}
