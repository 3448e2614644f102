use std::fmt;

use anyhow::Result;
use weir_datapath::Mode;
use weir_iptables::{Iptables, Variant};
use weir_model::Program;
use weir_nft::Nft;

use super::{node::BenchAgent, program::SystemProgram};

/// A backend that enforces policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MeasuredBackend {
    Nftables,
    Iptables(Variant),
}

impl MeasuredBackend {
    /// All backends in the order of the tables.
    pub(crate) const ALL: [MeasuredBackend; 3] = [
        MeasuredBackend::Nftables,
        MeasuredBackend::Iptables(Variant::Nft),
        MeasuredBackend::Iptables(Variant::Legacy),
    ];

    /// Enforces a program in the namespace of this thread, as an agent does.
    pub(crate) fn enforce(self, program: &Program) -> Result<()> {
        match self {
            MeasuredBackend::Nftables => BenchAgent::open(nftables()?).enforce(program),
            MeasuredBackend::Iptables(variant) => {
                BenchAgent::open(iptables(variant)?).enforce(program)
            }
        }
    }
}

impl fmt::Display for MeasuredBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MeasuredBackend::Nftables => "nftables",
            MeasuredBackend::Iptables(Variant::Nft) => "iptables-nft",
            MeasuredBackend::Iptables(Variant::Legacy) => "iptables-legacy",
        })
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

/// The program that loads IPv4 rules.
pub(crate) fn restore(variant: Variant) -> SystemProgram {
    SystemProgram(match variant {
        Variant::Nft => "iptables-nft-restore",
        Variant::Legacy => "iptables-legacy-restore",
    })
}
