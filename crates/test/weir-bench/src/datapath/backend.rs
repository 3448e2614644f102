use std::fmt;

use anyhow::Result;
use weir_datapath::Mode;
use weir_iptables::{Iptables, Variant};
use weir_model::Program as Compiled;
use weir_nft::Nft;

use super::{node::Node, program::Program};

/// A backend that enforces policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Nftables,
    Iptables(Variant),
}

impl Backend {
    /// All backends in the order of the tables.
    pub(crate) const ALL: [Backend; 3] =
        [Backend::Nftables, Backend::Iptables(Variant::Nft), Backend::Iptables(Variant::Legacy)];

    /// Enforces a program in the namespace of this thread, as an agent does.
    pub(crate) fn enforce(self, program: &Compiled) -> Result<()> {
        match self {
            Backend::Nftables => Node::open(nftables()?).enforce(program),
            Backend::Iptables(variant) => Node::open(iptables(variant)?).enforce(program),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Nftables => "nftables",
            Backend::Iptables(Variant::Nft) => "iptables-nft",
            Backend::Iptables(Variant::Legacy) => "iptables-legacy",
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
pub(crate) fn restore(variant: Variant) -> Program {
    Program(match variant {
        Variant::Nft => "iptables-nft-restore",
        Variant::Legacy => "iptables-legacy-restore",
    })
}
