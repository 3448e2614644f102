//! The peers of rules.

use std::collections::HashSet;

use weir_model::{Direction, Finding, Peer, Policy, PolicyKind, PolicyRule, Scope, Selector, Who};

use crate::{
    MAX_COMPARED,
    code::{HOST_NETWORK_PEER, PEER_MATCHES_NOTHING, REDUNDANT_PEER, SPLIT_PEER},
    cover,
    index::Index,
    select,
    site::{Site, rules},
    subject,
};

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for policy in index.world.policies.values() {
        for (direction, rule) in rules(policy) {
            let peers = rule.peers.as_deref().unwrap_or_default();
            let rule = RuleContext { index, policy, direction, rule };
            let splits: Vec<usize> =
                (1..peers.len()).filter(|at| rule.is_split(&peers[at - 1], &peers[*at])).collect();
            for (at, peer) in peers.iter().enumerate() {
                if splits.binary_search(&at).is_ok() {
                    findings.push(rule.split(peer));
                } else {
                    findings.extend(rule.matches_nothing(peer));
                }
            }
            rule.redundant(peers, findings);
        }
    }
}

struct RuleContext<'a, 'w> {
    index: &'a Index<'w>,
    policy: &'a Policy,
    direction: Direction,
    rule: &'a PolicyRule,
}

impl RuleContext<'_, '_> {
    fn site(&self, peer: &Peer) -> Site {
        Site::peer(self.policy, self.direction, self.rule, peer)
    }

    /// A peer that matches nothing.
    fn matches_nothing(&self, peer: &Peer) -> Option<Finding> {
        match &peer.who {
            Who::Pods { scope, pods } => self.no_pods(peer, scope, pods),
            Who::Nodes(nodes) => self.no_nodes(peer, nodes),
            Who::Block(_) | Who::Domain(_) => None,
        }
    }

    fn no_pods(&self, peer: &Peer, scope: &Scope, pods: &Selector) -> Option<Finding> {
        let (index, own) = (self.index, &self.policy.id.namespace);
        if let Some((one, two)) = select::contradiction(&[pods]) {
            return Some(subject::contradiction(self.site(peer), "pod", one, two));
        }
        // The pods can be in another cluster.
        if self.policy.id.kind == PolicyKind::ClusterSetNetworkPolicy {
            return None;
        }
        if let Scope::Matching(namespaces) = scope {
            let found = subject::namespace_labels(index, namespaces, || self.site(peer));
            // If no namespace matches, nothing is known about the pods in it.
            if found.is_some() || index.namespaces(namespaces).is_empty() {
                return found;
            }
        }
        if index.world.pods.is_empty() || !index.pods(own, scope, pods).is_empty() {
            return None;
        }
        if let Some(host) = index.hosts(own, scope, pods).first() {
            return Some(self.site(peer).warning(
                HOST_NETWORK_PEER,
                format!(
                    "matches only host network pods ({}), which selectors cannot match",
                    host.id
                ),
                "use an ipBlock with the addresses of their nodes instead",
            ));
        }
        let namespace = match scope {
            Scope::Own => format!("of namespace {own} "),
            Scope::Matching(s) if s.is_everything() => String::new(),
            Scope::Matching(s) => format!("of the namespaces with {s} "),
        };
        let any = index.pods(own, scope, &Selector::everything());
        let site = self.site(peer);
        Some(if any.is_empty() {
            site.info(
                PEER_MATCHES_NOTHING,
                format!("no pod {namespace}is known"),
                "ignore this if the pods are deployed from elsewhere",
            )
        } else if *scope == Scope::Own && self.matches_elsewhere(pods) {
            site.warning(
                PEER_MATCHES_NOTHING,
                format!("no pod {namespace}has {pods}, but pods of other namespaces do"),
                "a podSelector alone selects pods of the policy's own namespace: add a namespaceSelector to this entry",
            )
        } else {
            site.warning(
                PEER_MATCHES_NOTHING,
                format!("no pod {namespace}has {pods}"),
                subject::label_hint(index, own, scope, pods),
            )
        })
    }

    fn matches_elsewhere(&self, pods: &Selector) -> bool {
        let everywhere = Scope::Matching(Selector::everything());
        !self.index.pods(&self.policy.id.namespace, &everywhere, pods).is_empty()
    }

    fn no_nodes(&self, peer: &Peer, nodes: &Selector) -> Option<Finding> {
        let all = &self.index.world.nodes;
        let none = !all.is_empty() && !all.values().any(|n| select::matches(nodes, &n.labels));
        none.then(|| {
            self.site(peer).warning(
                PEER_MATCHES_NOTHING,
                format!("no node has {nodes}"),
                "compare the selector with `kubectl get nodes --show-labels`",
            )
        })
    }

    /// Whether two entries look like one that was split by mistake: pods with these labels in the
    /// namespaces with those labels.
    fn is_split(&self, first: &Peer, second: &Peer) -> bool {
        let (index, own) = (self.index, &self.policy.id.namespace);
        match (&first.who, &second.who) {
            (
                Who::Pods { scope: scope @ Scope::Matching(_), pods: all },
                Who::Pods { scope: Scope::Own, pods },
            ) => {
                all.is_everything()
                    && index.pods(own, &Scope::Own, pods).is_empty()
                    && !index.pods(own, scope, pods).is_empty()
            }
            _ => false,
        }
    }

    fn split(&self, peer: &Peer) -> Finding {
        self.site(peer).warning(
            SPLIT_PEER,
            "matches no pod here; the entry before it is a separate peer and admits every pod of its namespaces",
            "to select these pods in those namespaces, merge the two entries: remove the `-` before podSelector",
        )
    }

    /// Peers that are included in another peer of the same rule.
    fn redundant(&self, peers: &[Peer], findings: &mut Vec<Finding>) {
        let own = &self.policy.id.namespace;
        let mut seen = HashSet::new();
        for (at, peer) in peers.iter().enumerate() {
            let covered = |other: usize| {
                let (wide, narrow) = (&peers[other].who, &peer.who);
                other != at
                    && cover::who(self.index, own, wide, narrow)
                    && (other < at || !cover::who(self.index, own, narrow, wide))
            };
            let by = match peers.len() {
                0..=MAX_COMPARED => (0..peers.len()).find(|other| covered(*other)),
                _ => (!seen.insert(&peer.who)).then_some(0),
            };
            let Some(by) = by.map(|by| &peers[by]) else { continue };
            let hint = format!("remove it; entry {} already includes it", by.index);
            let message = "another entry of this rule includes this one";
            findings.push(self.site(peer).info(REDUNDANT_PEER, message, hint));
        }
    }
}
