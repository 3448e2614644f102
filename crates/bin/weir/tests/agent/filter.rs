use tempfile::TempDir;

use crate::variant;

/// The packet filter of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    Nftables,
    IptablesNft,
    IptablesLegacy,
    Ebpf,
}

impl Filter {
    /// The value of `--datapath`.
    pub(crate) fn datapath(self) -> &'static str {
        match self {
            Filter::Nftables => "nftables",
            Filter::IptablesNft | Filter::IptablesLegacy => "iptables",
            Filter::Ebpf => "ebpf",
        }
    }

    /// A folder with the programs that the agent finds first.
    pub(crate) fn programs(self) -> TempDir {
        variant::programs(match self {
            Filter::IptablesLegacy => variant::LEGACY,
            Filter::Nftables | Filter::IptablesNft | Filter::Ebpf => variant::NFT,
        })
    }
}
