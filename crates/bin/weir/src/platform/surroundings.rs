//! The node around the rules on Linux, and the change from one datapath to another.
//!
//! A backend knows no other backend. Here, the rules of the old datapath stay in force until the
//! new one enforces everything. So a packet meets both, and passes only if both allow it. The new
//! datapath also takes over the replies that the old one blocks. kube-router's tables in nftables are
//! replaced in the same way.

use std::{collections::BTreeSet, io};

use weir_agent::{BlindSpot, Effect, Inspection, Leftover, LeftoverKind, Surroundings};
use weir_datapath::{ApplyError, ApplyErrorKind, Datapath, Mode};
use weir_ebpf::Ebpf;
use weir_inspect::{
    Bypass, Filter, Owner, PodAddresses, PolicyRules, find_bypasses, find_policy_rules,
    find_redirecting_links,
};
use weir_iptables::{Iptables, Variant};
use weir_model::{Direction, PodId, Program, RuleSet};
use weir_netfilter::BlockedReply;
use weir_nft::Nft;

/// The surroundings of a datapath that writes to one packet filter.
#[derive(Debug)]
pub(super) struct LinuxSurroundings {
    pub(super) own: Filter,
    pub(super) mode: Mode,
}

impl LinuxSurroundings {
    /// Other rules than those of the agent's own datapath.
    fn other_rules(&self) -> io::Result<Vec<PolicyRules>> {
        let is_own = |rules: &PolicyRules| match rules.owner {
            Owner::Weir => rules.filter == self.own,
            // With iptables, the agent takes over kube-router's chains in the same filter.
            Owner::KubeRouter => rules.filter == self.own && self.own != Filter::Nftables,
            _ => false,
        };
        // Only weir's programs have names in the BPF file system.
        let programs = weir_ebpf::is_installed().then_some(PolicyRules {
            owner: Owner::Weir,
            filter: Filter::Ebpf,
            sign: "weir",
        });
        let rules = find_policy_rules()?.into_iter().chain(programs);
        Ok(rules.filter(|rules| !is_own(rules)).collect())
    }

    /// Whether the agent removes rules when its own are in force: those of weir's other datapaths, and
    /// kube-router's tables in nftables. In audit mode, weir's rules do not replace kube-router's.
    fn is_superseded(&self, rules: &PolicyRules) -> bool {
        match rules.owner {
            Owner::Weir => true,
            Owner::KubeRouter => rules.filter == Filter::Nftables && self.mode == Mode::Enforce,
            _ => false,
        }
    }

    /// The replies that weir's other datapaths block.
    pub(super) fn blocked_replies(&self) -> Result<BTreeSet<BlockedReply>, ApplyError> {
        let mut replies = BTreeSet::new();
        let weirs = |rules: &PolicyRules| rules.owner == Owner::Weir;
        // The agent reports a failed inspection when it runs.
        for rules in self.other_rules().unwrap_or_default().into_iter().filter(weirs) {
            match (rules.filter, self.own) {
                (Filter::Nftables, _) => {
                    replies.extend(Nft::open(Mode::Enforce)?.blocked_replies()?);
                }
                (Filter::IptablesNft | Filter::IptablesLegacy, Filter::Nftables | Filter::Ebpf) => {
                    replies.extend(open_iptables(rules.filter)?.blocked_replies()?);
                }
                (Filter::Ebpf, _) => {
                    replies.extend(Ebpf::open(Mode::Enforce)?.blocked_replies()?);
                }
                // The variants of iptables share their sets.
                _ => (),
            }
        }
        Ok(replies)
    }
}

impl Surroundings for LinuxSurroundings {
    fn inspect(&self, program: &Program) -> io::Result<Inspection> {
        let named = |rules: &PolicyRules| leftover(rules, self.is_superseded(rules));
        let leftovers = self.other_rules()?.iter().map(named).collect();
        let is_selected =
            |rules: &RuleSet| Direction::BOTH.into_iter().any(|one| !rules.chain(one).is_open());
        let selected = program.endpoints.iter().filter(|(_, one)| is_selected(&one.rules));
        let pods: Vec<PodAddresses<'_>> = selected
            .map(|(pod, endpoint)| PodAddresses { pod, addresses: &endpoint.addresses })
            .collect();
        let addresses = program.endpoints.values().flat_map(|endpoint| &endpoint.addresses);
        let declared = addresses.copied().collect();
        let found = find_bypasses(&pods, &declared)?;
        let bypasses = found.into_iter().map(|(bypass, pod)| blind_spot(&bypass, pod));
        let redirects = find_redirecting_links()?.into_iter().map(|link| redirect(&link));
        let blind_spots = bypasses.chain(redirects).collect();
        Ok(Inspection { leftovers, blind_spots })
    }

    fn remove_superseded(&self) -> Result<(), ApplyError> {
        let failed = |source: io::Error| ApplyError {
            kind: ApplyErrorKind::Unavailable,
            what: "cannot find the rules that weir's rules replace".into(),
            source: source.into(),
        };
        let rules = self.other_rules().map_err(failed)?;
        for rules in rules.iter().filter(|rules| self.is_superseded(rules)) {
            match (rules.owner, rules.filter) {
                (Owner::KubeRouter, _) => weir_iptables::remove_kube_router_tables()?,
                // With eBPF programs, the tables of the guard and the journal stay in use.
                (_, Filter::Nftables) if self.own == Filter::Ebpf => {
                    Nft::open(Mode::Enforce)?.remove_policies()?;
                }
                (_, Filter::Nftables) => Nft::open(Mode::Enforce)?.remove()?,
                (_, Filter::Ebpf) => Ebpf::open(Mode::Enforce)?.remove()?,
                (_, filter) => open_iptables(filter)?.remove_rules()?,
            }
        }
        // kube-router's rules in iptables may use sets of the same names.
        let is_kube_router = |rules: &PolicyRules| {
            rules.owner == Owner::KubeRouter && rules.filter != Filter::Nftables
        };
        if matches!(self.own, Filter::Nftables | Filter::Ebpf) && !rules.iter().any(is_kube_router)
        {
            open_iptables(Filter::IptablesNft)?.remove_sets()?;
        }
        Ok(())
    }
}

/// The packet filter of a variant of iptables.
pub(super) fn filter_of(variant: Variant) -> Filter {
    match variant {
        Variant::Nft => Filter::IptablesNft,
        Variant::Legacy => Filter::IptablesLegacy,
    }
}

fn open_iptables(filter: Filter) -> Result<Iptables, ApplyError> {
    let variant = match filter {
        Filter::IptablesLegacy => Variant::Legacy,
        _ => Variant::Nft,
    };
    Iptables::open(Mode::Enforce, Some(variant))
}

fn leftover(rules: &PolicyRules, is_superseded: bool) -> Leftover {
    let sign = rules.sign;
    let text = match rules.filter {
        Filter::Nftables => format!("nftables, table {sign}"),
        Filter::IptablesNft => format!("iptables-nft, chain {sign}"),
        Filter::IptablesLegacy => format!("iptables-legacy, chain {sign}"),
        Filter::Ebpf if rules.owner == Owner::Weir => "eBPF, programs at netfilter's hooks".into(),
        Filter::Ebpf => format!("eBPF, link {sign}"),
    };
    let (owner, hint) = match rules.owner {
        Owner::Weir => (
            "weir's previous datapath",
            "the agent removes them when its own rules are in force; if they stay, see the log",
        ),
        Owner::KubeRouter if is_superseded => (
            "kube-router",
            "the agent removes them when its own rules are in force; if they return, turn kube-router's network policies off (kube-router: --run-firewall=false; k3s: --disable-network-policy)",
        ),
        Owner::KubeRouter => (
            "kube-router",
            "in audit mode, they stay in force; to replace them, turn kube-router's network policies off (kube-router: --run-firewall=false; k3s: --disable-network-policy), and start the agent with `--datapath iptables` and the variant of iptables that kube-router used: it takes the rules over without a gap",
        ),
        Owner::Calico => (
            "Calico",
            "if Calico is removed, restart the node; if it stays for networking, its policies still apply",
        ),
        Owner::Cilium => (
            "Cilium",
            "if Cilium is removed, restart the node; if it stays for networking, set its enable-policy to never, and note that its eBPF programs can forward packets past weir's rules",
        ),
        Owner::KubeNetworkPolicies => (
            "kube-network-policies",
            "remove its DaemonSet (kindnet: start it without network policies), then delete the table with `nft delete table`",
        ),
    };
    let kind = if is_superseded { LeftoverKind::Superseded } else { LeftoverKind::Foreign };
    Leftover { owner, rules: text, hint, kind }
}

fn redirect(link: &str) -> BlindSpot {
    BlindSpot {
        effect: Effect::Warning,
        cause:
            "eBPF programs or redirects of tc at links of pods can forward packets past the rules"
                .into(),
        hint: "remove the program that attached them, if it does more than monitor",
        pod: format!("link {link}"),
    }
}

fn blind_spot(bypass: &Bypass, pod: &PodId) -> BlindSpot {
    const VETH: &str = "use a CNI plugin with routed or bridged veth pairs for these pods";
    let pod = pod.to_string();
    match bypass {
        Bypass::Elsewhere { link } => BlindSpot {
            effect: Effect::NotReady,
            cause: format!(
                "policies do not apply to pods that the node reaches over {link}, because their packets do not pass the node's rules (as with macvlan, ipvlan, SR-IOV or Open vSwitch)"
            ),
            hint: VETH,
            pod,
        },
        Bypass::Netkit => BlindSpot {
            effect: Effect::NotReady,
            cause: "policies do not apply to pods behind netkit links, because eBPF programs forward their packets"
                .into(),
            hint: VETH,
            pod,
        },
        Bypass::NoRoute => BlindSpot {
            effect: Effect::Warning,
            cause: "policies may not apply to pods to which the node has no route".into(),
            hint: VETH,
            pod,
        },
        Bypass::UndeclaredAddress(address) => BlindSpot {
            effect: Effect::Warning,
            cause: "policies do not apply to addresses that the status of a pod lacks".into(),
            hint: "turn the address family off in these pods, or make the cluster dual-stack",
            pod: format!("{pod} ({address})"),
        },
    }
}
