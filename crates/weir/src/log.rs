use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;

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
        match self {
            LogFormat::Text => log.init(),
            LogFormat::Json => log.json().flatten_event(true).init(),
        }
    }
}
