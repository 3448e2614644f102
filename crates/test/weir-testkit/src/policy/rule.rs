use proptest::{collection::vec, option, prelude::*, sample::select};
use weir_model::{Action, Peer, PolicyRule, PortMatch, PortRange, PortSpec, Who};

use crate::pool;

/// Rules of one direction with these peers and actions.
pub(super) fn rules(
    who: impl Strategy<Value = Who>,
    action: impl Strategy<Value = Action>,
) -> impl Strategy<Value = Vec<PolicyRule>> {
    let name = option::weighted(0.2, pool::name(&["first", "second"]));
    let peers = option::weighted(0.8, vec((who, 0..2_u32), 0..=3));
    let ports = option::weighted(0.6, vec(port_match(), 0..=3));
    vec((name, 0..2_u32, action, peers, ports), 0..=3).prop_map(|rules| {
        let numbered = (0..).zip(rules);
        numbered
            .map(|(index, (name, line, action, peers, ports))| {
                make_valid(PolicyRule {
                    index,
                    name,
                    line,
                    action,
                    peers: peers.map(|peers| {
                        let numbered = (0..).zip(peers);
                        numbered.map(|(index, (who, line))| Peer { index, line, who }).collect()
                    }),
                    ports: ports.map(|ports| {
                        ports.into_iter().map(|ports| PortSpec { line: 0, ports }).collect()
                    }),
                })
            })
            .collect()
    })
}

/// Removes from a rule what the API rejects: domain names in a rule that denies, and named ports with
/// nodes or domain names as peers.
pub(crate) fn make_valid(mut rule: PolicyRule) -> PolicyRule {
    if let Some(peers) = &mut rule.peers {
        peers.retain(|peer| rule.action == Action::Allow || !matches!(peer.who, Who::Domain(_)));
        let nameless = |peer: &Peer| matches!(peer.who, Who::Nodes(_) | Who::Domain(_));
        if let Some(ports) = &mut rule.ports
            && peers.iter().any(nameless)
        {
            ports.retain(|spec| matches!(spec.ports, PortMatch::Range(_)));
        }
    }
    rule
}

fn port_match() -> impl Strategy<Value = PortMatch> {
    let number = || select(pool::PORTS);
    prop_oneof![
        (pool::protocol(), number())
            .prop_map(|(protocol, port)| PortMatch::Range(PortRange::one(protocol, port))),
        (pool::protocol(), number(), number()).prop_map(|(protocol, a, b)| {
            PortMatch::Range(PortRange { protocol, first: a.min(b), last: a.max(b) })
        }),
        pool::protocol().prop_map(|protocol| PortMatch::Range(PortRange::all(protocol))),
        (pool::name(pool::PORT_NAMES), option::of(pool::protocol()))
            .prop_map(|(name, protocol)| PortMatch::Named { name, protocol }),
    ]
}
