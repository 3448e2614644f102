//! The agent on a node of network namespaces: real rules, real packets, and everything that can happen to it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod life;
mod node;
mod prober;
mod swap;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list
        && let Err(error) = weir_lab::enter()
    {
        eprintln!("error: {error}\nhint: {}", error.hint().unwrap_or("run the tests as root"));
        return ExitCode::FAILURE;
    }
    let trials = vec![
        trial(
            "an_agent_that_is_killed_fifty_times_changes_no_verdict",
            life::killed_again_and_again,
        ),
        trial("rules_that_are_swapped_a_thousand_times_let_nothing_slip", swap::a_thousand_times),
        trial("a_table_that_is_deleted_is_back_within_two_seconds", life::the_table_is_deleted),
        trial("a_broken_manifest_is_told_and_what_was_in_force_stays", life::a_manifest_breaks),
        trial("a_restart_with_nothing_changed_writes_nothing", life::a_restart_writes_nothing),
        trial("cleanup_leaves_the_rules_of_others_and_nothing_else", life::cleanup),
        trial("a_second_agent_says_so_and_leaves", life::a_second_agent),
        trial("once_applies_and_audit_lets_everything_pass", life::once_and_audit),
        trial("an_agent_whose_log_nobody_reads_goes_on", life::nobody_reads_the_log),
        trial("a_drop_is_told_with_pods_and_policies", life::drops),
        trial("a_tightened_policy_cuts_a_conversation", life::a_tightened_policy_cuts),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}
