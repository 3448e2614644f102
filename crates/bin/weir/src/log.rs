use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing::{Metadata, level_filters::LevelFilter};
use tracing_subscriber::{filter::filter_fn, layer::SubscriberExt, util::SubscriberInitExt};

/// The forms of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

impl LogFormat {
    /// Sends what is logged to standard error from now on.
    pub(crate) fn start(self) {
        let log = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::INFO)
            .with_target(false)
            .with_ansi(io::stderr().is_terminal())
            // Nobody may read it any more; telling them so would end the process.
            .log_internal_errors(false)
            .with_writer(io::stderr);
        let telling = filter_fn(|metadata| !is_about_a_bypass(metadata));
        match self {
            LogFormat::Text => log.finish().with(telling).init(),
            LogFormat::Json => log.json().flatten_event(true).finish().with(telling).init(),
        }
    }
}

/// Whether it is what kube says at each connection to a server that it does not verify. That is said once, by whoever makes its client. The other
/// warning from there names a path.
fn is_about_a_bypass(metadata: &Metadata<'_>) -> bool {
    metadata.target() == "kube_client::client::tls::rustls_tls"
        && metadata.fields().field("path").is_none()
}
