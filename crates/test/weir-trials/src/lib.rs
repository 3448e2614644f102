//! What every backend in a Linux kernel is put through, with real packets in network namespaces; a dev-dependency only.
//!
//! ```text
//!   random       clusters drawn from seeds        ┐
//!   cluster      the usual one: two nodes, four pods ├─► agreement, conforms, established, judged, icmp, moving ─► trials(name, backend)
//!   node         one node, and what is run on it  │
//!   traffic      packets that come all the time   ┘
//! ```
//!
//! A backend says how it is opened and how it can be disturbed; what it writes is its own business, and has tests of its own.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests, for others to run")]

mod agreement;
pub mod cluster;
mod conforms;
mod established;
mod icmp;
mod judged;
mod moving;
pub mod node;
pub mod random;
pub mod traffic;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use weir_datapath::{ApplyError, Datapath, Mode};

/// A backend under test.
pub trait Backend: Copy + Send + Sync + 'static {
    /// What it is.
    type Datapath: Datapath<Planner: Send> + Send;

    /// Opens it in the network namespace of this thread.
    fn open(self, mode: Mode) -> Result<Self::Datapath, ApplyError>;

    /// Commands, with words between spaces, each of which changes something of the backend's that is always there. The first
    /// lets nothing pass that did not before, and leaves what is remembered of connections that were cut.
    fn disturbances(self) -> Vec<String>;
}

/// A test of something, and its name.
pub type Named<T> = (&'static str, fn(T));

/// All trials of a backend, by name.
pub fn trials<B: Backend>(name: &str, backend: B) -> Vec<Trial> {
    let all: Vec<Named<B>> = vec![
        ("engine_oracle_and_kernel_agree_on_random_clusters", agreement::on_random_clusters),
        (
            "oracle_and_kernel_agree_on_bridges_in_random_clusters",
            agreement::on_bridges_in_random_clusters,
        ),
        (
            "change_by_change_the_kernel_has_what_a_fresh_start_would_put_there",
            agreement::change_by_change,
        ),
        ("what_a_policy_forbids_is_cut_between_two_pods_of_a_node", established::on_one_node),
        ("what_a_policy_forbids_is_cut_from_another_node", established::from_another_node),
        ("what_a_policy_forbids_is_cut_to_another_node", established::to_another_node),
        ("what_was_cut_stays_cut_after_a_restart_and_a_repair", established::stays_cut),
        ("answers_of_what_was_cut_are_reported", established::answers_are_reported),
        ("echo_needs_a_rule_without_ports", icmp::echo_needs_a_rule_without_ports),
        ("echo_is_judged_on_the_way_out_too", icmp::echo_on_the_way_out),
        ("echo_needs_a_rule_without_ports_among_many", icmp::echo_among_many),
        ("admin_rules_without_ports_are_about_echo_too", icmp::admin_rules),
        ("neighbour_discovery_is_no_way_out", icmp::neighbour_discovery_is_no_way_out),
        ("port_unreachable_passes_for_what_is_allowed", icmp::port_unreachable),
        ("packet_too_big_passes_for_what_is_allowed", icmp::packet_too_big),
        ("a_pod_and_its_node_always_reach_each_other", judged::a_pod_and_its_node),
        ("a_pod_always_reaches_itself", judged::a_pod_and_itself),
        ("what_has_no_pod_at_either_end_is_not_judged", judged::no_pod_at_either_end),
        ("a_pod_that_moves_between_sets_is_judged_all_the_while", moving::between_sets),
        ("a_pod_that_is_no_longer_passed_on_is_judged_all_the_while", moving::passed_on),
        ("in_audit_mode_denials_pass_and_are_reported", judged::in_audit_mode),
        ("a_restart_in_another_mode_goes_over_to_it", judged::another_mode),
    ];
    let trial = |(what, test): Named<B>| {
        Trial::test(format!("{name}::{what}"), move || {
            test(backend);
            Ok(())
        })
    };
    let conforms = backend.disturbances().into_iter().enumerate().map(|(seed, disturbance)| {
        Trial::test(format!("{name}::it_does_what_every_datapath_must_{seed}"), move || {
            conforms::check(backend, seed, disturbance);
            Ok(())
        })
    });
    all.into_iter().map(trial).chain(conforms).collect()
}

/// Runs trials, where namespaces can be made. Must be called before there is a second thread.
pub fn main(trials: impl FnOnce() -> Vec<Trial>) -> ExitCode {
    let arguments = Arguments::from_args();
    // Without rights there is nothing to be tested, which is not the same as a success.
    if !arguments.list
        && let Err(error) = weir_lab::enter()
    {
        eprintln!("error: {error}\nhint: {}", error.hint().unwrap_or("run the tests as root"));
        return ExitCode::FAILURE;
    }
    libtest_mimic::run(&arguments, trials()).exit_code()
}
