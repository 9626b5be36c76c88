//! What the process says about itself while it runs: to stderr, never to stdout.

use std::sync::OnceLock;

use portcullis::adapters::telemetry::listens;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{EnvFilter, FilterExt as _, FilterFn, LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

use super::args::Global;
use super::exit::{Exit, Trouble};
use super::render;

/// The variable with a filter of its own, as in `info,portcullis::host=debug`.
const VARIABLE: &str = "PORTCULLIS_LOG";

/// Who listens to spans, and to which.
type Listener = Box<dyn Layer<Registry> + Send + Sync>;
type Which = FilterFn<fn(&Metadata<'_>) -> bool>;

/// The place for a listener that is known only when the configuration is read.
static PLACE: OnceLock<Place> = OnceLock::new();

struct Place {
    listener: reload::Handle<Option<Listener>, Registry>,
    which: reload::Handle<Which, Registry>,
}

/// Lets somebody listen to what calls tell of themselves, and to nothing else, from now on.
pub(crate) fn listen(listener: Listener) {
    let Some(place) = PLACE.get() else { return };
    let every: Which = FilterFn::new(listens as fn(&Metadata<'_>) -> bool);
    let placed = place.listener.reload(Some(listener)).and_then(|()| place.which.reload(every));
    if let Err(error) = placed {
        tracing::warn!(%error, "nobody listens to spans, so none are sent");
    }
}

/// Starts logging. `usual` is the level where no flag and no variable sets one.
pub(crate) fn start(global: &Global, usual: &'static str) -> Result<(), Trouble> {
    let level = match (global.quiet, global.verbose) {
        (true, _) => "error",
        (false, 0) => usual,
        (false, 1) => "info",
        (false, _) => "debug",
    };
    let wanted = std::env::var(VARIABLE).ok().filter(|filter| !filter.is_empty());
    let filter = match &wanted {
        Some(filter) => EnvFilter::builder().parse(filter).map_err(|error| {
            let trouble = Trouble::from_error(Exit::Usage, &error);
            Trouble { what: format!("the variable {VARIABLE} holds no log filter: {}", trouble.what), ..trouble }
                .hint(format!("for example {VARIABLE}=info,portcullis::host=debug"))
        })?,
        None => EnvFilter::new(level),
    };
    let discreet = filter_fn(|meta| discreet(meta.target(), *meta.level()));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(render::stderr_has_color())
        .with_target(wanted.is_some() || global.verbose > 1)
        .without_time();
    let none: Which = FilterFn::new((|_| false) as fn(&Metadata<'_>) -> bool).with_max_level_hint(LevelFilter::OFF);
    let (nobody, listener) = reload::Layer::new(None::<Listener>);
    let (to_nothing, which) = reload::Layer::new(none);
    let subscriber = tracing_subscriber::registry().with(nobody.with_filter(to_nothing));
    subscriber.with(lines.with_filter(filter.and(discreet))).init();
    let _first = PLACE.set(Place { listener, which });
    Ok(())
}

/// Whether a line of this origin holds nothing that passes through us; no filter may turn the others on.
///
/// Ours never quote. Of the libraries below us the one for the protocol quotes whole messages at every level, warnings
/// included, and the one for certificates speaks of no server (whatever matters of them is reported by us); those for HTTP and TLS tell headers and addresses below `warn`.
fn discreet(target: &str, level: Level) -> bool {
    let of = |name: &str| target == name || target.strip_prefix(name).is_some_and(|rest| rest.starts_with("::"));
    of("portcullis") || (!of("rmcp") && !of("rustls_platform_verifier") && level <= Level::WARN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pitfall_18_libraries_that_quote_messages_are_silent_at_any_level() {
        assert!(discreet("portcullis::upstream", Level::TRACE));
        for level in [Level::ERROR, Level::WARN, Level::TRACE] {
            assert!(!discreet("rmcp::service::client", level) && !discreet("rmcp", level));
            assert!(!discreet("rustls_platform_verifier::verification::others", level));
        }
        assert!(discreet("hyper::proto", Level::WARN) && !discreet("hyper::proto", Level::DEBUG));
        assert!(!discreet("portcullis_of_somebody_else", Level::INFO));
    }
}
