//! iptables and ipset in the kernel: what every backend is put through, and what is this one's own. Needs root or user namespaces,
//! and the programs of iptables (both variants), ipset and nft.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests, though with a `main` of their own")]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod backend;
#[cfg(target_os = "linux")]
mod big;
#[cfg(target_os = "linux")]
mod crafted;
#[cfg(target_os = "linux")]
mod cut;
#[cfg(target_os = "linux")]
mod half_way;
#[cfg(target_os = "linux")]
mod judged;
#[cfg(target_os = "linux")]
mod node;
#[cfg(target_os = "linux")]
mod others;
#[cfg(target_os = "linux")]
mod swap;
#[cfg(target_os = "linux")]
mod takeover;
#[cfg(target_os = "linux")]
mod theirs;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use weir_iptables::Variant;

    weir_trials::main(|| {
        let mut trials = Vec::new();
        for (name, variant) in [("nft", Variant::Nft), ("legacy", Variant::Legacy)] {
            trials.extend(weir_trials::trials(name, backend::Tables(variant)));
            trials.extend(ours(name, variant));
        }
        trials
    })
}

#[cfg(target_os = "linux")]
fn ours(name: &str, variant: weir_iptables::Variant) -> Vec<libtest_mimic::Trial> {
    let all: [weir_trials::Named<weir_iptables::Variant>; 14] = [
        ("what_others_change_of_ours_is_repaired", others::what_is_changed_is_repaired),
        ("what_is_theirs_stays_theirs", others::what_is_theirs_stays),
        ("a_set_of_another_kind_is_replaced", others::a_set_of_another_kind_is_replaced),
        (
            "until_a_set_of_another_kind_is_replaced_it_is_asked",
            others::until_a_set_is_replaced_it_is_asked,
        ),
        ("changes_elsewhere_are_no_drift", others::changes_elsewhere_are_no_drift),
        (
            "taking_over_from_kube_router_no_packet_meets_a_wrong_verdict",
            takeover::no_packet_meets_a_wrong_verdict,
        ),
        (
            "while_policies_change_nothing_is_lost_and_nothing_slips_through",
            swap::nothing_is_lost_and_nothing_slips_through,
        ),
        ("one_member_more_of_twenty_thousand_is_one_entry", big::one_member_more_is_one_entry),
        ("what_is_left_half_way_is_finished_by_the_next", half_way::is_finished_by_the_next),
        ("only_who_cuts_asks_about_it", cut::only_who_cuts_asks_about_it),
        (
            "policies_have_the_first_word_and_the_last",
            judged::policies_have_the_first_word_and_the_last,
        ),
        ("a_pod_reaches_itself_through_a_service", judged::a_pod_reaches_itself_through_a_service),
        ("who_poses_as_itself_is_judged", crafted::who_poses_as_itself_is_judged),
        (
            "what_leaves_the_node_for_another_is_judged",
            crafted::what_leaves_the_node_for_another_is_judged,
        ),
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
