//! The CNI plugin behind real plugins, with a real agent, in network namespaces.
//!
//! This program is the plugin, too: a runtime that starts it finds `CNI_COMMAND` set.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod chain;
mod failure;
mod first;
mod namespace;
mod node;
mod runtime;

use std::{
    env, io,
    process::{self, ExitCode},
};

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if env::var_os("CNI_COMMAND").is_some() {
        process::exit(plugin().into());
    }
    let arguments = Arguments::from_args();
    if !arguments.list
        && let Err(error) = weir_lab::enter()
    {
        eprintln!("error: {error}\nhint: {}", error.hint().unwrap_or("run the tests as root"));
        return ExitCode::FAILURE;
    }
    let trials = vec![
        trial("the_first_packets_behind_a_bridge_are_judged", first::behind_a_bridge),
        trial("the_first_packets_behind_ptp_are_judged", first::behind_ptp),
        trial("the_first_packets_are_judged_with_iptables", first::with_iptables),
        trial("no_packet_slips_in_once_add_is_done", first::hammered),
        trial("without_an_agent_a_pod_is_refused_or_allowed", failure::no_agent),
        trial("an_agent_that_is_stopped_is_not_waited_for_longer_than_that", failure::stopped),
        trial("an_agent_that_restarts_is_waited_for", failure::restarted),
        trial("a_pod_that_comes_late_is_waited_for", failure::late),
        trial("an_older_pod_of_the_same_name_does_not_do", failure::recreated),
        trial("check_del_gc_and_status", chain::verbs),
        trial("an_address_belongs_to_the_pod_that_got_it_last", chain::reused),
        trial("many_pods_at_once", chain::many),
        trial(
            "an_installed_plugin_works_and_an_uninstalled_one_leaves_a_working_chain",
            chain::installed,
        ),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn plugin() -> u8 {
    weir_cni::run(weir_cni::Call {
        arguments: Vec::new(),
        variable: &|name| env::var(name).ok(),
        input: &mut io::stdin(),
        output: &mut io::stdout(),
        messages: &mut io::stderr(),
    })
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}
