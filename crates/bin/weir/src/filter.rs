/// A packet filter of the Linux kernel that rules may be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// nftables.
    Nftables,
    /// iptables with ipset, of the variant that the program `iptables` is.
    Iptables,
}

impl Filter {
    /// The filter that `--datapath` calls so.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "nftables" => Some(Filter::Nftables),
            "iptables" => Some(Filter::Iptables),
            _ => None,
        }
    }

    /// What `--datapath` calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Filter::Nftables => "nftables",
            Filter::Iptables => "iptables",
        }
    }
}
