use std::process::ExitCode;

use weir_datapath::{ApplyError, Mode};
use weir_ebpf::Ebpf;
use weir_trials::Backend;

/// The eBPF backend for the shared trials.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EbpfPrograms;

impl Backend for EbpfPrograms {
    type Datapath = Ebpf;

    fn open(self, mode: Mode) -> Result<Ebpf, ApplyError> {
        Ebpf::open(mode)
    }

    fn disturbances(self) -> Vec<String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/datapath/disturb.sh");
        let names = ["forward4", "config", "*"];
        names.map(|name| format!("sh {script} {name}")).to_vec()
    }

    fn guard_disturbances(self) -> Vec<String> {
        Vec::new()
    }

    fn counts_terminated(self) -> bool {
        false
    }
}

/// The trials that need a part of the datapath that does not exist: reports of dropped packets, the
/// guard, and connections that a conntrack helper expects. docs/reference/ebpf.md lists them.
const MISSING: [&str; 15] = [
    "answers_on_cut_connections_are_reported",
    "an_expected_connection_ends_with_its_master",
    "in_audit_mode_denials_pass_and_are_reported",
    "one_source_cannot_hide_the_drops_of_another",
    "false_source_addresses_cannot_hide_drops",
    "a_bound_pod_cannot_forge_its_source",
    "a_bound_pod_on_a_bridge_cannot_forge_its_source",
    "a_forged_packet_joins_no_established_flow",
    "only_bound_links_are_checked_for_forged_sources",
    "forged_sources_are_reported",
    "forged_sources_are_counted",
    "the_guard_survives_a_restart_and_is_repaired",
    "a_pod_cannot_pose_as_another_through_a_tunnel",
    "pods_cannot_send_to_tunnels_of_nodes",
    "replies_to_the_port_of_a_tunnel_pass",
];

pub(crate) fn main() -> ExitCode {
    weir_trials::main_with_bpf(|| {
        let all = weir_trials::trials("ebpf", EbpfPrograms).into_iter();
        let is_missing = |name: &str| MISSING.iter().any(|missing| name.ends_with(missing));
        all.filter(|trial| !is_missing(trial.name())).collect()
    })
}
