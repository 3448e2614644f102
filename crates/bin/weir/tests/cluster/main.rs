//! Agents on nodes of network namespaces, with a real API server, real rules and real packets.
//! `cargo xtask cluster build` provides the server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod cases;
#[path = "../../../../edge/weir-relay/tests/relay/certificate.rs"]
mod certificate;
mod conditions;
mod controllers;
mod deploy;
mod faults;
mod first;
mod kubelet;
mod life;
#[path = "../cni/namespace.rs"]
mod namespace;
mod objects;
mod partition;
#[path = "../agent/prober.rs"]
mod prober;
mod relay;
#[allow(dead_code, reason = "a benchmark needs more of it")]
mod relay_process;
#[path = "../cni/runtime.rs"]
mod runtime;
mod shop;
mod site;
mod trouble;
mod upgrade;

use std::{env, process::ExitCode};

use weir_trials::trial;

fn main() -> ExitCode {
    // Runtimes start this program as the plugin.
    if env::var_os("CNI_COMMAND").is_some() {
        return runtime::run_plugin();
    }
    let trials = vec![
        trial("packaged_agents_work", deploy::agents),
        trial("packaged_controllers_and_the_opflex_agent_work", controllers::as_packaged),
        trial("shared_cases_hold_on_one_node", cases::on_one_node),
        trial("shared_cases_hold_across_two_nodes", cases::across_two_nodes),
        trial("an_agent_needs_only_the_permissions_of_the_manifests", life::in_a_cluster),
        trial("failures_of_the_api_server_change_no_verdict", trouble::no_verdict_changes),
        trial("an_upgrade_of_a_definition_changes_no_verdict", upgrade::changes_no_verdict),
        trial(
            "conditions_say_where_policies_are_in_force",
            conditions::say_where_policies_are_in_force,
        ),
        trial("a_relay_serves_agents_with_tokens_of_the_api_server", relay::serves_agents),
        trial("broken_answers_of_the_api_server_change_no_rule", faults::change_no_rule),
        trial("rules_apply_to_the_first_packets_of_two_hundred_pods", first::two_hundred),
    ];
    weir_trials::main(|| trials)
}
