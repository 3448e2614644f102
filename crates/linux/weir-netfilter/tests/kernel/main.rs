//! Real connections and real packets, in namespaces of their own. Needs root or user namespaces, and the `nft` program.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests, though with a `main` of their own")]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod conntrack;
#[cfg(target_os = "linux")]
mod log;
#[cfg(target_os = "linux")]
mod node;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let arguments = libtest_mimic::Arguments::from_args();
    // Without rights there is nothing to be tested, which is not the same as a success.
    if !arguments.list
        && let Err(error) = weir_lab::enter()
    {
        eprintln!("error: {error}\nhint: {}", error.hint().unwrap_or("run the tests as root"));
        return ExitCode::FAILURE;
    }
    let trials = [conntrack::trials(), log::trials()].into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
