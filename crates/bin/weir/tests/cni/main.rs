//! The CNI plugin behind real plugins, with a real agent, in network namespaces.
//!
//! This program is also the plugin: a runtime starts it with `CNI_COMMAND` set.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod chain;
mod failure;
mod first;
mod forged;
mod namespace;
mod node;
mod runtime;

use std::{env, process::ExitCode};

use weir_trials::trial;

fn main() -> ExitCode {
    if env::var_os("CNI_COMMAND").is_some() {
        return runtime::run_plugin();
    }
    let trials = vec![
        trial("rules_apply_to_the_first_packets_behind_a_bridge", first::behind_a_bridge),
        trial("rules_apply_to_the_first_packets_behind_ptp", first::behind_ptp),
        trial("iptables_rules_apply_to_the_first_packets", first::with_iptables),
        trial("no_denied_packet_arrives_after_add", first::hammered),
        trial("an_added_pod_cannot_forge_its_source", forged::with_nftables),
        trial("an_added_pod_cannot_forge_its_source_with_iptables", forged::with_iptables),
        trial("on_failure_decides_without_an_agent", failure::no_agent),
        trial("a_stopped_agent_does_not_block_longer_than_the_timeout", failure::stopped),
        trial("add_waits_for_a_restarting_agent", failure::restarted),
        trial("add_waits_for_a_pod_that_the_source_reports_late", failure::late),
        trial("an_older_pod_of_the_same_name_does_not_count", failure::recreated),
        trial("check_del_gc_and_status_work", chain::verbs),
        trial("an_address_belongs_to_the_pod_that_was_added_last", chain::reused),
        trial("many_pods_start_concurrently", chain::many),
        trial(
            "an_installed_plugin_works_and_an_uninstalled_one_leaves_a_working_chain",
            chain::installed,
        ),
    ];
    weir_trials::main(|| trials)
}
