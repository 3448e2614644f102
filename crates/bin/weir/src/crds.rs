use std::io::Write;

use clap::Args;
use weir_controllers::crds;

use crate::{exit::Exit, failure::Failure};

/// Print the CustomResourceDefinitions of the controllers
///
/// Pipe the output to `kubectl apply -f -`. If the definition of a kind is already installed, for
/// example by the operator that owns it, the controller uses that one. The definitions work with
/// API servers from 1.16 on. Some validation rules are written in CEL, which API servers evaluate
/// from 1.25 on. Use `kubectl apply --validate=false` for a server older than 1.23, which does not
/// know the field.
#[derive(Args)]
#[command(after_help = "Example:\n  weir crds --only memcached | kubectl apply -f -")]
pub(crate) struct CrdsCommand {
    /// Print only the definitions of this controller
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

impl CrdsCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let only = self.only.as_deref();
        let is_selected = |crd: &&crds::Crd| only.is_none_or(|only| only == crd.controller);
        let mut all = crds::ALL.iter().filter(is_selected).peekable();
        if all.peek().is_none() {
            let mut names: Vec<&str> = crds::ALL.iter().map(|crd| crd.controller).collect();
            names.dedup();
            let what = format!("no controller `{}` has definitions", only.unwrap_or_default());
            return Err(Failure::new(what, format!("use one of: {}", names.join(", "))).into());
        }
        for (count, crd) in all.enumerate() {
            let line = if count > 0 { "---\n" } else { "" };
            write!(out, "{line}{}", crd.yaml)?;
        }
        Ok(Exit::Yes)
    }
}
