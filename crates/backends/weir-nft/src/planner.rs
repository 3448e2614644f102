use std::collections::{BTreeMap, BTreeSet};

use weir_datapath::{Dependents, Mode, Rejection};
use weir_model::{Delta, Direction, IpFamily, Member, Name, PodId, Program, SetDelta, SetId};

use crate::{
    ElementData, ElementKey, Installed, NftSet, NftTable, NftVerdict, SetKind, Transaction,
    layout::Slot, merge::MergeLimit, names, objects::Objects, peers::PeerSets,
    pod_elements::PodElements, replan, rule_chains::RuleChains, stages::Stages,
};

/// Turns deltas of the compiled rules into transactions for the kernel.
///
/// *Invariant*: after any sequence of deltas, its table equals that of a new planner for their
/// sum.
#[derive(Clone, Debug)]
pub struct Planner {
    mode: Mode,
    pub(crate) rejection: Rejection,
    pub(crate) merge_limit: MergeLimit,
    pub(crate) objects: Objects,
    pods: BTreeMap<PodId, PodElements>,
    /// The sets of the table that copy a set of the program.
    copies: BTreeMap<Name, SetCopy>,
    /// The sets of the table that hold the peers of tiers, by the name of the first one.
    pub(crate) peer_sets: BTreeMap<Name, PeerSets>,
    pub(crate) dependents: Dependents,
    pub(crate) chains: RuleChains,
    /// The chains of admin tiers computed for this plan, by the addresses of their sections.
    pub(crate) admin_chains: BTreeMap<(Vec<usize>, Direction, IpFamily), Name>,
}

/// A set of the table with the members of a set of the program.
#[derive(Clone, Debug)]
struct SetCopy {
    of: SetId,
    family: IpFamily,
}

impl weir_datapath::Planner for Planner {
    type Installed = Installed;
    type Plan = Transaction;

    fn has_rules(installed: &Installed) -> bool {
        installed.has_table
    }

    fn plan(&mut self, program: &Program, delta: &Delta) -> Transaction {
        let touched = self.dependents.touched_pods(program, delta);
        // `update_pods` fills new sets with the current members, so existing sets are updated
        // first.
        let stages = Stages::from_delta(self, program, delta);
        let members = stages.update_members(self, delta);
        self.update_pods(program, &touched);
        members.then(self.take_transaction())
    }

    fn replan(&mut self, program: &Program, installed: &Installed) -> Transaction {
        let empty = Planner::new(self.mode).with_rejection(std::mem::take(&mut self.rejection));
        *self = empty.with_merge_limit(self.merge_limit).filled(program);
        replan::replan(self.table(), installed)
    }
}

impl Planner {
    /// A planner whose table isolates no pod.
    pub fn new(mode: Mode) -> Self {
        let mut planner = Planner {
            mode,
            rejection: Rejection::default(),
            merge_limit: MergeLimit::default(),
            objects: Objects::default(),
            pods: BTreeMap::new(),
            copies: BTreeMap::new(),
            peer_sets: BTreeMap::new(),
            dependents: Dependents::default(),
            chains: RuleChains::default(),
            admin_chains: BTreeMap::new(),
        };
        planner.add_skeleton(mode);
        planner
    }

    /// A planner whose table enforces a program.
    pub fn from_program(program: &Program, mode: Mode) -> Self {
        Planner::new(mode).filled(program)
    }

    /// Sets which senders of denied packets get an answer from the rules of an empty planner.
    #[must_use]
    pub fn with_rejection(mut self, rejection: Rejection) -> Self {
        self.rejection = rejection;
        self.objects = Objects::default();
        self.add_skeleton(self.mode);
        self
    }

    /// Whether the table has a set of all pods of the node.
    pub(crate) fn lists_pods(&self) -> bool {
        self.mode == Mode::Enforce && self.rejection.answers(Direction::Ingress)
    }

    /// Sets the size up to which an empty planner merges rules.
    #[must_use]
    pub fn with_merge_limit(mut self, limit: MergeLimit) -> Self {
        self.merge_limit = limit;
        self
    }

    /// An empty planner, after it has planned a program.
    #[must_use]
    pub fn filled(mut self, program: &Program) -> Self {
        let pods = program.endpoints.keys().cloned().collect();
        self.update_pods(program, &pods);
        self.sweep();
        self.objects.clear_changes();
        self
    }

    /// The table of the current program.
    pub fn table(&self) -> &NftTable {
        &self.objects.table
    }

    /// Takes the changes since the last transaction.
    pub(crate) fn take_transaction(&mut self) -> Transaction {
        self.sweep();
        self.objects.take_transaction().without_initial_wait()
    }

    fn sweep(&mut self) {
        for removed in self.objects.sweep() {
            self.forget_set(&removed);
        }
        self.chains.sweep();
    }

    /// Updates the elements of pods. It adds new elements before it removes old ones, so that the
    /// sets and chains that both need stay.
    fn update_pods(&mut self, program: &Program, touched: &BTreeSet<PodId>) {
        self.admin_chains.clear();
        let mut gone = BTreeSet::new();
        for id in touched {
            let Some(old) = self.pods.remove(id) else { continue };
            self.dependents.remove_pod(id, &old.depends_on);
            // Its chains are still in the table.
            self.chains.remove_pod(&old.rules);
            gone.extend(old.elements);
        }
        let mut updated = Vec::new();
        for id in touched {
            let Some(endpoint) = program.endpoints.get(id) else { continue };
            let (pod, elements) = PodElements::compute(self, program, id, endpoint);
            self.dependents.add_pod(id, &pod.depends_on);
            self.chains.add_pod(&pod.rules);
            for (name, key, data) in elements {
                gone.remove(&(name.clone(), key.clone()));
                self.objects.put_element(&name, key, data);
            }
            updated.push((id.clone(), pod));
        }
        for (set, key) in &gone {
            self.objects.remove_element(set, key);
            if let ElementKey::Pair(address, _) = key
                && program.owner(*address).is_none()
            {
                self.objects.vacant.insert(*address);
            }
        }
        self.pods.extend(updated);
        IpFamily::BOTH.into_iter().for_each(|family| self.update_isolated_family(family));
    }

    /// Records whether a pod is isolated for ingress in this family.
    fn update_isolated_family(&mut self, family: IpFamily) {
        let (isolated, key) = (names::ISOLATED_FAMILIES.into(), ElementKey::Family(family));
        let pods = names::dispatch_map(Direction::Ingress, family);
        let has_pods = self.table().sets.get(&pods).is_some_and(|set| !set.elements.is_empty());
        if has_pods {
            self.put_once(&isolated, key);
        } else {
            self.objects.remove_element(&isolated, &key);
        }
    }

    /// Updates the copies of a changed set.
    pub(crate) fn update_copies(&mut self, id: &SetId, change: &SetDelta) {
        let kernel_sets: Vec<Name> = self.dependents.kernel_sets(id).cloned().collect();
        for name in &kernel_sets {
            let Some(SetCopy { family, .. }) = self.copies.get(name).cloned() else { continue };
            let ours = |member: &&Member| IpFamily::from(member.address) == family;
            let (added, removed): (&BTreeSet<Member>, Vec<ElementKey>) = match change {
                // A removed set keeps its other members while old rules name it.
                SetDelta::Change { added, removed } | SetDelta::Gone { added, removed } => {
                    (added, removed.iter().map(key).collect())
                }
                SetDelta::Put(members) => {
                    let now: BTreeSet<ElementKey> = members.iter().map(key).collect();
                    let old = self.table().sets.get(name).into_iter();
                    let old = old.flat_map(|set| set.elements.keys());
                    (members, old.filter(|key| !now.contains(key)).cloned().collect())
                }
            };
            added.iter().filter(ours).for_each(|member| self.put_once(name, key(member)));
            removed.iter().for_each(|key| self.objects.remove_element(name, key));
        }
    }

    pub(crate) fn put_once(&mut self, set: &Name, key: ElementKey) {
        let existing = self.table().sets.get(set);
        if existing.is_none_or(|set| !set.elements.contains_key(&key)) {
            self.objects.put_element(set, key, None);
        }
    }

    /// Adds a set with the members of a set of the program, and keeps it up to date.
    pub(crate) fn add_copy(
        &mut self,
        program: &Program,
        name: &Name,
        of: &SetId,
        kind: SetKind,
        comment: Name,
    ) {
        let (SetKind::Addresses(family) | SetKind::Ports(family)) = kind else { return };
        if self.copies.contains_key(name) {
            return;
        }
        let members = program.sets.get(of).into_iter().flatten();
        let ours = members.filter(|member| IpFamily::from(member.address) == family);
        let elements = ours.map(|member| (key(member), None)).collect();
        self.objects.add_set(name, NftSet { kind, comment, elements });
        self.dependents.add_kernel_set(name, [of]);
        self.copies.insert(name.clone(), SetCopy { of: of.clone(), family });
    }

    /// Adds the sets of peers, unless they exist, and keeps them up to date.
    pub(crate) fn add_peer_sets(
        &mut self,
        program: &Program,
        create: impl FnOnce() -> PeerSets,
        slots: &[Slot],
        meaning: impl Fn(&Slot) -> Name,
    ) {
        let Some(name) = slots.first().map(|slot| &slot.set) else { return };
        if self.peer_sets.contains_key(name) {
            return;
        }
        let mut peers = create();
        // Numbered sets share a set of the table.
        let mut sets: BTreeMap<&Name, NftSet> = BTreeMap::new();
        for (slot, elements) in slots.iter().zip(peers.fill(program)) {
            let set = sets.entry(&slot.set).or_insert_with(|| NftSet {
                kind: slot.kind,
                comment: meaning(slot),
                elements: BTreeMap::new(),
            });
            set.elements.extend(elements.into_iter().map(|key| (key, None)));
        }
        sets.into_iter().for_each(|(name, set)| _ = self.objects.add_set(name, set));
        self.dependents.add_kernel_set(name, peers.sets());
        self.peer_sets.insert(name.clone(), peers);
    }

    /// Stops updating a removed set of the table.
    fn forget_set(&mut self, name: &Name) {
        if let Some(SetCopy { of, .. }) = self.copies.remove(name) {
            self.dependents.remove_kernel_set(name, [&of]);
        }
        if let Some(peers) = self.peer_sets.remove(name) {
            self.dependents.remove_kernel_set(name, peers.sets());
        }
    }
}

/// The table that enforces a program.
pub fn render(program: &Program) -> NftTable {
    Planner::from_program(program, Mode::Enforce).objects.table
}

fn key(member: &Member) -> ElementKey {
    match member.port {
        None => ElementKey::Address(member.address),
        Some((protocol, port)) => ElementKey::Port(member.address, protocol, port),
    }
}

impl ElementData {
    /// A goto without a comment.
    pub(crate) fn goto(chain: Name) -> Self {
        ElementData { verdict: NftVerdict::Goto(chain), comment: Name::from("") }
    }
}
