//! The kernel as third reader: random clusters, whose nodes enforce what was planned, and real connections in them.
//! Needs root or user namespaces, and the programs of iptables (both variants) and ipset.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests, though with a `main` of their own")]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod agreement;
#[cfg(target_os = "linux")]
mod big;
#[cfg(target_os = "linux")]
mod cluster;
#[cfg(target_os = "linux")]
mod crafted;
#[cfg(target_os = "linux")]
mod established;
#[cfg(target_os = "linux")]
mod judged;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod node;
#[cfg(target_os = "linux")]
mod others;
#[cfg(target_os = "linux")]
mod steps;
#[cfg(target_os = "linux")]
mod swap;
#[cfg(target_os = "linux")]
mod takeover;
#[cfg(target_os = "linux")]
mod traffic;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use libtest_mimic::{Arguments, Trial};
    use weir_iptables::Variant;

    let arguments = Arguments::from_args();
    // Without rights there is nothing to be tested, which is not the same as a success.
    if !arguments.list
        && let Err(error) = weir_lab::enter()
    {
        eprintln!("error: {error}\nhint: {}", error.hint().unwrap_or("run the tests as root"));
        return ExitCode::FAILURE;
    }
    let mut trials = Vec::new();
    for variant in [Variant::Nft, Variant::Legacy] {
        let word = format!("{variant:?}").to_lowercase();
        let mut test = |name: &str, run: fn(Variant) -> Result<(), String>| {
            let run = move || run(variant).map_err(Into::into);
            trials.push(Trial::test(format!("{word}::{name}"), run));
        };
        test("engine_oracle_and_kernel_agree_on_random_clusters", agreement::all);
        test("change_by_change_the_kernel_has_what_a_fresh_start_would_put_there", steps::all);
        test("it_does_what_every_datapath_must", machine::conforms);
        test("what_a_policy_forbids_is_cut", established::is_cut_everywhere);
        test("what_was_cut_stays_cut_after_a_restart", established::stays_cut);
        test("answers_of_what_was_cut_are_reported", established::answers_are_reported);
        test("what_others_change_of_ours_is_repaired", others::what_is_changed_is_repaired);
        test("what_is_theirs_stays_theirs", others::what_is_theirs_stays);
        test("a_set_of_another_kind_is_replaced", others::a_set_of_another_kind_is_replaced);
        test("changes_elsewhere_are_no_drift", others::changes_elsewhere_are_no_drift);
        test(
            "taking_over_from_kube_router_no_packet_meets_a_wrong_verdict",
            takeover::no_packet_meets_a_wrong_verdict,
        );
        test(
            "while_policies_change_nothing_is_lost_and_nothing_slips_through",
            swap::nothing_is_lost_and_nothing_slips_through,
        );
        test("one_member_more_of_twenty_thousand_is_one_entry", big::one_member_more_is_one_entry);
        test("a_pod_and_its_node_always_reach_each_other", judged::a_pod_and_its_node);
        test(
            "policies_have_the_first_word_and_the_last",
            judged::policies_have_the_first_word_and_the_last,
        );
        test("what_has_no_pod_at_either_end_is_not_judged", judged::no_pod_at_either_end);
        test(
            "a_pod_reaches_itself_through_a_service",
            judged::a_pod_reaches_itself_through_a_service,
        );
        test("who_poses_as_itself_is_judged", crafted::who_poses_as_itself_is_judged);
        test(
            "what_leaves_the_node_for_another_is_judged",
            crafted::what_leaves_the_node_for_another_is_judged,
        );
        test(
            "in_audit_mode_denials_pass_and_are_reported",
            judged::in_audit_mode_denials_pass_and_are_reported,
        );
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
