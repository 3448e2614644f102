use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use tracing::{Metadata, level_filters::LevelFilter};
use tracing_subscriber::{
    filter::{Targets, filter_fn},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// The log of a long-running command.
#[derive(Args)]
pub(crate) struct LogArgs {
    /// The format of the log
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
    /// The minimum level to log
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "info")]
    log_level: LogLevel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogArgs {
    /// Starts logging to standard error.
    pub(crate) fn start(&self) {
        let level = match self.log_level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        // The HTTP and Kubernetes libraries log every request at info.
        let libraries =
            if level > LevelFilter::INFO { level } else { level.min(LevelFilter::WARN) };
        let levels = Targets::new().with_target("weir", level).with_default(libraries);
        let log = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_target(false)
            .with_ansi(io::stderr().is_terminal())
            // Standard error may be closed, and a report about that would panic.
            .log_internal_errors(false)
            .with_writer(io::stderr);
        let filter = filter_fn(|metadata| !is_tls_warning(metadata));
        match self.log_format {
            LogFormat::Text => log.finish().with(levels).with(filter).init(),
            LogFormat::Json => {
                log.json().flatten_event(true).finish().with(levels).with(filter).init()
            }
        }
        tracing::debug!(version = env!("CARGO_PKG_VERSION"), "log started");
    }
}

/// Whether this is the warning of kube about a server whose certificate it does not verify. kube
/// repeats it for each connection; weir logs its own when it creates the client. The other warning
/// of that module has a `path`.
fn is_tls_warning(metadata: &Metadata<'_>) -> bool {
    metadata.target() == "kube_client::client::tls::rustls_tls"
        && metadata.fields().field("path").is_none()
}
