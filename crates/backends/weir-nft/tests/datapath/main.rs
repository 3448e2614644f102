//! The backend in a real kernel: packets, connections, and other programs that write to nf_tables.
//! Needs root or user namespaces, and the programs `nft` and `ip`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests without the default harness")]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod audit;
#[cfg(target_os = "linux")]
mod backend;
#[cfg(target_os = "linux")]
mod big;
#[cfg(target_os = "linux")]
mod bridge;
#[cfg(target_os = "linux")]
mod cleanup;
#[cfg(target_os = "linux")]
mod drift;
#[cfg(target_os = "linux")]
mod node;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    weir_trials::main(|| {
        let ours =
            [audit::trials(), big::trials(), bridge::trials(), cleanup::trials(), drift::trials()];
        let every = weir_trials::trials("nftables", backend::Nftables);
        ours.into_iter().flatten().chain(every).collect()
    })
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
