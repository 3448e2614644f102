use std::io::Write;

use clap::Args;
use weir_controllers::crds;

use crate::{exit::Exit, failure::Failure};

/// Print the definitions of the kinds that controllers serve
///
/// What is printed can be given to `kubectl apply -f -`. Where such a definition is installed already, as by the operator that it comes
/// from, that one is served, and this one is not needed. API servers from 1.16 on take them. Some checks are rules in CEL, which are
/// evaluated from 1.25 on; for a server before 1.23, which does not know of them, say `kubectl apply --validate=false`.
#[derive(Args)]
#[command(after_help = "Example:\n  weir crds --only memcached | kubectl apply -f -")]
pub(crate) struct Crds {
    /// Only those of one controller
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

impl Crds {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let only = self.only.as_deref();
        let is_asked_for = |crd: &&crds::Crd| only.is_none_or(|only| only == crd.controller);
        let mut all = crds::ALL.iter().filter(is_asked_for).peekable();
        if all.peek().is_none() {
            let mut names: Vec<&str> = crds::ALL.iter().map(|crd| crd.controller).collect();
            names.dedup();
            let what = format!("there are no definitions for `{}`", only.unwrap_or_default());
            return Err(
                Failure::new(what, format!("there are some for: {}", names.join(", "))).into()
            );
        }
        for (count, crd) in all.enumerate() {
            let line = if count > 0 { "---\n" } else { "" };
            write!(out, "{line}{}", crd.yaml)?;
        }
        Ok(Exit::Yes)
    }
}
