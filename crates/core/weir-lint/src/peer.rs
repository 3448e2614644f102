//! Whom rules mean.

use std::collections::HashSet;

use weir_model::{Direction, Finding, Peer, Policy, PolicyKind, PolicyRule, Scope, Selector, Who};

use crate::{
    code::{HOST_NETWORK_PEER, PEER_MATCHES_NOTHING, REDUNDANT_PEER, SPLIT_PEER},
    cover,
    index::Index,
    select,
    site::{Site, rules},
    subject,
};

/// Above this many peers in a rule only equal ones are compared: people do not write such lists by hand.
const HAND_WRITTEN: usize = 64;

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for policy in index.world.policies.values() {
        for (direction, rule) in rules(policy) {
            let peers = rule.peers.as_deref().unwrap_or_default();
            let rule = RuleOf { index, policy, direction, rule };
            let splits: Vec<usize> =
                (1..peers.len()).filter(|at| rule.is_split(&peers[at - 1], &peers[*at])).collect();
            for (at, peer) in peers.iter().enumerate() {
                match splits.binary_search(&at).is_ok() {
                    true => findings.push(rule.split(peer)),
                    false => findings.extend(rule.nothing(peer)),
                }
            }
            rule.redundant(peers, findings);
        }
    }
}

struct RuleOf<'a, 'w> {
    index: &'a Index<'w>,
    policy: &'a Policy,
    direction: Direction,
    rule: &'a PolicyRule,
}

impl RuleOf<'_, '_> {
    fn site(&self, peer: &Peer) -> Site {
        Site::peer(self.policy, self.direction, self.rule, peer)
    }

    /// A peer that means no one.
    fn nothing(&self, peer: &Peer) -> Option<Finding> {
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
        // Whom it means may be in another cluster.
        if self.policy.id.kind == PolicyKind::ClusterSetNetworkPolicy {
            return None;
        }
        if let Scope::Matching(namespaces) = scope {
            let found = subject::namespace_labels(index, namespaces, || self.site(peer));
            // Without a namespace to look in, there is nothing to say about the pods in it.
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
                format!("matches only host network pods ({}), which no selector sees", host.id),
                "name the addresses of their nodes with an ipBlock instead",
            ));
        }
        let place = match scope {
            Scope::Own => format!("of namespace {own} "),
            Scope::Matching(s) if s.is_everything() => String::new(),
            Scope::Matching(s) => format!("of the namespaces with {s} "),
        };
        let any = index.pods(own, scope, &Selector::everything());
        let site = self.site(peer);
        Some(match (any.is_empty(), scope) {
            (true, _) => site.info(
                PEER_MATCHES_NOTHING,
                format!("no pod {place}is known"),
                "nothing to do if the pods are deployed from elsewhere",
            ),
            (false, Scope::Own) if self.matches_elsewhere(pods) => site.warning(
                PEER_MATCHES_NOTHING,
                format!("no pod {place}has {pods}, but pods of other namespaces do"),
                "a podSelector alone means the policy's own namespace: add a namespaceSelector to this entry",
            ),
            (false, _) => site.warning(
                PEER_MATCHES_NOTHING,
                format!("no pod {place}has {pods}"),
                subject::label_hint(index, own, scope, pods),
            ),
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

    /// Whether two entries look like one that was meant: pods with these labels in the namespaces with those.
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
            "matches no pod here; the entry before it is one of its own, and admits every pod of its namespaces",
            "to mean these pods in those namespaces, make the two one entry: remove the `-` before podSelector",
        )
    }

    /// Peers that others of the same rule include.
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
                0..=HAND_WRITTEN => (0..peers.len()).find(|other| covered(*other)),
                _ => (!seen.insert(&peer.who)).then_some(0),
            };
            let Some(by) = by.map(|by| &peers[by]) else { continue };
            let hint = format!("remove it; entry {} already admits everyone it means", by.index);
            let message = "another entry of this rule includes this one";
            findings.push(self.site(peer).info(REDUNDANT_PEER, message, hint));
        }
    }
}
