//! The agent on a node of network namespaces: real rules, real packets, and everything that can
//! happen to it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod filter;
mod iptables;
mod life;
mod node;
mod prober;
mod swap;
#[path = "../variant/mod.rs"]
mod variant;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use self::filter::Filter;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list
        && let Err(error) = weir_lab::enter()
    {
        eprintln!("error: {error}\nhint: {}", error.hint().unwrap_or("run the tests as root"));
        return ExitCode::FAILURE;
    }
    let mut trials = vec![
        trial("rules_that_are_swapped_a_thousand_times_let_nothing_slip", swap::a_thousand_times),
        trial("a_table_that_is_deleted_is_back_within_two_seconds", life::the_table_is_deleted),
        trial("a_broken_manifest_is_told_and_what_was_in_force_stays", life::a_manifest_breaks),
        trial("a_restart_with_nothing_changed_writes_nothing", life::a_restart_writes_nothing),
        trial("cleanup_leaves_the_rules_of_others_and_nothing_else", life::cleanup),
        trial("a_second_agent_says_so_and_leaves", life::a_second_agent),
        trial("an_agent_whose_log_nobody_reads_goes_on", life::nobody_reads_the_log),
    ];
    for filter in [Filter::Nftables, Filter::IptablesNft] {
        trials.extend([
            with(
                filter,
                "an_agent_that_is_killed_again_and_again_changes_no_verdict",
                life::killed_again_and_again,
            ),
            with(filter, "once_applies_and_audit_lets_everything_pass", life::once_and_audit),
            with(filter, "a_drop_is_told_with_pods_and_policies", life::drops),
            with(filter, "a_tightened_policy_cuts_a_conversation", life::a_tightened_policy_cuts),
        ]);
    }
    for filter in [Filter::IptablesNft, Filter::IptablesLegacy] {
        trials.extend([
            with(filter, "rules_that_are_swapped_let_nothing_slip", iptables::swaps),
            with(
                filter,
                "a_restart_with_nothing_changed_writes_nothing",
                iptables::a_restart_writes_nothing,
            ),
            with(
                filter,
                "what_others_do_to_our_rules_is_put_right_and_theirs_stay",
                iptables::what_others_do_is_put_right,
            ),
            with(filter, "cleanup_leaves_the_rules_of_others_and_nothing_else", iptables::cleanup),
        ]);
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn with(filter: Filter, name: &str, test: fn(Filter)) -> Trial {
    Trial::test(format!("{filter:?}::{name}"), move || {
        test(filter);
        Ok(())
    })
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}
