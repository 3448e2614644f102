//! Real connections and packets in network namespaces. Needs root or user namespaces, and `nft`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests without the default harness")]

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
    // Without privileges nothing is tested, and that must not pass as a success.
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
