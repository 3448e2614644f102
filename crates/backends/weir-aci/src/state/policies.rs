//! Policies, and what they ask for.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Block, Direction, Name, NamedPort, Pod, PolicyId, PolicyKind, Protocol};

use super::{Changed, Dirty, Group, Hpp, Meaning, Wanted};
use crate::{
    fixed, name,
    object::{Choice, Object, ObjectId, Pol, PolSpec},
    roster::Roster,
    rules::{self, Cluster, Numbers},
    said::{PortName, Said},
    term::{self, Family, Found, Realm, Term},
    text,
};

impl Hpp {
    pub(super) fn say(&mut self, id: &PolicyId, dirty: &mut Dirty) {
        let Some(said) = self.world.policies.get(id).and_then(Said::of) else { return };
        let published = text::published(&said);
        let meaning = (name::hash(&published), text::canonical(&said));
        self.meanings.insert(id.clone(), meaning.clone());
        let same_hash = self.hashes.entry(meaning.0.clone()).or_default();
        let group = same_hash.entry(meaning.1.clone()).or_insert_with(|| Group {
            said: said.clone(),
            published,
            policies: BTreeSet::new(),
            made: BTreeSet::new(),
        });
        let is_new = group.policies.is_empty();
        group.policies.insert(id.clone());
        // If others have the hash too, nobody keeps it.
        dirty.groups.extend(same_hash.keys().map(|text| (meaning.0.clone(), text.clone())));
        if is_new {
            if !said.own_ports().is_empty() {
                self.of_ports.entry(said.namespace.clone()).or_default().insert(meaning.clone());
            }
            if rules::asks_for_ports_in_blocks(&said) {
                self.of_blocks.insert(meaning.clone());
            }
            for term in rules::terms(&said) {
                self.want(term, &meaning, dirty);
            }
        }
    }

    pub(super) fn unsay(&mut self, id: &PolicyId, dirty: &mut Dirty) {
        let Some(meaning) = self.meanings.remove(id) else { return };
        let Some(same_hash) = self.hashes.get_mut(&meaning.0) else { return };
        dirty.groups.extend(same_hash.keys().map(|text| (meaning.0.clone(), text.clone())));
        let Some(group) = same_hash.get_mut(&meaning.1) else { return };
        group.policies.remove(id);
        if group.policies.is_empty() {
            if let Some(all) = self.of_ports.get_mut(&group.said.namespace) {
                all.remove(&meaning);
            }
            self.of_blocks.remove(&meaning);
            let terms = rules::terms(&group.said);
            terms.iter().for_each(|term| self.unwant(term, &meaning, dirty));
        }
    }

    pub(super) fn want(&mut self, term: Term, meaning: &Meaning, dirty: &mut Dirty) {
        if let Some(wanted) = self.terms.get_mut(&term) {
            wanted.by.insert(meaning.clone());
            return;
        }
        for mark in term.marks() {
            let uses = self.marks.entry(mark).or_default();
            *uses += 1;
            if *uses == 1 {
                dirty.containers.extend(self.rosters.keys().cloned());
            }
        }
        let mut wanted = Wanted::default();
        wanted.by.insert(meaning.clone());
        let find = |(name, roster): (&Name, &Roster)| {
            let labels = self.world.namespaces.get(name).map(|one| &one.labels);
            let is_meant = term.realm.holds(name, labels);
            let found = is_meant.then(|| term.find(roster.sorts.iter()))?;
            (!found.is_empty()).then(|| (name.clone(), found))
        };
        wanted.found = match &term.realm {
            Realm::One(name) => {
                self.rosters.get_key_value(name).and_then(find).into_iter().collect()
            }
            Realm::Matching(_) | Realm::Every => self.rosters.iter().filter_map(find).collect(),
        };
        self.terms.insert(term, wanted);
    }

    pub(super) fn unwant(&mut self, term: &Term, meaning: &Meaning, dirty: &mut Dirty) {
        let Some(wanted) = self.terms.get_mut(term) else { return };
        wanted.by.remove(meaning);
        if !wanted.by.is_empty() {
            return;
        }
        self.terms.remove(term);
        for mark in term.marks() {
            let uses = self.marks.entry(mark.clone()).or_default();
            *uses = uses.saturating_sub(1);
            if *uses == 0 {
                self.marks.remove(&mark);
                dirty.containers.extend(self.rosters.keys().cloned());
            }
        }
    }

    pub(super) fn all_meanings(&self) -> impl Iterator<Item = Meaning> {
        self.hashes
            .iter()
            .flat_map(|(hash, all)| all.keys().map(move |text| (hash.clone(), text.clone())))
    }

    /// Makes the objects of these policies what they must be now. One of them may take over the name that another gives up.
    pub(super) fn pols(&mut self, meanings: &BTreeSet<Meaning>, changed: &mut Changed) {
        let mut wanted: BTreeMap<ObjectId, Object> = BTreeMap::new();
        let mut stale: BTreeSet<ObjectId> = BTreeSet::new();
        for meaning in meanings {
            let made = self.wanted(meaning);
            stale.extend(self.remember(meaning, made.keys().cloned().collect()));
            wanted.extend(made);
        }
        for id in stale.into_iter().filter(|id| !wanted.contains_key(id)) {
            self.put(id, None, changed);
        }
        for (id, object) in wanted {
            self.put(id, Some(object), changed);
        }
    }

    /// The objects of the policies that say one thing.
    fn wanted(&self, meaning: &Meaning) -> BTreeMap<ObjectId, Object> {
        let group = self.hashes.get(&meaning.0).and_then(|all| all.get(&meaning.1));
        let Some(group) = group.filter(|group| !group.policies.is_empty()) else {
            return BTreeMap::new();
        };
        let classes = self.classes(&group.said).into_iter();
        let objects = classes.map(|numbers| Object::Pol(self.pol(group, meaning, &numbers)));
        objects.map(|object| (object.id(), object)).collect()
    }

    /// Policies that say one thing have these objects now. Returns those that they had; who has no policy any more is forgotten.
    fn remember(&mut self, meaning: &Meaning, made: BTreeSet<ObjectId>) -> BTreeSet<ObjectId> {
        let (hash, text) = meaning;
        let Some(same_hash) = self.hashes.get_mut(hash) else { return BTreeSet::new() };
        let Some(group) = same_hash.get_mut(text) else { return BTreeSet::new() };
        let before = std::mem::replace(&mut group.made, made);
        if group.policies.is_empty() {
            same_hash.remove(text);
        }
        if same_hash.is_empty() {
            self.hashes.remove(hash);
        }
        before
    }

    /// How the pods that a policy speaks for number the ports it names: once, if it names none.
    pub(super) fn classes(&self, said: &Said) -> BTreeSet<Numbers> {
        let names = said.own_ports();
        let sorts = self.rosters.get(&said.namespace).into_iter().flat_map(|one| &one.sorts);
        let own = sorts.filter(|sort| term::holds(&said.subject, &sort.labels));
        let mut classes: BTreeSet<Numbers> = own.map(|sort| numbers(&names, &sort.ports)).collect();
        if classes.is_empty() {
            classes.insert(numbers(&names, &[]));
        }
        classes
    }

    pub(super) fn pol(&self, group: &Group, meaning: &Meaning, numbers: &Numbers) -> Pol {
        let subject = |id: &PolicyId| {
            let policy = self.world.policies.get(id)?;
            Some((&*policy.id.namespace, &policy.spec.subject.pods))
        };
        let chosen: Vec<_> = group.policies.iter().filter_map(subject).collect();
        Pol {
            spec: PolSpec {
                name: self.pol_name(group, meaning, numbers),
                hostprot_subj: rules::subjects(&group.said, numbers, self),
                network_policies: group
                    .policies
                    .iter()
                    .map(|id| format!("{}/{}", id.namespace, id.name))
                    .collect(),
            },
            selects: Some(Choice::all(chosen.into_iter())),
        }
    }

    pub(super) fn pol_name(&self, group: &Group, meaning: &Meaning, numbers: &Numbers) -> String {
        let (hash, text) = meaning;
        // Those whose policies have gone do not count.
        let others = self.hashes.get(hash).into_iter().flatten();
        let is_shared =
            others.filter(|(_, other)| !other.policies.is_empty()).any(|(other, _)| other != text);
        let class: String = numbers
            .iter()
            .map(|((name, _), numbers)| {
                let list: Vec<String> =
                    numbers.iter().map(|(protocol, port)| format!("{protocol}:{port}")).collect();
                format!("[{name}={}]", list.join(","))
            })
            .collect();
        let hash = match (is_shared, class.is_empty()) {
            (false, true) => hash.clone(),
            (false, false) => name::hash(&format!("{}{class}", group.published)),
            (true, _) => name::hash(&format!("{}{text}{class}", group.published)),
        };
        name::policy_object(&self.settings.prefix, "np", &hash)
    }

    /// The policies whose hash others have that mean something else, with the hash and how many those are.
    pub(crate) fn shared_hashes(&self) -> impl Iterator<Item = (&PolicyId, &str, usize)> {
        self.hashes.iter().filter(|(_, all)| all.len() > 1).flat_map(|(hash, all)| {
            let total: usize = all.values().map(|group| group.policies.len()).sum();
            all.values().flat_map(move |group| {
                let others = total - group.policies.len();
                group.policies.iter().map(move |id| (id, hash.as_str(), others))
            })
        })
    }

    pub(super) fn statics(&mut self, changed: &mut Changed) {
        for pol in fixed::statics(&self.settings.prefix, &self.families) {
            let object = Object::Pol(pol);
            self.put(object.id(), Some(object), changed);
        }
    }

    /// The names of the groups that the rules of a pod come from, as its endpoint must list them: none if no policy selects it.
    pub fn groups(&self, pod: &Pod) -> Vec<String> {
        let from = PolicyId {
            kind: PolicyKind::NetworkPolicy,
            namespace: pod.id.namespace.clone(),
            name: "".into(),
        };
        let mut groups = Vec::new();
        let mut isolated = BTreeSet::new();
        let here = self.meanings.range(from..);
        for (id, meaning) in here.take_while(|(id, _)| id.namespace == pod.id.namespace) {
            let group = self.hashes.get(&meaning.0).and_then(|all| all.get(&meaning.1));
            let policy = self.world.policies.get(id);
            let (Some(group), Some(policy)) = (group, policy) else { continue };
            if !term::holds(&policy.spec.subject.pods, &pod.labels) {
                continue;
            }
            let numbers = numbers(&group.said.own_ports(), &pod.ports);
            groups.push(self.pol_name(group, meaning, &numbers));
            let speaks = |direction: &&Direction| policy.rules(**direction).is_some();
            isolated.extend(Direction::BOTH.iter().filter(speaks).copied());
        }
        if groups.is_empty() {
            return groups;
        }
        groups.sort();
        groups.dedup();
        let prefix = &self.settings.prefix;
        groups.extend(pod.node.as_ref().map(|node| name::policy_object(prefix, "node", node)));
        groups.push(name::policy_object(prefix, "np", "static-discovery"));
        for direction in Direction::BOTH {
            if !isolated.contains(&direction) {
                groups.push(name::policy_object(prefix, "np", &format!("static-{direction}")));
            }
        }
        groups
    }
}

impl Cluster for Hpp {
    fn found(&self, term: &Term) -> &BTreeMap<Name, BTreeSet<Found>> {
        static NOBODY: BTreeMap<Name, BTreeSet<Found>> = BTreeMap::new();
        self.terms.get(term).map_or(&NOBODY, |wanted| &wanted.found)
    }

    fn named_in(&self, block: &Block, port: &PortName) -> BTreeMap<(Protocol, u16), Vec<IpAddr>> {
        let mut all: BTreeMap<(Protocol, u16), Vec<IpAddr>> = BTreeMap::new();
        for (address, id) in self.rosters.values().flat_map(|roster| &roster.entries) {
            let Some(pod) = self.world.pods.get(id).filter(|_| block.contains(*address)) else {
                continue;
            };
            for number in term::numbers(port, &pod.ports) {
                all.entry(number).or_default().push(*address);
            }
        }
        all.values_mut().for_each(|addresses| {
            addresses.sort();
            addresses.dedup();
        });
        all
    }

    fn families(&self) -> &[Family] {
        &self.families
    }
}

fn numbers(names: &[PortName], ports: &[NamedPort]) -> Numbers {
    let of = |name: &PortName| (name.clone(), term::numbers(name, ports).collect());
    names.iter().map(of).collect()
}
