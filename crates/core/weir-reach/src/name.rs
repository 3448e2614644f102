//! Short names for groups of pods and addresses.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weir_model::{Name, PodId};

use crate::outside::OutsideClass;

/// All pods and their workloads, to name many pods by one word.
pub(crate) struct PodNames<'a> {
    /// The number of pods in each namespace.
    namespaces: BTreeMap<&'a Name, usize>,
    owners: &'a BTreeMap<PodId, String>,
    /// The number of pods of each workload.
    owned: BTreeMap<&'a str, usize>,
    all: BTreeSet<&'a PodId>,
}

impl<'a> PodNames<'a> {
    /// Names for these pods; `owners` holds `namespace/deployment/name` for pods of a known
    /// workload.
    pub(crate) fn new(
        pods: impl IntoIterator<Item = &'a PodId>,
        owners: &'a BTreeMap<PodId, String>,
    ) -> Self {
        let mut names = PodNames {
            namespaces: BTreeMap::new(),
            owners,
            owned: BTreeMap::new(),
            all: BTreeSet::new(),
        };
        for id in pods {
            names.all.insert(id);
            *names.namespaces.entry(&id.namespace).or_default() += 1;
            if let Some(owner) = owners.get(id) {
                *names.owned.entry(owner).or_default() += 1;
            }
        }
        names
    }

    /// The name of a row: pods of one namespace that are alike.
    pub(crate) fn row(&self, pods: &[&PodId]) -> String {
        match (pods, self.pods(&pods.iter().copied().collect()).as_slice()) {
            ([one], _) => one.to_string(),
            (_, [word]) => word.clone(),
            (_, [first, rest @ ..]) => format!("{first} and {} more", rest.len()),
            (_, []) => String::new(),
        }
    }

    /// The shortest list of names for these pods.
    pub(crate) fn pods(&self, pods: &BTreeSet<&PodId>) -> Vec<String> {
        if pods.len() == self.all.len() && self.all.len() > 1 {
            return vec![format!("every pod ({})", self.all.len())];
        }
        let missing: Vec<&PodId> = match self.all.len().saturating_sub(pods.len()) {
            1..=2 if self.all.len() >= 6 => self.all.difference(pods).copied().collect(),
            _ => Vec::new(),
        };
        if !missing.is_empty() {
            let but: Vec<String> = missing.iter().map(|id| id.to_string()).collect();
            return vec![format!("every pod but {} ({})", but.join(" and "), pods.len())];
        }
        let mut words = Vec::new();
        let mut by_namespace: BTreeMap<&Name, Vec<&PodId>> = BTreeMap::new();
        for id in pods {
            by_namespace.entry(&id.namespace).or_default().push(id);
        }
        for (namespace, members) in by_namespace {
            if members.len() > 1 && self.namespaces.get(namespace) == Some(&members.len()) {
                words.push(format!("{namespace}/* ({})", members.len()));
            } else {
                words.extend(self.part_of_namespace(&members));
            }
        }
        words
    }

    /// Names for some of the pods of one namespace.
    fn part_of_namespace(&self, pods: &[&PodId]) -> Vec<String> {
        let mut owned: BTreeMap<&str, Vec<&PodId>> = BTreeMap::new();
        let mut words = BTreeSet::new();
        for id in pods {
            match self.owners.get(*id) {
                Some(owner) => owned.entry(owner).or_default().push(id),
                None => {
                    words.insert(id.to_string());
                }
            }
        }
        for (owner, members) in owned {
            match self.owned.get(owner) {
                Some(all) if *all == members.len() && *all > 1 => {
                    words.insert(format!("{owner} ({all})"));
                }
                _ => words.extend(members.iter().map(|id| id.to_string())),
            }
        }
        words.into_iter().collect()
    }
}

/// The shortest list of names for some outside classes, given all of them.
pub(crate) fn networks(some: &[&OutsideClass], all: &[OutsideClass]) -> Vec<String> {
    let plain = |classes: &[&OutsideClass]| -> Vec<IpNet> {
        let nets = classes.iter().filter(|o| o.name.is_none()).flat_map(|o| o.nets.clone());
        IpNet::aggregate(&nets.collect())
    };
    let every: Vec<&OutsideClass> = all.iter().collect();
    let (part, whole) = (plain(some), plain(&every));
    let mut words = Vec::new();
    if part == whole && !part.is_empty() {
        words.push("outside".to_owned());
    } else {
        let is_v4 = |net: &IpNet| net.addr().is_ipv4();
        let both = whole.iter().any(is_v4) && !whole.iter().all(is_v4);
        for (family, zero) in [("IPv4", "0.0.0.0/0"), ("IPv6", "::/0")] {
            let zero = if both { zero } else { "outside" };
            let of = |nets: &[IpNet]| -> Vec<IpNet> {
                nets.iter().copied().filter(|net| is_v4(net) == (family == "IPv4")).collect()
            };
            let (part, whole) = (of(&part), of(&whole));
            if part.is_empty() {
                continue;
            }
            match (part == whole, complement(&part, &whole)) {
                (true, _) => words.push(format!("outside ({family})")),
                (false, rest) if rest.len() < part.len() => {
                    let rest: Vec<String> = rest.iter().map(IpNet::to_string).collect();
                    words.push(format!("{zero} except {}", rest.join(", ")));
                }
                _ => words.extend(part.iter().map(IpNet::to_string)),
            }
        }
    }
    words.extend(some.iter().filter_map(|class| class.name.clone()));
    words
}

/// The networks in `whole` and not in `part`, both aggregated.
fn complement(part: &[IpNet], whole: &[IpNet]) -> Vec<IpNet> {
    let mut rest: Vec<IpNet> = whole.to_vec();
    for taken in part {
        rest = rest.into_iter().flat_map(|net| without(net, taken)).collect();
    }
    IpNet::aggregate(&rest)
}

/// A network without one of its parts.
fn without(net: IpNet, taken: &IpNet) -> Vec<IpNet> {
    if taken.contains(&net) {
        return Vec::new();
    }
    if !net.contains(taken) {
        return vec![net];
    }
    let halves = net.subnets(net.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| without(half, taken)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outside(nets: &[&str]) -> OutsideClass {
        let nets: Vec<IpNet> = nets.iter().map(|net| net.parse().unwrap()).collect();
        OutsideClass { example: nets[0].network(), nets, name: None, node: None, differs: false }
    }

    #[test]
    fn outside_addresses_are_named_by_the_shorter_list() {
        let inner = outside(&["10.0.0.0/8"]);
        let rest = OutsideClass {
            nets: complement(&["10.0.0.0/8".parse().unwrap()], &["0.0.0.0/0".parse().unwrap()]),
            ..outside(&["0.0.0.0/5"])
        };
        let v6 = outside(&["::/0"]);
        let all = [inner.clone(), rest.clone(), v6.clone()];
        assert_eq!(networks(&[&inner], &all), ["10.0.0.0/8"]);
        assert_eq!(networks(&[&rest], &all), ["0.0.0.0/0 except 10.0.0.0/8"]);
        assert_eq!(networks(&[&inner, &rest], &all), ["outside (IPv4)"]);
        assert_eq!(networks(&[&inner, &rest, &v6], &all), ["outside"]);
    }
}
