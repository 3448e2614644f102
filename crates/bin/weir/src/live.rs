//! What the kernel of this machine has, against what it should have.

use weir_datapath::{ApplyError, Datapath, Plan};
use weir_iptables::Iptables;
use weir_model::Program;
use weir_nft::Nft;

use crate::{failure::Failure, filter::Filter};

/// The steps from what is in force in this network namespace to a program; nothing if it is in force. Nothing is written.
pub(crate) fn difference(program: &Program, filter: Filter) -> Result<String, Failure> {
    match filter {
        Filter::Nftables => compare(Nft::open(weir_nft::Mode::Enforce), program),
        Filter::Iptables => compare(Iptables::open(weir_iptables::Mode::Enforce, None), program),
    }
    .map_err(|error| {
        let hint = "run it on the node, as root or with CAP_NET_ADMIN, where the agent runs";
        Failure::new(error, hint)
    })
}

fn compare<D: Datapath>(
    opened: Result<D, ApplyError>,
    program: &Program,
) -> Result<String, ApplyError> {
    let mut datapath = opened?;
    let installed = datapath.installed()?;
    let plan = datapath.replan(program, &installed);
    Ok(if plan.is_empty() { String::new() } else { plan.to_string() })
}
