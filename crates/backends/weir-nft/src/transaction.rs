use std::{collections::BTreeSet, fmt, iter, net::IpAddr, sync::Arc};

use weir_datapath::Plan;
use weir_model::Name;

use crate::{Aim, Hook, Key, Kind, Rule, Set, text};

/// Steps that lead from one table to another. It displays as commands of nft that do the same.
///
/// The kernel takes steps all at once or not at all; but a packet that is under way meanwhile looks each map and set up as it is
/// at that moment. So what packets cannot meet yet is prepared first, then the maps that lead them are switched at once, and what they
/// cannot meet any more is tidied away last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The steps in order, in groups that are taken at once.
    groups: Vec<Group>,
    /// The generation of the kernel's rules that it was planned for; `None` if any will do.
    pub generation: Option<u32>,
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The table comes to be, if it is not there.
    AddTable,
    /// The table goes, with everything in it.
    DeleteTable,
    /// A set comes to be, without elements.
    AddSet(Name, Kind, Name),
    /// A chain comes to be, without rules.
    AddChain(Name, Option<Hook>),
    /// Rules are added at the end of a chain.
    AddRules(Name, Vec<Rule>),
    /// The rules of a chain go, and these take their place.
    ReplaceRules(Name, Vec<Rule>),
    /// Elements come into a set.
    Add(Name, Kind, Vec<(Key, Option<Arc<Aim>>)>),
    /// Elements go from a set.
    Remove(Name, Kind, Vec<Key>),
    /// The rules of a chain go.
    FlushChain(Name),
    /// The elements of a set go.
    FlushSet(Name),
    /// A chain goes, with its rules.
    DeleteChain(Name),
    /// A set goes, with its elements.
    DeleteSet(Name),
}

impl Step {
    /// When it is taken, in a transaction like that.
    fn phase(&self, Scope { new, old, movers }: &Scope) -> Phase {
        match self {
            // Nothing leads into the table before the kernel calls one of its chains.
            Step::AddChain(_, Some(_)) | Step::ReplaceRules(..) => Phase::Switch,
            Step::AddRules(name, _) if &**name == HOOKED => Phase::Switch,
            Step::AddTable
            | Step::DeleteTable
            | Step::AddSet(..)
            | Step::AddChain(..)
            | Step::AddRules(..) => Phase::Prepare,
            Step::Add(name, ..) if new.contains(name) => Phase::Prepare,
            Step::Remove(name, ..) if old.contains(name) => Phase::Tidy,
            // These are asked after a map has led the packet there, or in its place: what both states allow must stay.
            Step::Add(_, Kind::Grants(_) | Kind::Pairs(_), _) => Phase::Prepare,
            Step::Remove(_, Kind::Grants(_) | Kind::Pairs(_), _) => Phase::Tidy,
            // Whoever goes from one set to another is never in neither.
            Step::Remove(_, kind, keys)
                if members(*kind, keys).any(|member| movers.contains(&member)) =>
            {
                Phase::Tidy
            }
            Step::Add(..) | Step::Remove(..) => Phase::Switch,
            Step::FlushChain(_) | Step::FlushSet(_) | Step::DeleteChain(_) | Step::DeleteSet(_) => {
                Phase::Tidy
            }
        }
    }

    pub(crate) fn add_set(name: &Name, set: &Set) -> Self {
        Step::AddSet(name.clone(), set.kind, set.comment.clone())
    }

    /// The steps that fill a new set.
    pub(crate) fn fill(name: &Name, set: &Set) -> impl Iterator<Item = Self> {
        let mut elements = set.elements.iter().map(|(key, aim)| (key.clone(), aim.clone()));
        iter::from_fn(move || {
            let some: Vec<_> = elements.by_ref().take(AT_ONCE).collect();
            (!some.is_empty()).then(|| Step::Add(name.clone(), set.kind, some))
        })
    }
}

/// Steps that the kernel takes all at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The steps.
    pub steps: Vec<Step>,
    /// When they may be taken.
    pub when: When,
}

/// When steps may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// After those before them.
    Now,
    /// When every packet has arrived that was under way after those before them.
    PacketsHaveArrived,
}

/// So many elements come into new sets at once: a hash table of the kernel grows between transactions, and in a longer one it
/// fills faster than that.
const AT_ONCE: usize = 4_000;

/// The chain that the kernel calls.
pub(crate) const HOOKED: &str = "forward";

/// What the steps of a transaction are about together.
struct Scope {
    /// The sets that come to be.
    new: BTreeSet<Name>,
    /// The sets that go.
    old: BTreeSet<Name>,
    /// Whoever goes from one set of members and comes into another.
    movers: BTreeSet<IpAddr>,
}

/// The members that keys are about, in sets of members.
fn members<'k>(
    kind: Kind,
    keys: impl IntoIterator<Item = &'k Key>,
) -> impl Iterator<Item = IpAddr> {
    keys.into_iter().filter_map(move |key| match (kind, key) {
        (Kind::Addresses(_), Key::Address(at)) | (Kind::Ports(_), Key::Port(at, ..)) => Some(*at),
        _ => None,
    })
}

impl Scope {
    fn of(steps: &[Step]) -> Self {
        let mut scope =
            Scope { new: BTreeSet::new(), old: BTreeSet::new(), movers: BTreeSet::new() };
        let mut going = BTreeSet::new();
        for step in steps {
            match step {
                Step::AddSet(name, ..) => _ = scope.new.insert(name.clone()),
                Step::DeleteSet(name) => _ = scope.old.insert(name.clone()),
                Step::Remove(_, kind, keys) => going.extend(members(*kind, keys)),
                _ => (),
            }
        }
        let added = steps.iter().filter_map(|step| match step {
            Step::Add(_, kind, elements) if !going.is_empty() => Some((kind, elements)),
            _ => None,
        });
        for (kind, elements) in added {
            let coming = members(*kind, elements.iter().map(|(key, _)| key));
            scope.movers.extend(coming.filter(|member| going.contains(member)));
        }
        scope
    }
}

/// When a step is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Prepare,
    Switch,
    Tidy,
}

impl Transaction {
    /// The steps in the order of their phases.
    pub(crate) fn of(mut steps: Vec<Step>) -> Self {
        let scope = Scope::of(&steps);
        steps.sort_by_cached_key(|step| step.phase(&scope));
        let switch = steps.partition_point(|step| step.phase(&scope) < Phase::Switch);
        let tidy = steps.partition_point(|step| step.phase(&scope) < Phase::Tidy);
        let leads = |step: &Step| match step {
            Step::Add(_, kind, _) | Step::Remove(_, kind, _) => kind.is_map(),
            Step::AddChain(..) | Step::ReplaceRules(..) => true,
            _ => false,
        };
        let at_once = |steps| Group { steps, when: When::Now };
        let when_arrived = |steps| Group { steps, when: When::PacketsHaveArrived };
        let is_switched = steps.iter().take(tidy).skip(switch).any(leads);
        let groups = if steps.contains(&Step::DeleteTable) {
            vec![at_once(steps)]
        } else if is_switched {
            let tidy = steps.split_off(tidy);
            let switch = steps.split_off(switch);
            let prepare = parts(steps).into_iter().map(at_once);
            prepare.chain([switch, tidy].map(when_arrived)).collect()
        } else if !scope.movers.is_empty() {
            let tidy = steps.split_off(tidy);
            vec![at_once(steps), when_arrived(tidy)]
        } else {
            vec![at_once(steps)]
        };
        let groups = groups.into_iter().filter(|group| !group.steps.is_empty()).collect();
        Transaction { groups, generation: None }
    }

    /// The same for a ruleset whose chains were all prepared by transactions that were taken to their end: nothing is to be waited
    /// for before the first steps.
    pub(crate) fn at_once(mut self) -> Self {
        if let Some(first) = self.groups.first_mut() {
            first.when = When::Now;
        }
        self
    }

    /// These steps and, when every packet has arrived that was under way after them, those.
    pub(crate) fn then(mut self, mut later: Transaction) -> Self {
        if let (false, Some(next)) = (self.groups.is_empty(), later.groups.first_mut()) {
            next.when = When::PacketsHaveArrived;
        }
        self.groups.append(&mut later.groups);
        self
    }

    /// The steps in groups that are taken at once.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The steps in order.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.groups.iter().flat_map(|group| &group.steps)
    }

    /// How many elements come or go.
    pub fn elements(&self) -> usize {
        self.steps().map(elements).sum()
    }
}

/// Cuts steps that no packet can meet into parts with not too many elements.
fn parts(steps: Vec<Step>) -> Vec<Vec<Step>> {
    let mut parts: Vec<Vec<Step>> = Vec::new();
    let mut sum = 0;
    for step in steps {
        sum += elements(&step);
        match parts.last_mut().filter(|_| sum <= AT_ONCE) {
            Some(part) => part.push(step),
            None => {
                sum = elements(&step);
                parts.push(vec![step]);
            }
        }
    }
    parts
}

/// How many elements come or go in a step.
fn elements(step: &Step) -> usize {
    match step {
        Step::Add(_, _, elements) => elements.len(),
        Step::Remove(_, _, keys) => keys.len(),
        _ => 0,
    }
}

/// The steps that leave no table of ours, whether there is one or not.
pub(crate) fn removal() -> Transaction {
    Transaction::of(vec![Step::AddTable, Step::DeleteTable])
}

impl Plan for Transaction {
    fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::AddTable => write!(f, "add table inet weir"),
            Step::DeleteTable => write!(f, "delete table inet weir"),
            Step::AddSet(name, kind, comment) => {
                let word = if kind.is_map() { "map" } else { "set" };
                write!(f, "add {word} inet weir {name} {{ type {kind}; ")?;
                kind.flags().map_or(Ok(()), |flags| write!(f, "flags {flags}; "))?;
                write!(f, "comment \"{comment}\"; }}")
            }
            Step::AddChain(name, None) => write!(f, "add chain inet weir {name}"),
            Step::AddChain(name, Some(hook)) => {
                write!(f, "add chain inet weir {name} {{ {hook} }}")
            }
            Step::AddRules(name, rules) => {
                let lines = rules.iter().map(|rule| format!("add rule inet weir {name} {rule}"));
                f.write_str(&lines.collect::<Vec<_>>().join("\n"))
            }
            Step::ReplaceRules(name, rules) => {
                write!(f, "flush chain inet weir {name}")?;
                rules.iter().try_for_each(|rule| write!(f, "\nadd rule inet weir {name} {rule}"))
            }
            Step::Add(name, _, elements) => {
                let list: Vec<String> =
                    elements.iter().map(|(key, aim)| text::element(key, aim.as_deref())).collect();
                write!(f, "add element inet weir {name} {{ {} }}", list.join(", "))
            }
            Step::Remove(name, _, keys) => {
                let list: Vec<String> = keys.iter().map(Key::to_string).collect();
                write!(f, "delete element inet weir {name} {{ {} }}", list.join(", "))
            }
            Step::FlushChain(name) => write!(f, "flush chain inet weir {name}"),
            Step::FlushSet(name) => write!(f, "flush set inet weir {name}"),
            Step::DeleteChain(name) => write!(f, "delete chain inet weir {name}"),
            Step::DeleteSet(name) => write!(f, "delete set inet weir {name}"),
        }
    }
}
