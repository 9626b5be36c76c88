//! `[telemetry]` -> traces and metrics that are sent.

use std::collections::BTreeSet;

use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;

use super::network::client_builder;
use crate::adapters::telemetry::{Settings, Telemetry};
use crate::config::Resolved;
use crate::config::endpoint::{BadEndpoint, header_name, header_value};
use crate::config::template::MissingVariable;

/// Why nothing is sent although the configuration says so. Holds no value of a header and no address.
#[derive(Debug, thiserror::Error)]
pub enum NotSent {
    /// A header names a variable that is not there.
    #[error("the header `{0}` of `[telemetry]` cannot be made")]
    Variable(String, #[source] MissingVariable),
    /// What a variable holds is no value of a header.
    #[error("a header of `[telemetry]` cannot be made")]
    Header(#[from] BadEndpoint),
    /// No client could be made.
    #[error("there is no HTTP client for `[telemetry]`: {0}")]
    Client(String),
}

/// Begins to send what `[telemetry]` says; none: it says nothing. `variable` reads the environment, once. Needs a runtime.
///
/// A call never fails for want of telemetry, so neither should a host: whoever starts one tells the error and goes on.
///
/// # Errors
/// [`NotSent`]; nothing is sent then.
pub fn start(resolved: &Resolved, variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Telemetry>, NotSent> {
    let Some(wanted) = &resolved.telemetry else { return Ok(None) };
    let mut headers = HeaderMap::new();
    for (name, value) in &wanted.headers {
        let value = value.resolve(variable).map_err(|missing| NotSent::Variable(name.clone(), missing))?;
        let name = header_name(name)?;
        headers.insert(name.clone(), header_value(&name, &value)?);
    }
    let agent = concat!("portcullis/", env!("CARGO_PKG_VERSION"));
    let builder = client_builder().redirect(Policy::none()).referer(false).user_agent(agent);
    // A proxy is no part of this machine.
    let plain = wanted.endpoint.scheme() == "http";
    let builder = if plain { builder.no_proxy().tls_certs_only([]) } else { builder.https_only(true) };
    let client = builder.build().map_err(|error| NotSent::Client(error.without_url().to_string()))?;
    let settings = Settings {
        endpoint: wanted.endpoint.clone(),
        headers,
        traces: wanted.traces,
        metrics: wanted.metrics,
        interval: wanted.interval,
        timeout: wanted.timeout,
        sampling: wanted.sampling,
        service_name: wanted.service_name.clone(),
        resource: wanted.resource.clone(),
        servers: resolved.servers.keys().map(|name| name.as_str().to_owned()).collect::<BTreeSet<_>>(),
    };
    Ok(Some(Telemetry::start(settings, client)))
}
