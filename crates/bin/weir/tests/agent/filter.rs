use tempfile::TempDir;

use crate::variant;

/// What an agent enforces with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    Nftables,
    IptablesNft,
    IptablesLegacy,
}

impl Filter {
    /// As `--datapath` calls it.
    pub(crate) fn datapath(self) -> &'static str {
        match self {
            Filter::Nftables => "nftables",
            Filter::IptablesNft | Filter::IptablesLegacy => "iptables",
        }
    }

    /// The programs that it finds.
    pub(crate) fn programs(self) -> TempDir {
        variant::programs(match self {
            Filter::IptablesLegacy => variant::LEGACY,
            Filter::Nftables | Filter::IptablesNft => variant::NFT,
        })
    }
}
