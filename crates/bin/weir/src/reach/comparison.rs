//! What a change opens and closes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_model::{PodId, PortRange, Verdict, World};

use super::{
    End, Family, Field, Names, Outside, State,
    judge::{Judge, Party},
    networks,
    shelf::Open,
    union,
};

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
type At = u32;

/// Connections that changed alike: which way, over which family, on which ports.
type Kind = (Verdict, Option<Family>, Vec<PortRange>);

impl<'a> Comparison<'a> {
    /// Works out what the rules of the two can tell apart.
    pub(crate) fn new(old: &'a State, new: &'a State) -> Self {
        Comparison { old, new, field: Field::new(&[old, new]) }
    }

    /// All that is opened and closed, openings first. Says how far it is: so many of so many.
    pub(crate) fn changes(
        &self,
        owners: &BTreeMap<PodId, String>,
        mut progress: impl FnMut(usize, usize),
    ) -> Vec<Change> {
        let mut judge = Judge::new(&[self.old, self.new], &self.field.ports);
        let parties = self.parties(&mut judge);
        let groups = self.field.groups.len();
        let differs = |at: usize| match at < groups {
            true => self.field.groups[at].differs,
            false => self.field.outside[at - groups].differs,
        };
        // Those who changed alike towards one end, and then ends that the same changed towards.
        let mut kinds = Kinds::default();
        let mut towards: BTreeMap<(usize, At), Vec<At>> = BTreeMap::new();
        for (from, source) in parties.iter().enumerate() {
            progress(from, parties.len());
            for (to, target) in parties.iter().enumerate() {
                let judged = from < groups || to < groups;
                if !judged || !(differs(from) || differs(to)) {
                    continue;
                }
                let Some(open) = judge.open(source, target) else { continue };
                for kind in kinds.of(&judge, open) {
                    towards.entry((*kind, to as At)).or_default().push(from as At);
                }
            }
        }
        progress(parties.len(), parties.len());
        let mut merged: BTreeMap<(usize, Vec<At>), Vec<At>> = BTreeMap::new();
        for ((kind, to), from) in towards {
            merged.entry((kind, from)).or_default().push(to);
        }
        let names = Names::new(self.field.groups.iter().flat_map(|group| &group.pods), owners);
        let mut changes: Vec<Change> = merged
            .into_iter()
            .map(|((kind, from), to)| {
                let (now, family, ports) = kinds.all[kind].clone();
                let (from, to) = (self.names(&names, &from), self.names(&names, &to));
                Change { now, from, to, ports, family }
            })
            .collect();
        changes.sort_by(|one, two| {
            (one.now, &one.to, &one.from, &one.ports, one.family)
                .cmp(&(two.now, &two.to, &two.from, &two.ports, two.family))
        });
        changes
    }

    /// All ends: groups first, then what is outside.
    fn parties<'s>(&'s self, judge: &mut Judge<'s>) -> Vec<Party<'s>> {
        let groups =
            self.field.groups.iter().map(|group| group.pods.iter().map(End::Pod).collect());
        let outside = self.field.outside.iter().map(|outside| vec![End::Outside(outside)]);
        groups.chain(outside).map(|ends: Vec<End<'s>>| judge.party(ends)).collect()
    }

    fn names(&self, names: &Names<'_>, ends: &[At]) -> Vec<String> {
        let groups = self.field.groups.len();
        let ends: Vec<usize> = ends.iter().map(|at| *at as usize).collect();
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

/// The kinds of changes, each worked out once.
#[derive(Default)]
struct Kinds {
    all: Vec<Kind>,
    numbers: HashMap<Kind, usize>,
    known: HashMap<[Option<Vec<Open>>; 2], Vec<usize>>,
}

impl Kinds {
    /// What changed, given what was and is open over each family.
    fn of(&mut self, judge: &Judge<'_>, open: [Option<Vec<Open>>; 2]) -> &[usize] {
        let same = |both: &Vec<Open>| both[0] == both[1];
        if open.iter().flatten().all(same) {
            return &[];
        }
        if !self.known.contains_key(&open) {
            let kinds = self.work_out(judge, &open);
            self.known.insert(open.clone(), kinds);
        }
        &self.known[&open]
    }

    fn work_out(&mut self, judge: &Judge<'_>, open: &[Option<Vec<Open>>; 2]) -> Vec<usize> {
        let changed: Vec<(Family, [Vec<PortRange>; 2])> = Family::BOTH
            .into_iter()
            .zip(open)
            .filter_map(|(family, both)| {
                let both = both.as_ref()?;
                let (opened, closed) =
                    (judge.without(both[1], both[0]), judge.without(both[0], both[1]));
                Some((family, [union(opened), union(closed)]))
            })
            .collect();
        let alike = changed.windows(2).all(|pair| pair[0].1 == pair[1].1);
        let named = if alike { &changed[..changed.len().min(1)] } else { &changed[..] };
        let mut kinds = Vec::new();
        for (family, [opened, closed]) in named {
            let family = (!alike).then_some(*family);
            for (now, ports) in [(Verdict::Allow, opened), (Verdict::Deny, closed)] {
                if ports.is_empty() {
                    continue;
                }
                let kind = (now, family, ports.clone());
                let next = self.all.len();
                let number = *self.numbers.entry(kind.clone()).or_insert(next);
                if number == next {
                    self.all.push(kind);
                }
                kinds.push(number);
            }
        }
        kinds
    }
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
