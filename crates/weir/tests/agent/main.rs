//! The agent on a node of network namespaces: real rules, real packets, and everything that can happen to it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

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
    let trials = vec![trial(
        "rules_that_are_swapped_a_thousand_times_let_nothing_slip",
        swap::a_thousand_times,
    )];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}
