//! What the designs of weir and of other projects send for the changes of pods.

use super::{NODES_PER_RELAY, recorded::Recorded};

/// The kinds that an agent or a relay watches.
const KINDS: usize = 7;
/// Calico: an update of a workload endpoint from Typha, of which every node gets every one. Assumed.
const TYPHA_UPDATE_BYTES: f64 = 500.0;
/// Cilium: the endpoints in a slice (`max-ciliumendpoints-per-ces`).
const CILIUM_SLICE: f64 = 100.0;
/// Cilium: the slices written each second (`ces-write-qps-limit` at its upper default).
const CILIUM_WRITES: f64 = 10.0;
/// Cilium: the bytes of an endpoint in a slice. Assumed.
const CILIUM_ENDPOINT_BYTES: f64 = 200.0;
/// Antrea: a member in a patch of an address group, for the nodes in its span. Assumed.
const ANTREA_MEMBER_BYTES: f64 = 200.0;

/// How changes of pods reach the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Design {
    /// weir: each agent watches the API server.
    Direct,
    /// weir: relays watch the API server and send each agent what it needs.
    Relays,
    Calico,
    Cilium,
    Antrea,
}

/// The figures that costs are computed from.
pub(super) struct Rates {
    /// The pod events each second.
    pub(super) changes: f64,
    pub(super) recorded: Recorded,
    /// The part of the nodes that an event reaches.
    pub(super) share: f64,
    /// What a relay sends for an event to a node that it reaches, with all headers.
    pub(super) frame: f64,
}

/// Bytes and CPU time each second.
pub(super) struct Cost {
    pub(super) watches: usize,
    pub(super) server: f64,
    /// The CPU time of the API server for watches, if the cost of one was measured.
    pub(super) server_cpu: Option<f64>,
    pub(super) relays: f64,
    /// The CPU time of all relays, if the cost of one was measured.
    pub(super) relay_cpu: Option<f64>,
    pub(super) node: f64,
    /// The CPU time of the agent of a node, if it was measured.
    pub(super) node_cpu: Option<f64>,
}

impl Rates {
    /// The bytes of one watch of all pods each second.
    pub(super) fn watch(&self) -> f64 {
        self.recorded.watch_bytes * self.changes
    }

    /// The CPU time of watches of all pods each second.
    fn watch_cpu(&self, watches: usize) -> Option<f64> {
        Some(self.recorded.watch_cpu * self.changes * watches as f64)
    }
}

impl Design {
    pub(super) const ALL: [Self; 5] =
        [Self::Direct, Self::Relays, Self::Calico, Self::Cilium, Self::Antrea];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "weir without relays",
            Self::Relays => "weir with relays",
            Self::Calico => "Calico, Typha (arithmetic)",
            Self::Cilium => "Cilium, CiliumEndpointSlice (arithmetic)",
            Self::Antrea => "Antrea, span (arithmetic)",
        }
    }

    /// The cost with a number of nodes.
    pub(super) fn cost(self, nodes: usize, rates: &Rates) -> Cost {
        let (watch, all) = (rates.watch(), nodes as f64);
        let relays = nodes.div_ceil(NODES_PER_RELAY);
        let followed = watch * relays as f64;
        let Recorded { agent, relay, .. } = &rates.recorded;
        let unmeasured = Cost {
            watches: 0,
            server: 0.0,
            server_cpu: None,
            relays: 0.0,
            relay_cpu: None,
            node: 0.0,
            node_cpu: None,
        };
        match self {
            Self::Direct => Cost {
                watches: nodes * KINDS,
                server: watch * all,
                server_cpu: rates.watch_cpu(nodes),
                node: watch,
                node_cpu: Some(agent.cpu * rates.changes),
                ..unmeasured
            },
            Self::Relays => {
                let node = rates.frame * rates.share * rates.changes;
                Cost {
                    watches: relays * KINDS,
                    server: followed,
                    server_cpu: rates.watch_cpu(relays),
                    relays: node * all,
                    relay_cpu: Some(relay.cpu * rates.changes * relays as f64),
                    node,
                    node_cpu: Some(relay.agent.cpu * rates.changes),
                }
            }
            Self::Calico => {
                let node = TYPHA_UPDATE_BYTES * rates.changes;
                let (watches, server_cpu) = (relays * KINDS, rates.watch_cpu(relays));
                let server = followed;
                Cost { watches, server, server_cpu, relays: node * all, node, ..unmeasured }
            }
            Self::Cilium => {
                let slices = rates.changes.min(CILIUM_WRITES);
                let node = CILIUM_SLICE * CILIUM_ENDPOINT_BYTES * slices;
                Cost { watches: nodes, server: node * all, node, ..unmeasured }
            }
            Self::Antrea => {
                let node = ANTREA_MEMBER_BYTES * rates.share * rates.changes;
                let (server, server_cpu) = (watch, rates.watch_cpu(1));
                Cost { watches: KINDS, server, server_cpu, relays: node * all, node, ..unmeasured }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_costs_the_server_one_watch_for_200_nodes() {
        let mut recorded = Recorded::default();
        (recorded.watch_bytes, recorded.watch_cpu) = (1_000.0, 1e-5);
        (recorded.agent.cpu, recorded.relay.cpu) = (3e-5, 2e-5);
        let rates = Rates { changes: 100.0, recorded, share: 0.01, frame: 250.0 };
        let direct = Design::Direct.cost(201, &rates);
        let relays = Design::Relays.cost(201, &rates);
        assert_eq!((direct.watches, relays.watches), (201 * KINDS, 2 * KINDS));
        assert_eq!((direct.server, relays.server), (201.0 * 1e5, 2e5));
        assert_eq!((direct.node, relays.node), (1e5, 250.0));
        assert_eq!(relays.relays, 201.0 * 250.0);
        assert!(direct.server_cpu > relays.server_cpu);
        assert_eq!((direct.relay_cpu, direct.node_cpu), (None, Some(3e-5 * 100.0)));
        assert_eq!((relays.relay_cpu, relays.node_cpu), (Some(2e-5 * 100.0 * 2.0), Some(0.0)));
        assert_eq!(Design::Calico.cost(201, &rates).node_cpu, None);
    }
}
