use std::io::Write;

use clap::Args;
use weir_controllers::crds;

use crate::{controller::ControllerName, exit::Exit};

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
    only: Option<ControllerName>,
}

impl CrdsCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let only = self.only.map(ControllerName::as_str);
        let all = crds::ALL.iter().filter(|crd| only.is_none_or(|only| only == crd.controller));
        let mut count = 0;
        for crd in all {
            let line = if count > 0 { "---\n" } else { "" };
            write!(out, "{line}{}", crd.yaml)?;
            count += 1;
        }
        if let (Some(only), 0) = (only, count) {
            anstream::eprintln!("the controller {only} needs no definitions");
        }
        Ok(Exit::Yes)
    }
}
