use std::io::Write;

use clap::Args;
use serde::Serialize;

use crate::{
    exit::Exit,
    present::{self, Format, Schema},
};

/// Print the version
#[derive(Args)]
#[command(after_help = "Example:\n  weir version -o json")]
pub(crate) struct VersionCommand {
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

#[derive(Serialize)]
struct VersionOutput {
    version: &'static str,
    platform: String,
}

impl VersionCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let version = env!("CARGO_PKG_VERSION");
        let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
        match self.output.structured() {
            None => writeln!(out, "weir {version} {platform}")?,
            Some(form) => {
                let output = VersionOutput { version, platform };
                present::value(out, form, Schema::Version, &output)?;
            }
        }
        Ok(Exit::Yes)
    }
}
