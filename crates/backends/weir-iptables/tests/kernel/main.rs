//! iptables and ipset in the kernel: the common trials of all backends, and the trials of this one.
//! They need root or user namespaces, both iptables variants, ipset and nft.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests, though with a `main` of their own")]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod backend;
#[cfg(target_os = "linux")]
mod big;
#[cfg(target_os = "linux")]
mod crafted;
#[cfg(target_os = "linux")]
mod foreign;
#[cfg(target_os = "linux")]
mod guard;
#[cfg(target_os = "linux")]
mod interrupted;
#[cfg(target_os = "linux")]
mod ipvs;
#[cfg(target_os = "linux")]
mod names;
#[cfg(target_os = "linux")]
mod node;
#[cfg(target_os = "linux")]
mod policies;
#[cfg(target_os = "linux")]
mod repair;
#[cfg(target_os = "linux")]
mod swap;
#[cfg(target_os = "linux")]
mod takeover;
#[cfg(target_os = "linux")]
mod terminated;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use weir_iptables::Variant;

    weir_trials::main(|| {
        let mut trials = Vec::new();
        for (name, variant) in [("nft", Variant::Nft), ("legacy", Variant::Legacy)] {
            trials.extend(weir_trials::trials(name, backend::Tables(variant)));
            trials.extend(weir_trials::reject_trials(name, backend::Tables(variant)));
            trials.extend(ours(name, variant));
        }
        trials
    })
}

#[cfg(target_os = "linux")]
fn ours(name: &str, variant: weir_iptables::Variant) -> Vec<libtest_mimic::Trial> {
    let all: [weir_trials::Named<weir_iptables::Variant>; 20] = [
        ("pods_and_policies_are_found_by_name", names::pods_and_policies_are_found_by_name),
        ("an_older_layout_gets_signposts", names::an_older_layout_gets_signposts),
        ("foreign_changes_to_our_rules_are_repaired", repair::foreign_changes_are_repaired),
        ("the_guard_goes_with_the_rules", guard::the_guard_goes_with_the_rules),
        ("a_swapped_entry_is_repaired", repair::a_swapped_entry_is_repaired),
        ("foreign_rules_and_sets_stay", repair::foreign_rules_stay),
        ("a_set_of_another_kind_is_replaced", repair::a_set_of_another_kind_is_replaced),
        (
            "a_set_of_another_kind_is_in_use_until_it_is_replaced",
            repair::a_set_is_in_use_until_it_is_replaced,
        ),
        ("changes_to_foreign_rules_are_not_drift", repair::changes_to_foreign_rules_are_not_drift),
        (
            "taking_over_from_kube_router_gives_no_packet_a_wrong_verdict",
            takeover::no_packet_gets_a_wrong_verdict,
        ),
        (
            "a_policy_change_loses_no_allowed_packet_and_passes_no_denied_one",
            swap::no_packet_is_lost_and_none_slips_through,
        ),
        ("one_more_member_of_twenty_thousand_is_one_entry", big::one_more_member_is_one_entry),
        (
            "the_next_agent_finishes_an_interrupted_plan",
            interrupted::the_next_agent_finishes_the_plan,
        ),
        (
            "rules_match_terminated_connections_only_if_there_are_any",
            terminated::rules_match_terminated_connections_only_if_there_are_any,
        ),
        (
            "foreign_rules_do_not_override_policies",
            policies::foreign_rules_do_not_override_policies,
        ),
        ("a_last_rule_accepts_packets_of_pods", policies::a_last_rule_accepts_packets_of_pods),
        (
            "a_pod_reaches_itself_through_a_service",
            policies::a_pod_reaches_itself_through_a_service,
        ),
        (
            "a_packet_with_a_spoofed_own_address_is_filtered",
            crafted::a_packet_with_a_spoofed_own_address_is_filtered,
        ),
        ("packets_forwarded_by_ipvs_are_filtered", crafted::packets_forwarded_by_ipvs_are_filtered),
        ("packets_to_ipvs_services_pass_input", ipvs::packets_to_ipvs_services_pass_input),
    ];
    let trial = |(what, test): weir_trials::Named<weir_iptables::Variant>| {
        libtest_mimic::Trial::test(format!("{name}::{what}"), move || {
            test(variant);
            Ok(())
        })
    };
    all.map(trial).into()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
