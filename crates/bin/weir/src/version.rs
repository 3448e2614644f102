use std::io::Write;

use clap::Args;
use serde::Serialize;

use crate::{
    exit::Exit,
    present::{self, Format, Schema},
};

/// Print the version, the commit and the build
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
    /// The commit of the sources, unless they were built without a repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<&'static str>,
    build: Build,
}

/// How the binary was built. There is no time, so that equal sources give equal binaries.
#[derive(Serialize)]
struct Build {
    target: &'static str,
    profile: &'static str,
    rustc: &'static str,
}

/// The number of characters of a commit that text output shows.
const SHORT_COMMIT: usize = 12;

impl VersionCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let version = env!("CARGO_PKG_VERSION");
        let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
        let commit = option_env!("WEIR_COMMIT");
        let build = Build {
            target: env!("WEIR_TARGET"),
            profile: env!("WEIR_PROFILE"),
            rustc: env!("WEIR_RUSTC"),
        };
        match self.output.structured() {
            None => {
                let commit =
                    commit.map_or("unknown", |text| text.get(..SHORT_COMMIT).unwrap_or(text));
                writeln!(out, "weir {version} {platform}")?;
                writeln!(out, "commit {commit}")?;
                writeln!(out, "build {} {}, {}", build.target, build.profile, build.rustc)?;
            }
            Some(form) => {
                let output = VersionOutput { version, platform, commit, build };
                present::value(out, form, Schema::Version, &output)?;
            }
        }
        Ok(Exit::Yes)
    }
}
