//! What a change opens and closes.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{PodId, PortRange, Verdict, World};

use super::{End, Family, Field, Names, Outside, State, networks, representatives, union};

/// Connections that a change opens or closes.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Whether they are open now.
    pub(crate) now: Verdict,
    /// Who connects.
    pub(crate) from: Vec<String>,
    /// To whom.
    pub(crate) to: Vec<String>,
    /// On which ports.
    pub(crate) ports: Vec<PortRange>,
    /// Only over this family, if the other one is different.
    pub(crate) family: Option<Family>,
}

/// Two states, and all that their rules can tell apart.
pub(crate) struct Comparison<'a> {
    old: &'a State,
    new: &'a State,
    field: Field,
}

/// The place of an end among the groups, and after them the outside classes.
type At = usize;

/// Connections that changed alike: which way, over which family, on which ports.
type Kind = (Verdict, Option<Family>, Vec<PortRange>);

impl<'a> Comparison<'a> {
    /// Works out what the rules of the two can tell apart.
    pub(crate) fn new(old: &'a State, new: &'a State) -> Self {
        Comparison { old, new, field: Field::new(&[old, new]) }
    }

    /// All that is opened and closed, openings first.
    pub(crate) fn changes(&self, owners: &BTreeMap<PodId, String>) -> Vec<Change> {
        // Those who changed alike towards one end, and then ends that the same changed towards.
        let mut towards: BTreeMap<(Kind, At), BTreeSet<At>> = BTreeMap::new();
        let ends: Vec<Vec<End<'_>>> = self.ends();
        for (from, to) in self.pairs() {
            for kind in self.compare(&ends[from], &ends[to]) {
                towards.entry((kind, to)).or_default().insert(from);
            }
        }
        let mut merged: BTreeMap<(Kind, BTreeSet<At>), BTreeSet<At>> = BTreeMap::new();
        for ((kind, to), from) in towards {
            merged.entry((kind, from)).or_default().insert(to);
        }
        let names = Names::new(self.field.groups.iter().flat_map(|group| &group.pods), owners);
        let mut changes: Vec<Change> = merged
            .into_iter()
            .map(|(((now, family, ports), from), to)| Change {
                now,
                from: self.names(&names, &from),
                to: self.names(&names, &to),
                ports,
                family,
            })
            .collect();
        changes.sort_by(|one, two| {
            (one.now, &one.to, &one.from, &one.ports)
                .cmp(&(two.now, &two.to, &two.from, &two.ports))
        });
        changes
    }

    /// All ends: groups first, then what is outside.
    fn ends(&self) -> Vec<Vec<End<'_>>> {
        let groups =
            self.field.groups.iter().map(|group| group.pods.iter().map(End::Pod).collect());
        groups.chain(self.field.outside.iter().map(|o| vec![End::Outside(o)])).collect()
    }

    /// The pairs between which something may have changed.
    fn pairs(&self) -> Vec<(At, At)> {
        let groups = self.field.groups.len();
        let all = groups + self.field.outside.len();
        let differs = |at: At| match at < groups {
            true => self.field.groups[at].differs,
            false => self.field.outside[at - groups].differs,
        };
        let judged = |from: At, to: At| from < groups || to < groups;
        (0..all)
            .flat_map(|from| (0..all).map(move |to| (from, to)))
            .filter(|(from, to)| judged(*from, *to) && (differs(*from) || differs(*to)))
            .collect()
    }

    /// What changed from one end to another.
    fn compare(&self, from: &[End<'_>], to: &[End<'_>]) -> Vec<Kind> {
        let Some((from, to)) = representatives(self.new, from, to) else { return Vec::new() };
        let mut families: Vec<(Family, Changed)> = Vec::new();
        for family in Family::BOTH {
            let addresses =
                |state| Some((from.address(state, family)?, to.address(state, family)?));
            let (Some(before), Some(after)) = (addresses(self.old), addresses(self.new)) else {
                continue;
            };
            let mut changed = Changed::default();
            for port in &self.field.ports {
                let was = self.old.verdict(before.0, before.1, *port);
                let is = self.new.verdict(after.0, after.1, *port);
                match (was, is) {
                    (Verdict::Deny, Verdict::Allow) => changed.opened.push(*port),
                    (Verdict::Allow, Verdict::Deny) => changed.closed.push(*port),
                    _ => (),
                }
            }
            families.push((family, changed));
        }
        let alike = families.windows(2).all(|pair| pair[0].1 == pair[1].1);
        let named = if alike { &families[..families.len().min(1)] } else { &families[..] };
        let mut kinds = Vec::new();
        for (family, changed) in named {
            let family = (!alike).then_some(*family);
            for (now, ports) in
                [(Verdict::Allow, &changed.opened), (Verdict::Deny, &changed.closed)]
            {
                if !ports.is_empty() {
                    kinds.push((now, family, union(ports.iter().copied())));
                }
            }
        }
        kinds
    }

    fn names(&self, names: &Names<'_>, ends: &BTreeSet<At>) -> Vec<String> {
        let groups = self.field.groups.len();
        let pods: BTreeSet<&PodId> = ends
            .iter()
            .filter_map(|at| self.field.groups.get(*at))
            .flat_map(|group| &group.pods)
            .collect();
        let outside: Vec<&Outside> =
            ends.iter().filter_map(|at| self.field.outside.get(at.checked_sub(groups)?)).collect();
        let mut words = if pods.is_empty() { Vec::new() } else { names.pods(&pods) };
        words.extend(networks(&outside, &self.field.outside));
        words
    }
}

#[derive(Default, PartialEq, Eq)]
struct Changed {
    opened: Vec<PortRange>,
    closed: Vec<PortRange>,
}

/// The old world with the pods that are only in the new one, and with their namespaces.
pub(crate) fn with_pods_of(mut old: World, new: &World) -> (World, Vec<PodId>) {
    let added: Vec<PodId> =
        new.pods.keys().filter(|id| !old.pods.contains_key(*id)).cloned().collect();
    for pod in added.iter().filter_map(|id| new.pods.get(id)) {
        old.pods.insert(pod.id.clone(), pod.clone());
        if let Some(namespace) = new.namespaces.get(&pod.id.namespace) {
            old.namespaces.entry(namespace.name.clone()).or_insert_with(|| namespace.clone());
        }
    }
    (old, added)
}
