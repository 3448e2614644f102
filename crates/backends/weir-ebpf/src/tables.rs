//! The content of the maps, and the writes that change it.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use weir_model::{IpFamily, Protocol};

use crate::{
    digest::Digest,
    layout::{
        Config, Decision, Identity, Kind, MapId, PodEntry, PortPrefix, TierAction, address_key,
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

impl Write {
    /// The write that gives a map an element; `None` if the element has another layout, or the map has
    /// other content than rules.
    pub fn decode(map: MapId, key: &[u8], value: &[u8]) -> Option<Write> {
        let word = |bytes: &[u8], at: usize| {
            Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        };
        let double = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
        let address = |bytes: &[u8]| -> Option<IpAddr> {
            match bytes.len() {
                4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
                _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
            }
        };
        Some(match map {
            MapId::Config => Write::Config(Config::from_bytes(value)?),
            MapId::Addresses(_) => {
                let identity = Identity::from_number(double(value)? as u32);
                Write::Address(address(key)?, Some(identity))
            }
            MapId::Networks(_) => {
                let length = u8::try_from(word(key, 0)?).ok()?;
                let net = IpNet::new(address(key.get(4..)?)?, length).ok()?;
                Write::Network(net, Some(word(value, 0)?))
            }
            MapId::Pods => Write::Pod(word(key, 0)?, PodEntry::from_bytes(value)?),
            MapId::Decisions => {
                let (key, value) = (double(key)?, double(value)?);
                let decision = Decision::from_number((value & 0xff_ffff) as u32);
                let (tier, kind) = ((key >> 24) as u32, (key & 0xff_ffff) as u32);
                Write::Decision { tier, kind, decision }
            }
            MapId::Ports => {
                let protocol = u16::from_ne_bytes(key.get(8..10)?.try_into().ok()?);
                let protocol = Protocol::from_number(u8::try_from(protocol).ok()?)?;
                let first = u16::from_be_bytes(key.get(10..12)?.try_into().ok()?);
                let bits = u8::try_from(word(key, 0)?.checked_sub(48)?).ok()?;
                let prefix = PortPrefix { list: word(key, 4)?, protocol, first, bits };
                Write::Ports(prefix, TierAction::from_number(word(value, 0)?))
            }
            MapId::Kinds => Write::Kind(word(key, 0)?, value.try_into().ok()?),
            MapId::Tiers => Write::Tier(word(key, 0)?, value.try_into().ok()?),
            MapId::Flows(_) | MapId::Denied | MapId::Reports | MapId::Sources(_) | MapId::Links => {
                return None;
            }
            MapId::Lane(_) | MapId::LaneSettings => return None,
        })
    }

    /// The map.
    pub(crate) fn map(&self) -> MapId {
        match self {
            Write::Config(_) => MapId::Config,
            Write::Address(address, _) => MapId::Addresses(IpFamily::from(*address)),
            Write::Network(net, _) => MapId::Networks(IpFamily::from(net.addr())),
            Write::Pod(..) => MapId::Pods,
            Write::Decision { .. } => MapId::Decisions,
            Write::Ports(..) => MapId::Ports,
            Write::Kind(..) => MapId::Kinds,
            Write::Tier(..) => MapId::Tiers,
        }
    }

    /// Whether the write gives an element a value, instead of removing it.
    pub(crate) fn has_value(&self) -> bool {
        !matches!(self, Write::Address(_, None) | Write::Network(_, None))
    }
}

impl Tables {
    /// Whether they have an element as a write would leave it.
    pub fn contain(&self, write: &Write) -> bool {
        match write {
            Write::Config(config) => self.config == *config,
            Write::Address(address, identity) => self.addresses.get(address) == identity.as_ref(),
            Write::Network(net, kind) => self.networks.get(net) == kind.as_ref(),
            Write::Pod(number, entry) => self.pods.get(number) == Some(entry),
            Write::Decision { tier, kind, decision } => {
                self.decisions.get(&(*tier, *kind)) == Some(decision)
            }
            Write::Ports(prefix, action) => self.ports.get(prefix) == Some(action),
            Write::Kind(kind, digest) => self.kinds.get(kind) == Some(digest),
            Write::Tier(tier, digest) => self.tiers.get(tier) == Some(digest),
        }
    }

    /// Changes the tables as the kernel would. Returns whether anything changed.
    pub fn apply(&mut self, write: &Write) -> bool {
        fn put<K: Ord, V: PartialEq + Copy>(
            map: &mut BTreeMap<K, V>,
            key: K,
            value: Option<V>,
        ) -> bool {
            match value {
                Some(value) => map.insert(key, value) != Some(value),
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

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kind {}", self.number)?;
        if self.has_former {
            write!(f, ", for established connections kind {}", self.number + 1)?;
        }
        Ok(())
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Kind(kind) => write!(f, "{kind}"),
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
        write!(f, "{}", self.kind)?;
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
