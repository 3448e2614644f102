//! Tests for every Linux backend, with real packets in network namespaces; a dev-dependency only.
//!
//! ```text
//!   random    random clusters from seeds                ┐
//!   cluster   a fixed cluster: two nodes and four pods  ├─► agreement, conforms, established,
//!   node      one node and programs that run on it      │   judged, icmp, fragments, kube_proxy, moving
//!   traffic   continuous packets                        ┘         └─► trials(name, backend)
//! ```
//!
//! A backend provides `open` and `disturbances`. Its own tests check the rules that it writes.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

mod agreement;
pub mod cluster;
mod conforms;
mod encapsulation;
mod ending;
mod established;
mod fragments;
mod group;
mod icmp;
mod judged;
mod kube_proxy;
mod moving;
mod names;
pub mod node;
pub mod random;
mod raw;
mod rejecting;
mod reports;
mod spoofing;
pub mod traffic;

use std::{
    panic::resume_unwind,
    process::{Command, ExitCode},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use libtest_mimic::{Arguments, Trial};
pub use rejecting::{Rejects, reject_trials};
use weir_datapath::{ApplyError, Datapath, Dropped, Mode};
use weir_lab::LabError;
use weir_netfilter::{PacketLog, report};

/// A backend under test.
pub trait Backend: Copy + Send + Sync + 'static {
    /// The datapath under test.
    type Datapath: Datapath<Planner: Send> + Send;

    /// Opens the datapath in the network namespace of this thread.
    fn open(self, mode: Mode) -> Result<Self::Datapath, ApplyError>;

    /// Shell-like commands, each of which changes an object that the backend always installs. The first
    /// one allows no additional packet and keeps the record of terminated connections.
    fn disturbances(self) -> Vec<String>;

    /// Commands, each of which changes an object of an installed guard.
    fn guard_disturbances(self) -> Vec<String>;

    /// Whether the datapath returns the number of connections that it terminates.
    fn counts_terminated(self) -> bool {
        true
    }

    /// Opens the reports about denied packets in the network namespace of this thread.
    fn reports(self) -> Box<dyn ReportReader> {
        Box::new(PacketLog::open(report::GROUP).unwrap())
    }

    /// The programs that write the rules of kube-proxy, for both families.
    fn iptables(self) -> [&'static str; 2] {
        ["iptables", "ip6tables"]
    }
}

/// The reports about denied packets.
pub trait ReportReader: Send {
    /// Visits the next reports. Returns without any after the timeout.
    fn receive(&mut self, timeout: Duration, visit: &mut dyn FnMut(Dropped));
}

impl ReportReader for PacketLog {
    fn receive(&mut self, timeout: Duration, visit: &mut dyn FnMut(Dropped)) {
        let note = |packet| {
            if let Some(dropped) = report::dropped(&packet) {
                visit(dropped);
            }
        };
        PacketLog::receive(self, timeout, note).unwrap();
    }
}

/// A test with its name.
pub type Named<T> = (&'static str, fn(T));

/// All tests of a backend.
pub fn trials<B: Backend>(name: &str, backend: B) -> Vec<Trial> {
    let all: Vec<Named<B>> = vec![
        ("a_connection_outlives_the_address_of_its_name", names::established),
        ("engine_oracle_and_kernel_agree_on_random_clusters", agreement::on_random_clusters),
        (
            "oracle_and_kernel_agree_on_bridges_in_random_clusters",
            agreement::on_bridges_in_random_clusters,
        ),
        (
            "after_each_change_the_kernel_has_the_rules_of_a_fresh_start",
            agreement::change_by_change,
        ),
        ("denied_connections_are_cut_between_two_pods_of_a_node", established::on_one_node),
        ("denied_connections_are_cut_from_another_node", established::from_another_node),
        ("denied_connections_are_cut_to_another_node", established::to_another_node),
        ("cut_connections_stay_cut_after_a_restart_and_a_repair", established::stays_cut),
        ("answers_on_cut_connections_are_reported", established::answers_are_reported),
        ("protocols_without_ports_are_cut", ending::other_protocols),
        ("a_running_ping_is_cut", ending::ping),
        ("a_pod_does_not_inherit_the_connections_of_its_address", ending::a_reused_address),
        ("the_nodes_own_connections_are_never_cut", ending::connections_of_the_node),
        ("equal_ports_at_both_ends_leave_the_other_direction", ending::the_same_port_at_both_ends),
        ("a_picked_up_connection_is_not_cut", ending::a_connection_that_was_picked_up),
        (
            "a_forbidden_connection_is_cut_also_if_it_was_picked_up",
            ending::a_picked_up_connection_of_a_client,
        ),
        ("an_expected_connection_ends_with_its_master", ending::an_expected_connection),
        ("echo_needs_a_rule_without_ports", icmp::echo_needs_a_rule_without_ports),
        ("egress_rules_apply_to_echo", icmp::echo_on_the_way_out),
        ("echo_needs_a_rule_without_ports_among_many_rules", icmp::echo_among_many),
        ("admin_rules_without_ports_apply_to_echo", icmp::admin_rules),
        ("neighbour_discovery_cannot_bypass_policies", icmp::neighbour_discovery),
        ("port_unreachable_passes_for_allowed_flows", icmp::port_unreachable),
        ("packet_too_big_passes_for_allowed_flows", icmp::packet_too_big),
        ("fragments_get_the_verdict_of_their_datagram", fragments::of_datagrams),
        ("extension_headers_hide_no_port", fragments::after_extension_headers),
        ("a_node_reaches_its_pods_and_policies_apply_to_their_egress", judged::a_pod_and_its_node),
        ("policies_apply_to_egress_to_the_node", judged::egress_to_the_node),
        ("denied_connections_are_cut_to_the_own_node", judged::a_connection_to_the_node_is_cut),
        ("a_pod_always_reaches_itself", judged::a_pod_and_itself),
        (
            "admin_policies_apply_to_a_pod_that_reaches_itself_through_a_service",
            judged::a_pod_and_itself_through_a_service,
        ),
        ("packets_without_a_pod_at_either_end_are_not_filtered", judged::no_pod_at_either_end),
        ("isolated_pods_hear_no_group_on_a_bridge", group::isolated_pods_hear_no_group),
        ("invalid_packets_are_dropped_by_kube_proxy", kube_proxy::invalid_packets_are_dropped),
        (
            "services_without_endpoints_are_rejected_by_kube_proxy",
            kube_proxy::services_without_endpoints_are_rejected,
        ),
        ("source_ranges_are_enforced_by_kube_proxy", kube_proxy::source_ranges_are_enforced),
        ("a_pod_that_moves_between_sets_is_always_filtered", moving::between_sets),
        ("a_pod_that_is_no_longer_passed_is_always_filtered", moving::passed_on),
        ("in_audit_mode_denials_pass_and_are_reported", judged::in_audit_mode),
        ("one_source_cannot_hide_the_drops_of_another", reports::a_flood),
        ("false_source_addresses_cannot_hide_drops", reports::false_addresses),
        ("a_restart_in_another_mode_switches_the_mode", judged::another_mode),
    ];
    let all =
        all.into_iter().map(|(what, test)| trial(format!("{name}::{what}"), move || test(backend)));
    let conforms = backend.disturbances().into_iter().enumerate().map(|(seed, disturbance)| {
        trial(format!("{name}::it_conforms_to_the_datapath_contract_{seed}"), move || {
            conforms::check(backend, seed, disturbance);
        })
    });
    all.chain(conforms).chain(guard_trials(name, backend)).collect()
}

/// The tests of a backend's guard.
fn guard_trials<B: Backend>(name: &str, backend: B) -> Vec<Trial> {
    let all: [Named<B>; 10] = [
        ("a_bound_pod_cannot_forge_its_source", spoofing::on_routed_links),
        ("a_bound_pod_on_a_bridge_cannot_forge_its_source", spoofing::on_a_bridge),
        ("a_forged_packet_joins_no_established_flow", spoofing::in_an_established_flow),
        ("only_bound_links_are_checked_for_forged_sources", spoofing::unbound_links),
        ("forged_sources_are_reported", spoofing::reports),
        ("forged_sources_are_counted", spoofing::counts),
        ("the_guard_survives_a_restart_and_is_repaired", spoofing::restart_and_repair),
        ("a_pod_cannot_pose_as_another_through_a_tunnel", encapsulation::vxlan),
        ("pods_cannot_send_to_tunnels_of_nodes", encapsulation::to_nodes),
        ("replies_to_the_port_of_a_tunnel_pass", encapsulation::replies),
    ];
    let all = all.into_iter();
    all.map(|(what, test)| trial(format!("{name}::{what}"), move || test(backend))).collect()
}

/// A test by name.
pub fn trial(name: impl Into<String>, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        if HAS_BPF.load(Ordering::Relaxed) {
            with_own_bpf(test)
        } else {
            test()
        }
        Ok(())
    })
}

/// Whether each test has a BPF file system of its own.
static HAS_BPF: AtomicBool = AtomicBool::new(false);

/// Runs a test with a BPF file system that ends with it. Pinned maps would otherwise stay until the
/// last test has ended, and take tens of megabytes for each datapath.
fn with_own_bpf(test: impl FnOnce() + Send + 'static) {
    let test = thread::spawn(move || {
        weir_lab::separate_bpf().unwrap();
        test();
    });
    if let Err(payload) = test.join() {
        resume_unwind(payload);
    }
}

/// Runs tests in new namespaces. Call it before the process has a second thread.
pub fn main(trials: impl FnOnce() -> Vec<Trial>) -> ExitCode {
    main_after(weir_lab::enter, trials)
}

/// The same with a BPF file system for each test.
pub fn main_with_bpf(trials: impl FnOnce() -> Vec<Trial>) -> ExitCode {
    HAS_BPF.store(true, Ordering::Relaxed);
    main_after(weir_lab::enter_with_bpf, trials)
}

fn main_after(
    enter: impl FnOnce() -> Result<(), LabError>,
    trials: impl FnOnce() -> Vec<Trial>,
) -> ExitCode {
    let arguments = Arguments::from_args();
    // Without the right to create namespaces, no test can run: that is a failure.
    if !arguments.list
        && let Err(error) = enter()
    {
        eprintln!("error: {error}\nhint: {}", error.hint().unwrap_or("run the tests as root"));
        return ExitCode::FAILURE;
    }
    if !arguments.list {
        // An API server of a test listens on the loopback interface of the new namespace.
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.is_ok_and(|status| status.success()), "`ip link set lo up` failed");
    }
    libtest_mimic::run(&arguments, trials()).exit_code()
}
