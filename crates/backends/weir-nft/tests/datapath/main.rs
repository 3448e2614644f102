//! nftables in the kernel, under everything that can happen to it: real packets, real connections, and others who write there.
//! Needs root or user namespaces, and the programs `nft` and `ip`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests, though with a `main` of their own")]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod audit;
#[cfg(target_os = "linux")]
mod big;
#[cfg(target_os = "linux")]
mod bridge;
#[cfg(target_os = "linux")]
mod cleanup;
#[cfg(target_os = "linux")]
mod cluster;
#[cfg(target_os = "linux")]
mod conforms;
#[cfg(target_os = "linux")]
mod drift;
#[cfg(target_os = "linux")]
mod established;
#[cfg(target_os = "linux")]
mod icmp;
#[cfg(target_os = "linux")]
mod node;
#[cfg(target_os = "linux")]
mod random;

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
    let trials = [
        audit::trials(),
        big::trials(),
        bridge::trials(),
        cleanup::trials(),
        conforms::trials(),
        drift::trials(),
        established::trials(),
        icmp::trials(),
    ];
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit_code()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
