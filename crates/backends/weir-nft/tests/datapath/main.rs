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
        let every = weir_trials::trials("nftables", backend::Nftables::default());
        let reject = weir_trials::reject_trials("nftables", backend::Nftables::default());
        ours.into_iter().flatten().chain(every).chain(reject).chain(other_limits()).collect()
    })
}

/// The trials of random and of admin policies with rules in sequence and with numbered sets. By default, only
/// large policies have them.
#[cfg(target_os = "linux")]
fn other_limits() -> impl Iterator<Item = libtest_mimic::Trial> {
    use weir_nft::MergeLimit;

    let numbered = MergeLimit { sets: 0, ..MergeLimit::default() };
    let in_sequence = MergeLimit { factor: 0, minimum: 0, ..MergeLimit::default() };
    let limits = [
        ("nftables-numbered", numbered),
        ("nftables-in-sequence", in_sequence),
        ("nftables-numbered-in-sequence", MergeLimit { sets: 0, ..in_sequence }),
    ];
    let all = limits.into_iter();
    let all = all.flat_map(|(name, limit)| weir_trials::trials(name, backend::Nftables(limit)));
    all.filter(|trial| {
        let names = [
            "kernel_agree_on_random_clusters",
            "after_each_change_the_kernel",
            "::admin_",
            "::a_pod_that_",
        ];
        names.iter().any(|name| trial.name().contains(name))
    })
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
