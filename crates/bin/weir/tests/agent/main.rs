//! The agent on a node of network namespaces, with real rules, real packets and failures.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod blind;
mod change;
mod contest;
#[path = "../../../../backends/weir-ebpf/tests/datapath/disturb.rs"]
mod disturb;
mod ebpf;
mod filter;
mod flows;
mod hostile;
mod iptables;
mod life;
mod names;
mod node;
mod prober;
mod recordings;
#[path = "../schema/mod.rs"]
mod schema;
mod swap;
mod takeover;
#[path = "../variant/mod.rs"]
mod variant;

use std::process::ExitCode;

use libtest_mimic::Trial;
use weir_trials::trial;

use self::filter::Filter;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = &arguments[..]
        && first == disturb::COMMAND
    {
        disturb::run(rest);
        return ExitCode::SUCCESS;
    }
    let mut trials = vec![
        trial("a_thousand_rule_changes_let_no_packet_slip", swap::a_thousand_times),
        trial("a_deleted_table_is_restored_within_two_seconds", life::the_table_is_deleted),
        trial("an_invalid_manifest_is_reported_and_the_rules_stay", life::a_manifest_breaks),
        trial("a_new_node_enforces_the_readable_manifests", life::starts_with_a_broken_manifest),
        trial("a_restart_without_changes_writes_nothing", life::a_restart_writes_nothing),
        trial("cleanup_leaves_only_foreign_rules", life::cleanup),
        trial("a_second_agent_waits_and_is_not_ready", life::a_second_agent),
        trial("an_agent_survives_a_closed_log", life::the_log_is_closed),
    ];
    for filter in [Filter::Nftables, Filter::IptablesNft] {
        trials.extend([
            with(filter, "repeated_kills_change_no_verdict", life::killed_again_and_again),
            with(filter, "once_applies_and_audit_allows_everything", life::once_and_audit),
            with(filter, "a_drop_is_reported_with_pods_and_policies", life::drops),
            with(
                filter,
                "a_tightened_policy_terminates_a_connection",
                life::a_tightened_policy_cuts,
            ),
        ]);
    }
    for filter in [Filter::IptablesNft, Filter::IptablesLegacy] {
        trials.extend([
            with(filter, "rule_changes_let_no_packet_slip", iptables::swaps),
            with(
                filter,
                "a_restart_without_changes_writes_nothing",
                iptables::a_restart_writes_nothing,
            ),
            with(
                filter,
                "foreign_changes_are_repaired_and_foreign_rules_stay",
                iptables::foreign_changes_are_repaired,
            ),
            with(filter, "cleanup_leaves_only_foreign_rules", iptables::cleanup),
        ]);
    }
    trials.extend([
        with(Filter::Ebpf, "repeated_kills_change_no_verdict", life::killed_again_and_again),
        with(Filter::Ebpf, "once_applies_and_audit_allows_everything", life::once_and_audit),
        with(Filter::Ebpf, "a_drop_is_reported_with_pods_and_policies", life::drops),
        trial("the_objects_of_ebpf_are_listed_and_cleaned_up", ebpf::dump_and_cleanup),
        trial("a_removed_element_of_ebpf_is_shown_and_restored", ebpf::shows_a_removed_element),
        trial("ebpf_reports_conntrack_and_the_fast_lane", ebpf::reports_the_packet_path),
        trial("ebpf_names_the_missing_feature", ebpf::names_the_missing_feature),
        trial("repeated_kills_keep_the_fast_lane", ebpf::killed_with_a_fast_lane),
    ]);
    for filter in [Filter::Nftables, Filter::IptablesNft, Filter::Ebpf] {
        trials.extend([
            with(filter, "a_claim_takes_no_rules_off_a_pod", contest::a_pod_keeps_its_rules),
            with(filter, "a_policy_does_not_multiply", hostile::multiplies),
            with(filter, "a_policy_over_budget_is_named", hostile::exceeds_the_budget),
            with(filter, "no_policy_terminates_two_agents", hostile::terminates_the_agent),
            with(filter, "flows_have_the_policies_that_decided", flows::are_observed),
            with(filter, "a_staged_policy_only_reports", flows::staged),
            with(filter, "a_staged_cluster_policy_only_reports", flows::staged_cluster_policy),
        ]);
    }
    for filter in [Filter::Nftables, Filter::IptablesNft] {
        trials.push(with(filter, "recordings_lead_to_policies", recordings::lead_to_policies));
    }
    trials.extend([
        with(Filter::Nftables, "a_flow_of_audit_mode_says_so", flows::audit),
        trial("flows_of_ebpf_need_no_conntrack", flows::of_the_own_table),
        trial("a_staged_policy_of_ebpf_needs_no_conntrack", flows::staged_without_conntrack),
        trial("flows_have_bytes_if_the_kernel_counts", flows::accounting),
        trial("flows_can_be_switched_off", flows::off),
        trial("flows_go_to_a_file_and_to_a_collector", flows::export),
    ]);
    let filters = [Filter::Nftables, Filter::IptablesNft, Filter::IptablesLegacy];
    for filter in filters.into_iter().chain([Filter::Ebpf]) {
        trials.extend([
            with(filter, "an_answer_opens_its_addresses_before_it_arrives", names::answers_open),
            with(filter, "no_first_connection_by_name_is_lost", names::first_connections),
            with(filter, "a_resolver_that_lies_opens_nothing", names::lies),
            with(filter, "names_survive_a_restart", names::restart),
            with(
                filter,
                "connections_under_an_expired_name_survive_a_restart",
                names::expired_connections,
            ),
        ]);
    }
    let all = [Filter::Nftables, Filter::IptablesNft, Filter::IptablesLegacy, Filter::Ebpf];
    for (from, to) in all.into_iter().flat_map(|from| all.map(|to| (from, to))) {
        // The variants of iptables differ only for each other and for nftables.
        let is_covered =
            [from, to].contains(&Filter::Ebpf) && [from, to].contains(&Filter::IptablesLegacy);
        if from != to && !is_covered {
            let name = format!("the_datapath_changes_without_a_gap_from_{from:?}_to_{to:?}");
            trials.push(trial(name, move || change::changes(from, to)));
        }
    }
    for filter in filters {
        trials.push(with(
            filter,
            "tables_of_kube_router_are_replaced_without_a_gap",
            takeover::tables_are_replaced,
        ));
    }
    trials.push(trial("audit_keeps_the_tables_of_kube_router", takeover::audit_keeps_the_tables));
    trials.push(trial("rules_of_other_policy_engines_are_named", change::others_are_named));
    trials.push(trial("pods_that_bypass_the_rules_are_reported", blind::macvlan));
    trials.push(trial("an_undeclared_address_is_reported", blind::undeclared_address));
    // Only root can load eBPF programs; without it, the trials about them fail.
    if rustix::process::geteuid().is_root() {
        return weir_trials::main_with_bpf(|| trials);
    }
    weir_trials::main(|| trials)
}

fn with(filter: Filter, name: &str, test: fn(Filter)) -> Trial {
    trial(format!("{filter:?}::{name}"), move || test(filter))
}
