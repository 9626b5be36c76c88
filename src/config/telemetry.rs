//! `[telemetry]`: where traces and metrics of calls are sent.
//!
//! Said whole by the most trusted layer that has it, for it says where knowledge of a person's calls goes, and whoever
//! watches must not be blinded by whom they watch. A project has no say at all. The environment has none either: `OTEL_*`
//! variables are set by whoever starts the program, and that may be a project's file.

use std::collections::BTreeMap;
use std::time::Duration;

use http::header::HeaderValue;
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

use super::endpoint;
use super::parse::join;
use super::problem::Problem;
use super::stack::Layer;
use super::template::Template;
use crate::model::here::is_private;
use crate::model::layer::{LayerKind, LayerRef};

/// The most headers.
const MAX_HEADERS: usize = 32;
/// The most attributes of the resource.
const MAX_ATTRIBUTES: usize = 32;
/// The longest key or value of an attribute, in bytes.
const MAX_ATTRIBUTE: usize = 256;
/// How often metrics are sent where nobody says, in seconds: what OpenTelemetry has by default.
const DEFAULT_INTERVAL: f64 = 60.0;
/// How long one request may take where nobody says, in seconds: likewise.
const DEFAULT_TIMEOUT: f64 = 10.0;

/// `[telemetry]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TelemetryTable {
    /// The collector's address for OTLP over HTTP, without `/v1/traces` and `/v1/metrics`: `https`, or `http` on this machine. The most trusted layer that has `[telemetry]` says all of it. Not in projects.
    pub endpoint: Option<String>,
    /// Headers of every request; `${NAME}` stands for an environment variable, read when the program starts.
    pub headers: Option<BTreeMap<String, Template>>,
    /// Whether spans of calls are sent. Default `true`.
    pub traces: Option<bool>,
    /// Whether metrics are sent. Default `true`.
    pub metrics: Option<bool>,
    /// How often metrics are sent, in seconds, 1 to 3600. Spans go out within five seconds. Default 60.
    pub interval_sec: Option<f64>,
    /// How long one request may take, in seconds, at most 60. Default 10.
    pub timeout_sec: Option<f64>,
    /// How many of the calls are traced, 0 to 1. Metrics count all of them. Default 1.
    pub sampling: Option<f64>,
    /// `service.name`. Default `portcullis`.
    pub service_name: Option<String>,
    /// Further attributes of the resource, such as `deployment.environment.name`; at most 32, each of at most 256 bytes.
    pub resource: Option<BTreeMap<String, String>>,
    /// `false`: nothing is sent, whatever less trusted layers say. Default `true`.
    pub enabled: Option<bool>,
}

/// `[telemetry]` as it is in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    /// The collector's address.
    pub endpoint: Url,
    /// Headers of every request. Their values may be secrets.
    pub headers: BTreeMap<String, Template>,
    /// Whether spans are sent.
    pub traces: bool,
    /// Whether metrics are sent.
    pub metrics: bool,
    /// How often metrics are sent.
    pub interval: Duration,
    /// How long one request may take.
    pub timeout: Duration,
    /// How many of the calls are traced, 0 to 1.
    pub sampling: f64,
    /// `service.name`.
    pub service_name: String,
    /// Further attributes of the resource.
    pub resource: BTreeMap<String, String>,
    /// The layer that says so.
    pub layer: LayerRef,
}

impl TelemetryTable {
    /// Returns what is wrong: key below the table, and message.
    pub(super) fn faults(&self, kind: LayerKind) -> Vec<(String, String)> {
        let fault = |key: &str, message: &str| (key.to_owned(), message.to_owned());
        if kind == LayerKind::Project {
            return vec![fault("", "a project cannot say where telemetry goes, nor that there is none")];
        }
        let mut faults = Vec::new();
        match self.endpoint.as_deref().map(endpoint::address) {
            None if self.enabled == Some(false) => {}
            None => faults.push(fault("endpoint", "is missing")),
            // The words of a server's address; the key is another one.
            Some(Err(why)) => faults.push(fault("endpoint", &why.to_string().replace("its `url`", "it"))),
            Some(Ok(url)) if !is_private(&url) => {
                faults.push(fault("endpoint", "telemetry is not sent over plain `http`; use `https`"));
            }
            Some(Ok(_)) => {}
        }
        let headers = self.headers.iter().flatten();
        if headers.clone().count() > MAX_HEADERS {
            faults.push(fault("headers", "has more than 32 headers"));
        }
        for (name, value) in headers {
            let checked = endpoint::header_name(name).and_then(|name| match value.literal() {
                Some(value) => endpoint::header_value(&name, &value).map(|_: HeaderValue| ()),
                None => Ok(()),
            });
            faults.extend(checked.err().map(|why| (join("headers", name), why.to_string())));
        }
        let outside = |value: Option<f64>, least: f64, most: f64| {
            value.is_some_and(|value| !(value.is_finite() && (least..=most).contains(&value)))
        };
        if outside(self.interval_sec, 1.0, 3600.0) {
            faults.push(fault("interval_sec", "must lie between 1 and 3600"));
        }
        if outside(self.timeout_sec, 0.001, 60.0) {
            faults.push(fault("timeout_sec", "must be more than 0 and at most 60"));
        }
        if outside(self.sampling, 0.0, 1.0) {
            faults.push(fault("sampling", "must lie between 0 and 1"));
        }
        if self.service_name.as_deref().is_some_and(|name| !is_text(name)) {
            faults.push(fault("service_name", "must have 1 to 256 bytes and no control character"));
        }
        let resource = self.resource.iter().flatten();
        if resource.clone().count() > MAX_ATTRIBUTES {
            faults.push(fault("resource", "has more than 32 attributes"));
        }
        for (key, _) in resource.filter(|(key, value)| !is_text(key) || !is_text(value)) {
            let message = "key and value must have 1 to 256 bytes each and no control character";
            faults.push((join("resource", key), message.to_owned()));
        }
        faults
    }
}

fn is_text(text: &str) -> bool {
    (1..=MAX_ATTRIBUTE).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// Returns what is in force, if anything is.
pub(super) fn resolve(layers: &[Layer], problems: &mut Vec<Problem>) -> Option<Telemetry> {
    let tables = layers.iter().filter_map(|layer| Some((layer, layer.file.settings.telemetry.as_ref()?)));
    let tables: Vec<_> = tables.filter(|(layer, _)| layer.definer.kind() > LayerKind::Project).collect();
    let (layer, table) = tables.iter().max_by_key(|(layer, _)| layer.definer.kind()).copied()?;
    for (other, _) in tables.iter().filter(|(other, _)| !std::ptr::eq(*other, layer)) {
        let line = other.file.lines.get("telemetry").copied();
        let message = format!("has no effect: it is said whole by the {} layer", layer.definer);
        problems.push(Problem::at(&other.reference, line, "telemetry", message));
    }
    if table.enabled == Some(false) {
        return None;
    }
    let seconds = |value: Option<f64>, usual| Duration::try_from_secs_f64(value.unwrap_or(usual)).unwrap_or_default();
    Some(Telemetry {
        endpoint: endpoint::address(table.endpoint.as_deref()?).ok()?,
        headers: table.headers.clone().unwrap_or_default(),
        traces: table.traces.unwrap_or(true),
        metrics: table.metrics.unwrap_or(true),
        interval: seconds(table.interval_sec, DEFAULT_INTERVAL),
        timeout: seconds(table.timeout_sec, DEFAULT_TIMEOUT),
        sampling: table.sampling.unwrap_or(1.0),
        service_name: table.service_name.clone().unwrap_or_else(|| "portcullis".to_owned()),
        resource: table.resource.clone().unwrap_or_default(),
        layer: layer.reference.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Places, Resolved, SessionSources, load};

    fn resolved(layers: &[(LayerKind, &str)]) -> Resolved {
        load(&Places::nowhere(), &SessionSources::of_texts(layers, &std::env::temp_dir()))
    }

    const USER: &str = "[telemetry]\nendpoint = \"https://a.example/otlp\"\nsampling = 0.25\n";
    const ORGANISATION: &str = "[telemetry]\nendpoint = \"https://b.example\"\n";

    #[test]
    fn what_is_not_said_is_the_usual() {
        let telemetry = resolved(&[(LayerKind::User, USER)]).telemetry.unwrap();
        assert_eq!((telemetry.endpoint.as_str(), telemetry.sampling), ("https://a.example/otlp", 0.25));
        assert_eq!((telemetry.traces, telemetry.metrics), (true, true));
        assert_eq!((telemetry.interval.as_secs(), telemetry.timeout.as_secs()), (60, 10));
        assert_eq!(telemetry.service_name, "portcullis");
        assert!(resolved(&[]).telemetry.is_none());
    }

    #[test]
    fn the_most_trusted_layer_says_all_of_it() {
        let found = resolved(&[(LayerKind::Organisation, ORGANISATION), (LayerKind::User, USER)]);
        let telemetry = found.telemetry.unwrap();
        assert_eq!((telemetry.endpoint.host_str(), telemetry.sampling), (Some("b.example"), 1.0));
        assert!(found.problems.iter().any(|problem| problem.to_string().contains("has no effect")));
    }

    #[test]
    fn only_a_layer_as_trusted_switches_it_off() {
        let off = "[telemetry]\nenabled = false\n";
        let by = |kind| resolved(&[(LayerKind::Organisation, ORGANISATION), (kind, off)]).telemetry;
        assert!(by(LayerKind::Managed).is_none(), "a more trusted layer is not heard");
        assert!(by(LayerKind::User).is_some() && by(LayerKind::Session).is_some(), "whom they watch blinds them");
    }

    #[test]
    fn a_project_neither_sends_nor_silences() {
        for text in [USER, "[telemetry]\nenabled = false\n"] {
            let found = resolved(&[(LayerKind::User, USER), (LayerKind::Project, text)]);
            assert_eq!(found.telemetry.unwrap().layer.kind(), LayerKind::User);
            assert!(found.problems.iter().chain(&found.warnings).any(|told| told.to_string().contains("telemetry")));
        }
        assert!(resolved(&[(LayerKind::Project, USER)]).telemetry.is_none());
    }

    #[test]
    fn a_table_that_cannot_work_makes_its_layer_unreadable_and_quotes_no_secret() {
        let good = "endpoint = \"https://a.example\"\n";
        for bad in [
            "sampling = 1.0\n".to_owned(),
            "endpoint = \"http://a.example\"\n".to_owned(),
            "endpoint = \"https://me:hush@a.example\"\n".to_owned(),
            format!("{good}headers = {{ \"content-type\" = \"x\" }}\n"),
            format!("{good}headers = {{ \"x-key\" = \"hush\\n\" }}\n"),
            format!("{good}headers = {{ \"x-key\" = \"hush${{\" }}\n"),
            format!("{good}interval_sec = 0.5\n"),
            format!("{good}timeout_sec = 0\n"),
            format!("{good}timeout_sec = nan\n"),
            format!("{good}sampling = 1.5\n"),
            format!("{good}service_name = \"\"\n"),
            format!("{good}resource = {{ a = \"{}\" }}\n", "x".repeat(257)),
            format!("{good}protocol = \"grpc\"\n"),
        ] {
            let found = resolved(&[(LayerKind::User, &format!("[telemetry]\n{bad}"))]);
            assert!(found.telemetry.is_none() && !found.refusals.is_empty(), "{bad}");
            assert!(!found.refusals[0].text.contains("hush"), "{}", found.refusals[0].text);
        }
        let here = resolved(&[(LayerKind::User, "[telemetry]\nendpoint = \"http://127.0.0.1:4318\"\n")]);
        assert!(here.telemetry.is_some());
    }
}
