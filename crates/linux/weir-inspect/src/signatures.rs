//! The tables and chains by which the rules of a policy engine are recognized.

/// A policy engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// weir itself.
    Weir,
    /// kube-router, also as a part of k3s and k0s.
    KubeRouter,
    /// Calico.
    Calico,
    /// Cilium.
    Cilium,
    /// kube-network-policies, also as a part of kindnet.
    KubeNetworkPolicies,
}

/// A packet filter of the kernel. Each has its own rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Filter {
    /// nftables.
    Nftables,
    /// `iptables-nft`.
    IptablesNft,
    /// `iptables-legacy`.
    IptablesLegacy,
    /// eBPF programs at the links of pods.
    Ebpf,
}

/// Rules of a policy engine in a packet filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyRules {
    /// The policy engine.
    pub owner: Owner,
    /// The packet filter.
    pub filter: Filter,
    /// A table, chain or link by which the rules were recognized.
    pub sign: &'static str,
}

/// A family of nf_tables, as `linux/netfilter.h` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Family {
    Inet = 1,
    Ip = 2,
    Ip6 = 10,
}

/// The tables of nftables.
pub(crate) const TABLES: [(Owner, Family, &str); 7] = [
    (Owner::Weir, Family::Inet, "weir"),
    (Owner::KubeRouter, Family::Ip, "kube-router-filter-ipv4"),
    (Owner::KubeRouter, Family::Ip6, "kube-router-filter-ipv6"),
    (Owner::Calico, Family::Ip, "calico"),
    (Owner::Calico, Family::Ip6, "calico"),
    (Owner::KubeNetworkPolicies, Family::Inet, "kube-network-policies"),
    (Owner::KubeNetworkPolicies, Family::Inet, "kindnet-network-policies"),
];

/// The chains of the table `filter` of iptables. The first match counts: weir has kube-router's
/// chains too, and KUBE-NWPLCY-CUT, which kube-router does not have.
pub(crate) const CHAINS: [(Owner, &str); 4] = [
    (Owner::Weir, "KUBE-NWPLCY-CUT"),
    (Owner::KubeRouter, "KUBE-ROUTER-FORWARD"),
    (Owner::Calico, "cali-FORWARD"),
    (Owner::Cilium, "CILIUM_FORWARD"),
];

/// The link of Cilium's agent. Its programs forward packets between the links of pods.
pub(crate) const CILIUM_LINK: &str = "cilium_host";

/// The owners of rules in a table of iptables, by the chains that it has.
pub(crate) fn owners(has_chain: impl Fn(&str) -> bool) -> Vec<(Owner, &'static str)> {
    let mut found: Vec<(Owner, &'static str)> = Vec::new();
    for (owner, chain) in CHAINS {
        let is_known = |one: Owner| found.iter().any(|(other, _)| *other == one);
        let is_weirs = owner == Owner::KubeRouter && is_known(Owner::Weir);
        if !is_known(owner) && !is_weirs && has_chain(chain) {
            found.push((owner, chain));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weirs_chains_differ_from_kube_routers() {
        let of = |chains: &[&str]| owners(|chain| chains.contains(&chain));
        let weirs = ["KUBE-ROUTER-FORWARD", "KUBE-NWPLCY-CUT", "KUBE-NWPLCY-TAIL"];
        assert_eq!(of(&weirs), [(Owner::Weir, "KUBE-NWPLCY-CUT")]);
        let theirs = ["KUBE-ROUTER-FORWARD", "KUBE-NWPLCY-TAIL", "cali-FORWARD"];
        let found = [(Owner::KubeRouter, "KUBE-ROUTER-FORWARD"), (Owner::Calico, "cali-FORWARD")];
        assert_eq!(of(&theirs), found);
        assert_eq!(of(&["KUBE-FORWARD", "DOCKER-USER"]), []);
    }
}
