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
    /// All pods, sorted.
    all: Vec<&'a PodId>,
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
            all: pods.into_iter().collect(),
        };
        names.all.sort_unstable();
        names.all.dedup();
        for id in &names.all {
            *names.namespaces.entry(&id.namespace).or_default() += 1;
            if let Some(owner) = owners.get(*id) {
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

    /// Whether a workload has this many pods.
    pub(crate) fn is_whole(&self, owner: &str, pods: usize) -> bool {
        self.owned.get(owner) == Some(&pods)
    }

    /// The index of a pod among all pods.
    pub(crate) fn index(&self, pod: &PodId) -> Option<usize> {
        self.all.binary_search(&pod).ok()
    }

    /// The shortest list of names for these pods.
    pub(crate) fn pods(&self, pods: &BTreeSet<&PodId>) -> Vec<String> {
        self.by_index(&pods.iter().filter_map(|id| self.index(id)).collect::<Vec<_>>())
    }

    /// The shortest list of names for the pods with these indexes, which are sorted.
    pub(crate) fn by_index(&self, pods: &[usize]) -> Vec<String> {
        let all = self.all.len();
        if pods.len() == all && all > 1 {
            return vec![format!("every pod ({all})")];
        }
        if let 1..=2 = all.saturating_sub(pods.len())
            && all >= 6
        {
            let is_missing = |at: &usize| pods.binary_search(at).is_err();
            let but = (0..all).filter(is_missing).map(|at| self.all[at].to_string());
            let but: Vec<String> = but.collect();
            return vec![format!("every pod but {} ({})", but.join(" and "), pods.len())];
        }
        let mut words = Vec::new();
        let is_one_namespace =
            |one: &usize, two: &usize| self.all[*one].namespace == self.all[*two].namespace;
        for members in pods.chunk_by(is_one_namespace) {
            let members: Vec<&PodId> = members.iter().map(|at| self.all[*at]).collect();
            let Some(namespace) = members.first().map(|id| &id.namespace) else { continue };
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

/// The networks of outside classes without a name, aggregated.
pub(crate) fn unnamed<'o>(classes: impl IntoIterator<Item = &'o OutsideClass>) -> Vec<IpNet> {
    let plain = classes.into_iter().filter(|class| class.name.is_none());
    IpNet::aggregate(&plain.flat_map(|class| class.nets.iter().copied()).collect())
}

/// The shortest list of names for some outside classes, given the unnamed networks of all.
pub(crate) fn networks(some: &[&OutsideClass], whole: &[IpNet]) -> Vec<String> {
    let part = unnamed(some.iter().copied());
    let mut words = Vec::new();
    if *part == *whole && !part.is_empty() {
        words.push("outside".to_owned());
    } else {
        let is_v4 = |net: &IpNet| net.addr().is_ipv4();
        let both = whole.iter().any(is_v4) && !whole.iter().all(is_v4);
        for (family, zero) in [("IPv4", "0.0.0.0/0"), ("IPv6", "::/0")] {
            let zero = if both { zero } else { "outside" };
            let of = |nets: &[IpNet]| -> Vec<IpNet> {
                nets.iter().copied().filter(|net| is_v4(net) == (family == "IPv4")).collect()
            };
            let (part, whole) = (of(&part), of(whole));
            if part.is_empty() {
                continue;
            }
            if part == whole {
                words.push(format!("outside ({family})"));
                continue;
            }
            // The rest of a single network is never shorter.
            let rest = if part.len() > 1 { complement(&part, &whole) } else { whole };
            if rest.len() < part.len() {
                let rest: Vec<String> = rest.iter().map(IpNet::to_string).collect();
                words.push(format!("{zero} except {}", rest.join(", ")));
            } else {
                words.extend(part.iter().map(IpNet::to_string));
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
        let all = unnamed(&[inner.clone(), rest.clone(), v6.clone()]);
        assert_eq!(networks(&[&inner], &all), ["10.0.0.0/8"]);
        assert_eq!(networks(&[&rest], &all), ["0.0.0.0/0 except 10.0.0.0/8"]);
        assert_eq!(networks(&[&inner, &rest], &all), ["outside (IPv4)"]);
        assert_eq!(networks(&[&inner, &rest, &v6], &all), ["outside"]);
    }
}
