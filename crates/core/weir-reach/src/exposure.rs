//! What is open to pods and namespaces that do not exist yet.
//!
//! Rules select pods by labels, so a new pod can be allowed without a change of any policy. A new
//! pod is represented by the selectors of a rule: it has the labels that they require and no others
//! that another rule could rely on.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use ipnet::IpNet;
use weir_model::{
    Action, Chain, Direction, Labels, NAMESPACE_NAME_LABEL, Name, Peers, PodId, PortOwners,
    PortRange, Requirement, Rule, RuleSet, Section, Selector, SetKey, Verdict, World,
};

use crate::{
    ReachState,
    assumption::contains_all_or_none,
    name::PodNames,
    port::{self, union},
    port_set::{PortSets, SliceSet},
};

/// The ports that are open between existing pods and new ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exposure {
    /// The existing pods.
    pub pods: Vec<String>,
    /// Ingress if the new pods are the sources.
    pub direction: Direction,
    /// The new pods; `None` if nothing is open to any of them.
    pub peers: Option<NewPods>,
    /// Whether the ports are open, or are closed although they are open to any other new pod.
    pub verdict: Verdict,
    /// The ports.
    pub ports: Vec<PortRange>,
    /// The ports that the new pods define by name.
    pub port_names: Vec<Name>,
}

/// Pods that do not exist yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewPods {
    /// Their namespaces.
    pub namespaces: NewPodNamespaces,
    /// The labels of the pods.
    pub pods: Selector,
}

/// The namespaces of pods that do not exist yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NewPodNamespaces {
    /// The namespaces with these labels.
    Matching(Selector),
    /// One namespace.
    Named(Name),
}

impl NewPods {
    /// Pods with any labels in any namespace.
    fn any() -> Self {
        let namespaces = NewPodNamespaces::Matching(Selector::everything());
        NewPods { namespaces, pods: Selector::everything() }
    }

    /// The pods of a set; `None` if it is not a set of pods.
    fn of_set(key: &SetKey) -> Option<Self> {
        let (namespaces, pods) = match key {
            SetKey::PodsIn(name, pods)
            | SetKey::Ports { owners: PortOwners::PodsIn(name, pods), .. } => {
                (NewPodNamespaces::Named(name.clone()), pods)
            }
            SetKey::Pods { namespaces, pods }
            | SetKey::Ports { owners: PortOwners::Pods { namespaces, pods }, .. } => {
                (matching(namespaces), pods)
            }
            SetKey::Ports { owners: PortOwners::Everyone, .. } => return Some(NewPods::any()),
            SetKey::HeldBy(_, key) => return NewPods::of_set(key),
            _ => return None,
        };
        Some(NewPods { namespaces, pods: pods.clone() })
    }

    /// Whether all of these pods are among the others.
    fn is_within(&self, other: &NewPods, world: &World) -> bool {
        let namespaces = match (&self.namespaces, &other.namespaces) {
            (NewPodNamespaces::Named(one), NewPodNamespaces::Named(two)) => one == two,
            (NewPodNamespaces::Matching(one), NewPodNamespaces::Matching(two)) => implies(one, two),
            (NewPodNamespaces::Matching(_), NewPodNamespaces::Named(_)) => false,
            (NewPodNamespaces::Named(name), NewPodNamespaces::Matching(selector)) => {
                let labels = world.namespaces.get(name).map(|namespace| &namespace.labels);
                labels.is_some_and(|labels| selects(selector, labels)) || selector.is_everything()
            }
        };
        namespaces && implies(&self.pods, &other.pods)
    }
}

/// The namespaces that a selector matches; one namespace if it requires only its name.
fn matching(selector: &Selector) -> NewPodNamespaces {
    if let [Requirement::In(key, values)] = selector.requirements()
        && let (NAMESPACE_NAME_LABEL, Some(name), 1) = (&**key, values.first(), values.len())
    {
        return NewPodNamespaces::Named(name.clone());
    }
    NewPodNamespaces::Matching(selector.clone())
}

/// Whether a selector matches labels.
fn selects(selector: &Selector, labels: &Labels) -> bool {
    selector.requirements().iter().all(|requirement| match requirement {
        Requirement::In(key, values) => labels.value(key).is_some_and(|v| values.contains(v)),
        Requirement::NotIn(key, values) => labels.value(key).is_none_or(|v| !values.contains(v)),
        Requirement::Exists(key) => labels.value(key).is_some(),
        Requirement::Absent(key) => labels.value(key).is_none(),
    })
}

/// Whether everything that one selector matches is matched by the other.
fn implies(one: &Selector, two: &Selector) -> bool {
    let implied = |wanted: &Requirement| {
        one.requirements().iter().any(|given| given == wanted || requirement_implies(given, wanted))
    };
    two.requirements().iter().all(implied)
}

fn requirement_implies(given: &Requirement, wanted: &Requirement) -> bool {
    if given.key() != wanted.key() {
        return false;
    }
    match (given, wanted) {
        (Requirement::In(_, given), Requirement::In(_, wanted)) => given.is_subset(wanted),
        (Requirement::In(_, given), Requirement::NotIn(_, wanted)) => given.is_disjoint(wanted),
        (Requirement::In(..), Requirement::Exists(_))
        | (Requirement::Absent(_), Requirement::NotIn(..)) => true,
        (Requirement::NotIn(_, given), Requirement::NotIn(_, wanted)) => wanted.is_subset(given),
        _ => false,
    }
}

impl fmt::Display for NewPods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pods.is_everything() {
            true => f.write_str("any pod")?,
            false => write!(f, "pods with {}", self.pods)?,
        }
        match &self.namespaces {
            NewPodNamespaces::Named(name) => write!(f, " in namespace {name}"),
            NewPodNamespaces::Matching(selector) if selector.is_everything() => {
                f.write_str(" in any namespace")
            }
            NewPodNamespaces::Matching(selector) => write!(f, " in namespaces with {selector}"),
        }
    }
}

impl ReachState {
    /// What is open between the selected pods and pods that do not exist yet, whose addresses are
    /// in these networks. Each pod has at least one entry per direction.
    pub fn exposures(
        &self,
        selected: impl Fn(&PodId) -> bool,
        networks: &[IpNet],
        owners: &BTreeMap<PodId, String>,
    ) -> Vec<Exposure> {
        let mut subjects: BTreeMap<*const RuleSet, (&Arc<RuleSet>, BTreeSet<&PodId>)> =
            BTreeMap::new();
        for (id, endpoint) in self.program.endpoints.iter().filter(|(id, _)| selected(id)) {
            let rules = &endpoint.rules;
            let entry = subjects.entry(Arc::as_ptr(rules));
            entry.or_insert_with(|| (rules, BTreeSet::new())).1.insert(id);
        }
        let all = subjects.values().flat_map(|(_, ids)| ids.iter().copied());
        let names = PodNames::new(all.collect::<BTreeSet<_>>(), owners);
        let port_sets = PortSets::new(&port::slices(&[&self.program]));
        let mut exposures = Vec::new();
        for (rules, ids) in subjects.values() {
            for direction in Direction::BOTH {
                let chain = ChainExposure {
                    chain: rules.chain(direction),
                    world: &self.world,
                    port_sets: &port_sets,
                    networks,
                };
                for (peers, verdict, ports, port_names) in chain.entries() {
                    let pods = names.pods(ids);
                    let entry = Exposure { pods, direction, peers, verdict, ports, port_names };
                    exposures.push(entry);
                }
            }
        }
        exposures.sort();
        exposures
    }
}

/// The rules of a pod in one direction.
struct ChainExposure<'a> {
    chain: &'a Chain,
    world: &'a World,
    port_sets: &'a PortSets,
    networks: &'a [IpNet],
}

type Entry = (Option<NewPods>, Verdict, Vec<PortRange>, Vec<Name>);

impl ChainExposure<'_> {
    fn entries(&self) -> Vec<Entry> {
        let any = NewPods::any();
        let (open, names) = (self.open(&any), self.port_names(&any));
        let mut entries = Vec::new();
        let mut add = |peers: &NewPods, verdict, ports: &SliceSet, names: &BTreeSet<Name>| {
            let ports = union(ports.iter().map(|at| self.port_sets.slices[at]));
            if !ports.is_empty() || !names.is_empty() {
                let names = names.iter().cloned().collect();
                entries.push((Some(peers.clone()), verdict, ports, names));
            }
        };
        add(&any, Verdict::Allow, &open, &names);
        let sets = self.chain.rules().filter_map(|rule| match &rule.peers {
            Peers::Set(set) | Peers::PortSet(set) => NewPods::of_set(set),
            Peers::Any | Peers::Block(_) => None,
        });
        for peers in sets.filter(|peers| *peers != any).collect::<BTreeSet<_>>() {
            let (mut more, mut less) = (self.open(&peers), open.clone());
            less.remove(&more);
            more.remove(&open);
            let new_names = self.port_names(&peers).difference(&names).cloned().collect();
            add(&peers, Verdict::Allow, &more, &new_names);
            add(&peers, Verdict::Deny, &less, &BTreeSet::new());
        }
        if entries.is_empty() {
            entries.push((None, Verdict::Deny, Vec::new(), Vec::new()));
        }
        entries
    }

    /// The ports that are open to all of these pods.
    fn open(&self, peers: &NewPods) -> SliceSet {
        let Chain { admin, isolation, baseline } = self.chain;
        let mut undecided = self.port_sets.all();
        let (mut open, mut passed) = (undecided.clone(), undecided.clone());
        open.remove(&undecided);
        passed.remove(&undecided);
        for rule in self.matching(admin, peers) {
            let decided = undecided.and(&self.port_sets.slices_of(&rule.ports));
            undecided.remove(&decided);
            match rule.action {
                Action::Allow => open.add(&decided),
                Action::Deny => (),
                Action::Pass => passed.add(&decided),
            }
        }
        undecided.add(&passed);
        match isolation {
            Some(sections) => {
                for rule in self.matching(&sections.to_vec(), peers) {
                    open.add(&undecided.and(&self.port_sets.slices_of(&rule.ports)));
                }
            }
            None => {
                for rule in self.matching(baseline, peers) {
                    let decided = undecided.and(&self.port_sets.slices_of(&rule.ports));
                    undecided.remove(&decided);
                    if rule.action != Action::Deny {
                        open.add(&decided);
                    }
                }
                open.add(&undecided);
            }
        }
        open
    }

    /// The rules that match all of these pods, whatever their addresses.
    fn matching<'s>(
        &'s self,
        sections: &'s [Arc<Section>],
        peers: &'s NewPods,
    ) -> impl Iterator<Item = &'s Rule> {
        let rules = sections.iter().flat_map(|section| &section.rules);
        rules.filter(|rule| match &rule.peers {
            Peers::Any => true,
            Peers::Set(set) => self.contains(set, peers),
            Peers::Block(block) => {
                let intervals = block.intervals();
                let is_family = |net: &&IpNet| net.addr().is_ipv4() == block.net.addr().is_ipv4();
                let mut nets = self.networks.iter().filter(is_family).peekable();
                nets.peek().is_some()
                    && nets.all(|net| contains_all_or_none(&intervals, net) == Some(true))
            }
            Peers::PortSet(_) => false,
        })
    }

    /// The named ports that rules open at these pods.
    fn port_names(&self, peers: &NewPods) -> BTreeSet<Name> {
        let mut found = BTreeSet::new();
        for rule in self.chain.rules().filter(|rule| rule.action == Action::Allow) {
            if let Peers::PortSet(set) = &rule.peers
                && self.contains(set, peers)
            {
                add_names(set, &mut found);
            }
        }
        found
    }

    fn contains(&self, set: &SetKey, peers: &NewPods) -> bool {
        NewPods::of_set(set).is_some_and(|others| peers.is_within(&others, self.world))
    }
}

fn add_names(key: &SetKey, found: &mut BTreeSet<Name>) {
    match key {
        SetKey::Ports { names, .. } => found.extend(names.iter().map(|(name, _)| name.clone())),
        SetKey::HeldBy(_, key) => add_names(key, found),
        _ => (),
    }
}
