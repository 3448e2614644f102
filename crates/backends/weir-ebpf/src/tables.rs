//! The content of the maps, and the writes that change it.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use ipnet::IpNet;
use weir_model::IpFamily;

use crate::{
    digest::Digest,
    layout::{
        Config, Decision, Identity, MapId, PodEntry, PortPrefix, TierAction, address_key,
        address_value, decision_key, decision_value, network_key,
    },
};

/// The content of all maps except connections and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// The settings.
    pub config: Config,
    /// The known addresses.
    pub addresses: BTreeMap<IpAddr, Identity>,
    /// The kinds of other addresses.
    pub networks: BTreeMap<IpNet, u32>,
    /// The pods of this node.
    pub pods: BTreeMap<u32, PodEntry>,
    /// The decisions by tier and kind.
    pub decisions: BTreeMap<(u32, u32), Decision>,
    /// The lists of ports.
    pub ports: BTreeMap<PortPrefix, TierAction>,
    /// The digests of kinds.
    pub kinds: BTreeMap<u32, Digest>,
    /// The digests of tiers.
    pub tiers: BTreeMap<u32, Digest>,
}

/// A write to a map. Without a value, it removes the element.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of `Tables`")]
pub enum Write {
    Config(Config),
    Address(IpAddr, Option<Identity>),
    Network(IpNet, Option<u32>),
    Pod(u32, PodEntry),
    Decision { tier: u32, kind: u32, decision: Decision },
    Ports(PortPrefix, TierAction),
    Kind(u32, Digest),
    Tier(u32, Digest),
}

impl Write {
    /// The map, the key, and the value if there is one.
    pub fn encode(&self) -> (MapId, Vec<u8>, Option<Vec<u8>>) {
        match *self {
            Write::Config(config) => (MapId::Config, vec![0; 4], Some(config.to_bytes())),
            Write::Address(address, identity) => {
                let value = identity.map(|one| address_value(address, one).to_ne_bytes().to_vec());
                (MapId::Addresses(IpFamily::from(address)), address_key(address), value)
            }
            Write::Network(net, kind) => {
                let value = kind.map(|kind| kind.to_ne_bytes().to_vec());
                (MapId::Networks(IpFamily::from(net.addr())), network_key(net), value)
            }
            Write::Pod(number, entry) => {
                (MapId::Pods, number.to_ne_bytes().to_vec(), Some(entry.to_bytes()))
            }
            Write::Decision { tier, kind, decision } => {
                let value = decision_value(tier, kind, decision);
                let key = decision_key(tier, kind);
                (MapId::Decisions, key.to_ne_bytes().to_vec(), Some(value.to_ne_bytes().to_vec()))
            }
            Write::Ports(prefix, action) => {
                (MapId::Ports, prefix.key(), Some((action as u32).to_ne_bytes().to_vec()))
            }
            Write::Kind(kind, digest) => {
                (MapId::Kinds, kind.to_ne_bytes().to_vec(), Some(digest.to_vec()))
            }
            Write::Tier(tier, digest) => {
                (MapId::Tiers, tier.to_ne_bytes().to_vec(), Some(digest.to_vec()))
            }
        }
    }
}

impl Tables {
    /// Changes the tables as the kernel would. Returns whether anything changed.
    pub fn apply(&mut self, write: &Write) -> bool {
        fn put<K: Ord, V: PartialEq>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> bool {
            match value {
                Some(value) if map.get(&key) == Some(&value) => false,
                Some(value) => {
                    map.insert(key, value);
                    true
                }
                None => map.remove(&key).is_some(),
            }
        }
        match write {
            Write::Config(config) => {
                let is_new = self.config != *config;
                self.config = *config;
                is_new
            }
            Write::Address(address, identity) => put(&mut self.addresses, *address, *identity),
            Write::Network(net, kind) => put(&mut self.networks, *net, *kind),
            Write::Pod(number, entry) => put(&mut self.pods, *number, Some(*entry)),
            Write::Decision { tier, kind, decision } => {
                put(&mut self.decisions, (*tier, *kind), Some(*decision))
            }
            Write::Ports(prefix, action) => put(&mut self.ports, *prefix, Some(*action)),
            Write::Kind(kind, digest) => put(&mut self.kinds, *kind, Some(*digest)),
            Write::Tier(tier, digest) => put(&mut self.tiers, *tier, Some(*digest)),
        }
    }

    /// The writes that fill empty maps.
    pub fn writes(&self) -> impl Iterator<Item = Write> {
        let config = [Write::Config(self.config)].into_iter();
        let ports = self.ports.iter().map(|(prefix, action)| Write::Ports(*prefix, *action));
        let decisions = self.decisions.iter();
        let decisions = decisions.map(|((tier, kind), decision)| Write::Decision {
            tier: *tier,
            kind: *kind,
            decision: *decision,
        });
        let pods = self.pods.iter().map(|(number, entry)| Write::Pod(*number, *entry));
        let kinds = self.kinds.iter().map(|(kind, digest)| Write::Kind(*kind, *digest));
        let tiers = self.tiers.iter().map(|(tier, digest)| Write::Tier(*tier, *digest));
        let networks = self.networks.iter().map(|(net, kind)| Write::Network(*net, Some(*kind)));
        let addresses = self.addresses.iter();
        let addresses = addresses.map(|(address, one)| Write::Address(*address, Some(*one)));
        let before = config.chain(ports).chain(decisions).chain(pods).chain(kinds).chain(tiers);
        before.chain(networks).chain(addresses)
    }

    /// The most elements that one of the maps with a variable capacity has.
    pub fn size(&self) -> usize {
        let sizes = [
            self.addresses.len(),
            self.networks.len(),
            self.decisions.len(),
            self.ports.len(),
            self.kinds.len(),
            self.tiers.len(),
        ];
        sizes.into_iter().max().unwrap_or_default()
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Kind(kind) => write!(f, "kind {kind}"),
            Identity::Pod(number) => write!(f, "pod {number}"),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.list {
            0 => write!(f, "{}", self.rest),
            list => write!(f, "ports {list}, else {}", self.rest),
        }
    }
}

impl fmt::Display for PortPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = u32::from(self.first) + (1_u32 << (16 - self.bits)) - 1;
        match self.bits {
            16 => write!(f, "{} {}/{}", self.list, self.first, self.protocol),
            _ => write!(f, "{} {}-{last}/{}", self.list, self.first, self.protocol),
        }
    }
}

impl fmt::Display for PodEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kind {}", self.kind)?;
        for (name, side) in [("ingress", self.ingress), ("egress", self.egress)] {
            for (tier, one) in [("admin", side.admin), ("policies", side.rest)] {
                match one.tier {
                    0 => write!(f, "; {name} {tier} {}", one.usual)?,
                    number => write!(f, "; {name} {tier} tier {number}, else {}", one.usual)?,
                }
            }
        }
        if self.since != 0 {
            write!(f, "; since epoch {}", self.since)?;
        }
        Ok(())
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |digest: &Digest| digest.map(|byte| format!("{byte:02x}")).concat();
        match self {
            Write::Config(config) => {
                let mode = if config.is_audit { "audit" } else { "enforce" };
                write!(f, "config: epoch {}, {mode}", config.epoch)
            }
            Write::Address(address, Some(identity)) => write!(f, "address {address}: {identity}"),
            Write::Address(address, None) => write!(f, "address {address}: removed"),
            Write::Network(net, Some(kind)) => write!(f, "network {net}: kind {kind}"),
            Write::Network(net, None) => write!(f, "network {net}: removed"),
            Write::Pod(number, entry) => write!(f, "pod {number}: {entry}"),
            Write::Decision { tier, kind, decision } => {
                write!(f, "tier {tier}, kind {kind}: {decision}")
            }
            Write::Ports(prefix, action) => write!(f, "ports {prefix}: {action}"),
            Write::Kind(kind, digest) => write!(f, "kind {kind}: digest {}", hex(digest)),
            Write::Tier(tier, digest) => write!(f, "tier {tier}: digest {}", hex(digest)),
        }
    }
}
