use std::fmt;

use anyhow::{Result, ensure};
use weir_datapath::Mode;
use weir_ebpf::Ebpf;
use weir_iptables::{Iptables, Variant};
use weir_model::Program;
use weir_nft::Nft;

use super::{node::BenchAgent, program::SystemProgram};

/// A backend that enforces policies by rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ruleset {
    Nftables,
    Iptables(Variant),
}

impl Ruleset {
    /// All of them in the order of the tables.
    pub(crate) const ALL: [Ruleset; 3] =
        [Ruleset::Nftables, Ruleset::Iptables(Variant::Nft), Ruleset::Iptables(Variant::Legacy)];
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ruleset::Nftables => "nftables",
            Ruleset::Iptables(Variant::Nft) => "iptables-nft",
            Ruleset::Iptables(Variant::Legacy) => "iptables-legacy",
        })
    }
}

/// A backend that enforces policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MeasuredBackend {
    Rules(Ruleset),
    Ebpf,
}

impl MeasuredBackend {
    /// Enforces a program in the namespace of this thread, as an agent does.
    pub(crate) fn enforce(self, program: &Program) -> Result<()> {
        match self {
            MeasuredBackend::Rules(Ruleset::Nftables) => {
                BenchAgent::open(nftables()?).enforce(program)
            }
            MeasuredBackend::Rules(Ruleset::Iptables(variant)) => {
                BenchAgent::open(iptables(variant)?).enforce(program)
            }
            MeasuredBackend::Ebpf => BenchAgent::open(ebpf()?).enforce(program),
        }
    }
}

impl fmt::Display for MeasuredBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeasuredBackend::Rules(ruleset) => ruleset.fmt(f),
            MeasuredBackend::Ebpf => f.write_str("ebpf"),
        }
    }
}

/// The nftables backend in the namespace of this thread.
pub(crate) fn nftables() -> Result<Nft> {
    Ok(Nft::open(Mode::Enforce)?)
}

/// The iptables backend in the namespace of this thread.
pub(crate) fn iptables(variant: Variant) -> Result<Iptables> {
    Ok(Iptables::open(Mode::Enforce, Some(variant))?)
}

/// The eBPF backend in the namespace of this thread.
pub(crate) fn ebpf() -> Result<Ebpf> {
    Ok(Ebpf::open(Mode::Enforce)?)
}

/// Enforces a program by eBPF with the fast lane.
pub(crate) fn enforce_in_lane(program: &Program) -> Result<()> {
    let mut node = BenchAgent::open(ebpf()?.with_fast_lane()?);
    node.load(program)?;
    let warnings = node.warnings();
    ensure!(warnings.is_empty(), "{}", warnings.join("; "));
    Ok(())
}

/// The program that loads IPv4 rules.
pub(crate) fn restore(variant: Variant) -> SystemProgram {
    SystemProgram(match variant {
        Variant::Nft => "iptables-nft-restore",
        Variant::Legacy => "iptables-legacy-restore",
    })
}
