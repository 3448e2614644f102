use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant, SystemTime},
};

use weir_model::{Change, Name, Object};

use crate::{DnsAnswer, former};

/// An address stays known for at least this time, so that a pod can use the answer.
pub const MIN_TTL: Duration = Duration::from_secs(60);
/// An address stays known for at most this time after the last answer with it.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// The most addresses of a name. The one that expires first makes room for a new one.
pub const MAX_ADDRESSES_PER_NAME: usize = 256;
/// The most addresses of all names. The pod that asked for the most makes room for a new one.
pub const MAX_ADDRESSES: usize = 16_384;
/// The most pods that claim an address. The one with the most claims makes room for another pod.
const MAX_CLAIMS_PER_ADDRESS: usize = 4;

/// The first word of a record.
const RECORD: &str = "name";

/// The addresses of names, and until when they are known.
///
/// Each pod that asked for an address claims it. If there are too many, the pod with the most claims
/// loses one. An address without claims is removed, so a pod cannot displace those of other pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownNames {
    names: BTreeMap<Name, BTreeMap<IpAddr, KnownAddress>>,
    by_expiry: BTreeSet<(Instant, Name, IpAddr)>,
    by_address: BTreeMap<IpAddr, BTreeSet<Name>>,
    by_pod: BTreeMap<Asker, BTreeSet<(Instant, Name, IpAddr)>>,
}

/// The pod that claims an address; none for addresses from the records of an earlier agent.
type Asker = Option<IpAddr>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownAddress {
    until: Instant,
    /// The pods that asked, each with the end of its last answer.
    claims: Vec<(Asker, Instant)>,
}

/// The effect of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// The changes: of the name, and of names that lost an address.
    pub changes: Vec<Change>,
    /// The number of addresses that were removed because the node knows too many.
    pub displaced: usize,
}

impl KnownNames {
    /// Adds the addresses of an answer. An address that is already known never expires earlier
    /// than before.
    pub fn learn(&mut self, answer: &DnsAnswer, now: Instant) -> Learned {
        let (mut changed, mut displaced) = (BTreeSet::new(), 0);
        let name = &answer.name;
        for (address, ttl) in &answer.addresses {
            let until = now + (*ttl).clamp(MIN_TTL, MAX_TTL);
            if self.until(name, *address).is_none() {
                if self.names.get(name).map_or(0, BTreeMap::len) >= MAX_ADDRESSES_PER_NAME {
                    self.remove_first(name);
                }
                while self.by_expiry.len() >= MAX_ADDRESSES {
                    let gone = self.displace(answer.pod);
                    displaced += usize::from(gone.is_some());
                    changed.extend(gone);
                }
                changed.insert(name.clone());
            }
            self.claim(name, *address, Some(answer.pod), until);
        }
        Learned { changes: changed.iter().map(|name| self.change_of(name)).collect(), displaced }
    }

    /// Removes the addresses that have expired.
    pub fn expire(&mut self, now: Instant) -> Vec<Change> {
        let mut changed = BTreeSet::new();
        while let Some((until, name, address)) = self.by_expiry.first().cloned() {
            if until > now {
                break;
            }
            self.remove(&name, address);
            changed.insert(name);
        }
        changed.iter().map(|name| self.change_of(name)).collect()
    }

    /// Removes the names that no rule mentions any more.
    pub fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) -> Vec<Change> {
        let unwanted = self.names.keys().filter(|name| !is_wanted(name)).cloned();
        let unwanted: Vec<Name> = unwanted.collect();
        for name in &unwanted {
            let addresses = self.names.get(name).into_iter().flatten();
            for address in addresses.map(|(address, _)| *address).collect::<Vec<_>>() {
                self.remove(name, address);
            }
        }
        unwanted.iter().map(|name| self.change_of(name)).collect()
    }

    /// When the next address expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.by_expiry.first().map(|(until, ..)| *until)
    }

    /// All names with their addresses, and until when each of them is known.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, IpAddr, Instant)> {
        let names = self.names.iter();
        names.flat_map(|(name, all)| {
            all.iter().map(move |(address, known)| (name, *address, known.until))
        })
    }

    /// The names of an address, and until when each of them stands for it.
    pub fn names_of(&self, address: IpAddr) -> impl Iterator<Item = (&Name, Instant)> {
        let names = self.by_address.get(&address).into_iter().flatten();
        names.filter_map(move |name| Some((name, self.until(name, address)?)))
    }

    /// The changes that lead from no names to these.
    pub fn changes(&self) -> Vec<Change> {
        self.names.keys().map(|name| self.change_of(name)).collect()
    }

    /// Texts from which [`from_records`](KnownNames::from_records) restores the names. `wall` is
    /// the time of day at `now`.
    pub fn records(&self, now: Instant, wall: SystemTime) -> impl Iterator<Item = String> {
        let seconds = move |until: Instant| {
            let at = wall + until.saturating_duration_since(now);
            at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
        };
        self.names.iter().map(move |(name, addresses)| {
            let mut record = format!("{RECORD} {name}");
            for (address, known) in addresses {
                record.push_str(&format!(" {address}={}", seconds(known.until)));
            }
            record
        })
    }

    /// Whether a text is a record about names.
    pub fn is_record(text: &str) -> bool {
        matches!(text.split(' ').next(), Some(RECORD | former::RECORD))
    }

    /// The pod that asked for the most addresses.
    pub fn pod_with_most(&self) -> Option<IpAddr> {
        let most = self.by_pod.iter().max_by_key(|(_, all)| all.len());
        most.and_then(|(pod, _)| *pod)
    }

    /// Restores names from records. Other records and malformed parts are ignored. Addresses that
    /// have expired meanwhile are known until `now`: they were in force while no agent ran.
    pub fn from_records<'a>(
        records: impl Iterator<Item = &'a str>,
        now: Instant,
        wall: SystemTime,
    ) -> Self {
        let mut known = KnownNames::default();
        for record in records {
            let mut words = record.split(' ');
            let (Some(RECORD), Some(name)) = (words.next(), words.next()) else { continue };
            let name = Name::from(name);
            for (address, at) in words.filter_map(|word| word.split_once('=')) {
                let (Ok(address), Ok(seconds)) = (address.parse(), at.parse()) else { continue };
                let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
                let left = at.map(|at| at.duration_since(wall).unwrap_or_default());
                let Some(left) = left.filter(|left| *left <= MAX_TTL) else { continue };
                if known.by_expiry.len() < MAX_ADDRESSES {
                    known.claim(&name, address, None, now + left);
                }
            }
        }
        known
    }

    fn until(&self, name: &str, address: IpAddr) -> Option<Instant> {
        Some(self.names.get(name)?.get(&address)?.until)
    }

    fn change_of(&self, name: &Name) -> Change {
        let addresses = self.names.get(name).map(|all| all.keys().copied().collect());
        match addresses {
            Some(addresses) => Change::Put(Object::Domain(name.clone(), addresses)),
            None => Change::Remove(weir_model::Key::Domain(name.clone())),
        }
    }

    /// Adds an address, or prolongs its time.
    fn claim(&mut self, name: &Name, address: IpAddr, pod: Asker, until: Instant) {
        let new = || KnownAddress { until, claims: Vec::new() };
        let addresses = self.names.entry(name.clone()).or_default();
        let known = addresses.entry(address).or_insert_with(new);
        if known.claims.is_empty() {
            self.by_expiry.insert((until, name.clone(), address));
            self.by_address.entry(address).or_default().insert(name.clone());
        } else if known.until < until {
            self.by_expiry.remove(&(known.until, name.clone(), address));
            self.by_expiry.insert((until, name.clone(), address));
            known.until = until;
        }
        let claims = |pod: Asker| self.by_pod.get(&pod).map_or(0, BTreeSet::len);
        let mut replaced = known.claims.iter().position(|(other, _)| *other == pod);
        if replaced.is_some_and(|own| known.claims[own].1 >= until) {
            return;
        }
        if replaced.is_none() && known.claims.len() >= MAX_CLAIMS_PER_ADDRESS {
            let others = known.claims.iter().enumerate();
            let most = others.max_by_key(|(_, (other, _))| claims(*other));
            let more = most.filter(|(_, (other, _))| claims(*other) > claims(pod));
            let Some((at, _)) = more else { return };
            replaced = Some(at);
        }
        if let Some(at) = replaced {
            let (other, end) = known.claims.swap_remove(at);
            remove_from(&mut self.by_pod, other, &(end, name.clone(), address));
        }
        known.claims.push((pod, until));
        self.by_pod.entry(pod).or_default().insert((until, name.clone(), address));
    }

    fn remove(&mut self, name: &Name, address: IpAddr) {
        let Some(addresses) = self.names.get_mut(name) else { return };
        let Some(known) = addresses.remove(&address) else { return };
        if addresses.is_empty() {
            self.names.remove(name);
        }
        self.by_expiry.remove(&(known.until, name.clone(), address));
        remove_from(&mut self.by_address, address, name);
        for (pod, end) in known.claims {
            remove_from(&mut self.by_pod, pod, &(end, name.clone(), address));
        }
    }

    /// Removes the address of a name that expires first.
    fn remove_first(&mut self, name: &Name) {
        let addresses = self.names.get(name).into_iter().flatten();
        let first = addresses.min_by_key(|(_, known)| known.until).map(|(address, _)| *address);
        if let Some(address) = first {
            self.remove(name, address);
        }
    }

    /// Removes the claim that ends first among those of the pod with the most; if several have as
    /// many, of the pod that asks. If it was the last claim, removes the address and returns its name.
    fn displace(&mut self, asker: IpAddr) -> Option<Name> {
        let most = self.by_pod.iter().max_by_key(|(pod, all)| (all.len(), **pod == Some(asker)));
        let (&pod, all) = most?;
        let (end, name, address) = all.first()?.clone();
        let known = self.names.get_mut(&name)?.get_mut(&address)?;
        if let [_] = known.claims[..] {
            self.remove(&name, address);
            return Some(name);
        }
        known.claims.retain(|(other, _)| *other != pod);
        remove_from(&mut self.by_pod, pod, &(end, name, address));
        None
    }
}

/// Removes an element of a set, and the set if it is empty.
fn remove_from<K: Ord, V: Ord>(sets: &mut BTreeMap<K, BTreeSet<V>>, key: K, element: &V) {
    if let Some(set) = sets.get_mut(&key) {
        set.remove(element);
        if set.is_empty() {
            sets.remove(&key);
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an instant has no other beginning")]
mod tests;
