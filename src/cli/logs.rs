//! What the process says about itself while it runs: to stderr, never to stdout.

use tracing::Level;
use tracing_subscriber::filter::{EnvFilter, FilterExt as _, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use super::args::Global;
use super::exit::{Exit, Trouble};
use super::render;

/// The variable with a filter of its own, as in `info,portcullis::host=debug`.
const VARIABLE: &str = "PORTCULLIS_LOG";

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
    tracing_subscriber::registry().with(lines.with_filter(filter.and(discreet))).init();
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
