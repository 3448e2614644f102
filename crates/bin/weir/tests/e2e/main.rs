//! weir in a cluster with real nodes: the chart, installed by helm, with images of this tree.
//!
//! The tests share one cluster, so they run one after the other. Each installs what it needs. They are
//! in an order in which most find it installed.
//! This binary is also part of the image: as the CNI plugin, and as a helper in the pods of the tests.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]
#![allow(clippy::print_stdout, reason = "the helper reports to its test")]

mod cases;
#[path = "../../../../edge/weir-relay/tests/relay/certificate.rs"]
mod certificate;
mod helper;
mod install;
mod life;
mod observe;
mod pods;
mod relay;
mod site;
mod starts;
mod traffic;
mod waiting;

use std::{
    env,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Instant,
};

use libtest_mimic::{Arguments, Trial};
use site::Site;

fn main() -> ExitCode {
    let called = env::args().next().unwrap_or_default();
    match called.rsplit('/').next() {
        Some("weir-cni") => helper::run_plugin(),
        Some("helper") => helper::run(),
        _ => run_tests(),
    }
}

type Test = (&'static str, fn(&mut Site));

const TESTS: &[Test] = &[
    ("a_default_deny_holds_once_the_chart_is_installed", install::default_deny),
    ("upstream_policies_hold_between_containers_with_nftables", cases::with_nftables),
    ("services_host_ports_and_host_networks", traffic::services_with_nftables),
    ("kubelet_probes_pass_a_default_deny", traffic::probes_with_nftables),
    ("with_the_cni_plugin_no_first_packet_leaks", starts::with_cni),
    ("replaced_and_killed_agents_keep_all_verdicts", life::replaced_and_killed_agents),
    ("rules_stay_while_the_api_server_is_down", life::api_server_down),
    ("a_restarted_node_enforces_before_pods_start", life::node_restart),
    ("an_agent_that_waits_for_another_is_not_ready", waiting::two_agents),
    ("verdicts_follow_policies_while_relays_restart", relay::rolling_restart),
    ("without_the_cni_plugin_first_packets_are_measured", starts::without_cni),
    ("upstream_policies_hold_between_containers_with_ebpf", cases::with_ebpf),
    ("services_host_ports_and_kubelet_probes_with_ebpf", traffic::with_ebpf),
    ("replaced_and_killed_agents_keep_all_verdicts_with_ebpf", life::with_ebpf),
    ("an_uninstall_of_ebpf_leaves_nothing_on_the_nodes", install::uninstall_ebpf),
    ("upstream_policies_hold_between_containers_with_iptables", cases::with_iptables),
    ("services_host_ports_and_kubelet_probes_with_iptables", traffic::with_iptables),
    ("replaced_and_killed_agents_keep_all_verdicts_with_iptables", life::with_iptables),
    ("an_uninstall_of_iptables_leaves_nothing_on_the_nodes", install::uninstall_iptables),
    ("kubectl_weir_installs_upgrades_and_uninstalls", install::kubectl_weir),
    ("one_command_finds_the_policy_that_refuses", observe::one_command),
];

fn run_tests() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let site: Arc<Mutex<Option<Site>>> = Arc::default();
    let trial = |(name, test): &Test| {
        let (site, test) = (site.clone(), *test);
        Trial::test(*name, move || {
            let mut site = site.lock().unwrap_or_else(|broken| broken.into_inner());
            let site = site.get_or_insert_with(Site::start);
            let start = Instant::now();
            test(site);
            eprint!("{:.1} s ", start.elapsed().as_secs_f32());
            Ok(())
        })
    };
    let conclusion = libtest_mimic::run(&arguments, TESTS.iter().map(trial).collect());
    let last = site.lock().unwrap_or_else(|broken| broken.into_inner()).take();
    // Not a trial: it needs the end of all others.
    let is_clean = last.is_none_or(Site::end);
    if is_clean { conclusion.exit_code() } else { ExitCode::FAILURE }
}
