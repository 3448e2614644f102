use std::{collections::BTreeSet, fmt, iter, net::IpAddr, sync::Arc};

use weir_datapath::Plan;
use weir_model::Name;
use weir_netfilter::report::SOURCE_TIMEOUT_SECONDS;
use weir_netlink::TooLong;

use crate::{
    ElementData, ElementKey, Hook, NftRule, NftSet, SetKind, TableId, encode::Batch, text,
};

/// Steps from one table content to another. It displays as equivalent commands of nft.
///
/// The kernel applies a group of steps atomically, but a packet inside the rules looks each map and
/// set up at its own moment. So the first groups prepare objects that no packet can reach yet, one
/// group then switches the maps, and the last one removes objects that no packet can reach any
/// more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The steps in order, in groups that the kernel applies atomically.
    groups: Vec<Group>,
    /// The generation of the kernel's rules that it was planned for. `None` for any.
    pub generation: Option<u32>,
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Creates the table if it does not exist.
    AddTable,
    /// Deletes the table with its content.
    DeleteTable,
    /// Creates an empty set.
    AddSet(Name, SetKind, Name),
    /// Creates an empty chain.
    AddChain(Name, Option<Hook>),
    /// Appends rules to a chain.
    AddRules(Name, Vec<NftRule>),
    /// Replaces the rules of a chain.
    ReplaceRules(Name, Vec<NftRule>),
    /// Adds elements to a set.
    Add(Name, SetKind, Vec<(ElementKey, Option<Arc<ElementData>>)>),
    /// Removes elements from a set.
    Remove(Name, SetKind, Vec<ElementKey>),
    /// Removes the rules of a chain.
    FlushChain(Name),
    /// Removes the elements of a set.
    FlushSet(Name),
    /// Deletes a chain with its rules.
    DeleteChain(Name),
    /// Deletes a set with its elements.
    DeleteSet(Name),
}

impl Step {
    /// The phase of the step in a transaction with this scope.
    fn phase(&self, SetChanges { new, old, movers, vacant }: &SetChanges<'_>) -> Phase {
        match self {
            // No packet enters the table before its base chains exist.
            Step::AddChain(_, Some(_)) | Step::ReplaceRules(..) => Phase::Switch,
            Step::AddRules(name, _) if is_base_chain(name) => Phase::Switch,
            Step::AddTable
            | Step::DeleteTable
            | Step::AddSet(..)
            | Step::AddChain(..)
            | Step::AddRules(..) => Phase::Prepare,
            Step::Add(name, ..) if new.contains(name) => Phase::Prepare,
            Step::Remove(name, ..) if old.contains(name) => Phase::Tidy,
            // A packet looks these sets up after a map directed it there, or instead of that. Grants
            // that exist before and after must stay.
            step if is_looked_up_later(step) => Phase::Prepare,
            Step::Remove(_, SetKind::Pairs(_), keys)
                if keys.iter().all(|key| is_of_vacant(vacant, key)) =>
            {
                Phase::Switch
            }
            Step::Remove(_, SetKind::Grants(_) | SetKind::Pairs(_), _) => Phase::Tidy,
            // An address that moves from one set to another must always be in one of them.
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

    pub(crate) fn add_set(name: &Name, set: &NftSet) -> Self {
        Step::AddSet(name.clone(), set.kind, set.comment.clone())
    }

    /// The steps that fill a new set.
    pub(crate) fn fill(name: &Name, set: &NftSet) -> impl Iterator<Item = Self> {
        let mut elements = set.elements.iter().map(|(key, data)| (key.clone(), data.clone()));
        iter::from_fn(move || {
            let batch: Vec<_> = elements.by_ref().take(MAX_BATCH_ELEMENTS).collect();
            (!batch.is_empty()).then(|| Step::Add(name.clone(), set.kind, batch))
        })
    }
}

/// Steps that the kernel applies atomically.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The steps.
    pub steps: Vec<Step>,
    /// When the kernel may apply them.
    pub wait_for: WaitFor,
}

/// When the kernel may apply steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// After the previous group.
    Nothing,
    /// After all packets have left the rules that were inside when the previous group was applied.
    PacketsInFlight,
}

/// The most elements that one batch adds to new sets. The kernel's hash tables grow between
/// transactions, and a longer transaction would fill them faster than that.
const MAX_BATCH_ELEMENTS: usize = 4_000;

/// Facts about all steps of a transaction.
struct SetChanges<'a> {
    /// The sets that it creates.
    new: BTreeSet<Name>,
    /// The sets that it deletes.
    old: BTreeSet<Name>,
    /// The addresses that it removes from one set of members and adds to another.
    movers: BTreeSet<IpAddr>,
    /// The addresses that no pod has any more.
    vacant: &'a BTreeSet<IpAddr>,
}

/// Whether a step adds elements that only a packet looks up which a map has directed. The same packet
/// cannot meet the new element of the map and miss these, even if both are in one batch.
fn is_looked_up_later(step: &Step) -> bool {
    matches!(step, Step::Add(_, SetKind::Grants(_) | SetKind::Pairs(_), _))
}

/// Whether a pair is of an address that no pod has any more. It sends nothing to itself.
pub(crate) fn is_of_vacant(vacant: &BTreeSet<IpAddr>, key: &ElementKey) -> bool {
    matches!(key, ElementKey::Pair(address, _) if vacant.contains(address))
}

fn is_base_chain(name: &str) -> bool {
    Hook::ALL.iter().any(|hook| hook.chain() == name)
}

/// The addresses in the keys of sets of members.
fn members<'k>(
    kind: SetKind,
    keys: impl IntoIterator<Item = &'k ElementKey>,
) -> impl Iterator<Item = IpAddr> {
    keys.into_iter().filter_map(move |key| match (kind, key) {
        (SetKind::Addresses(_), ElementKey::Address(at))
        | (SetKind::NumberedAddresses(_), ElementKey::NumberedAddress(_, at))
        | (SetKind::NumberedPorts(_), ElementKey::NumberedPort(_, at, ..))
        | (SetKind::Ports(_), ElementKey::Port(at, ..)) => Some(*at),
        _ => None,
    })
}

impl<'a> SetChanges<'a> {
    fn new(steps: &[Step], vacant: &'a BTreeSet<IpAddr>) -> Self {
        let (new, old, movers) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut scope = SetChanges { new, old, movers, vacant };
        let mut leaving = BTreeSet::new();
        for step in steps {
            match step {
                Step::AddSet(name, ..) => _ = scope.new.insert(name.clone()),
                Step::DeleteSet(name) => _ = scope.old.insert(name.clone()),
                Step::Remove(_, kind, keys) => leaving.extend(members(*kind, keys)),
                _ => (),
            }
        }
        let added = steps.iter().filter_map(|step| match step {
            Step::Add(_, kind, elements) if !leaving.is_empty() => Some((kind, elements)),
            _ => None,
        });
        for (kind, elements) in added {
            let joining = members(*kind, elements.iter().map(|(key, _)| key));
            scope.movers.extend(joining.filter(|member| leaving.contains(member)));
        }
        scope
    }
}

/// The phase in which a step is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Prepare,
    Switch,
    Tidy,
}

impl Transaction {
    /// Orders steps by phase and groups them. No pod has the vacant addresses any more.
    pub(crate) fn new(mut steps: Vec<Step>, vacant: &BTreeSet<IpAddr>) -> Self {
        let scope = SetChanges::new(&steps, vacant);
        steps.sort_by_cached_key(|step| step.phase(&scope));
        let switch = steps.partition_point(|step| step.phase(&scope) < Phase::Switch);
        let tidy = steps.partition_point(|step| step.phase(&scope) < Phase::Tidy);
        let redirects = |step: &Step| match step {
            Step::Add(_, kind, _) | Step::Remove(_, kind, _) => kind.is_map(),
            Step::AddChain(..) | Step::ReplaceRules(..) => true,
            _ => false,
        };
        let now = |steps| Group { steps, wait_for: WaitFor::Nothing };
        let when_arrived = |steps| Group { steps, wait_for: WaitFor::PacketsInFlight };
        let is_switched = steps.iter().take(tidy).skip(switch).any(redirects);
        let groups = if steps.contains(&Step::DeleteTable) {
            vec![now(steps)]
        } else if is_switched {
            let tidy = steps.split_off(tidy);
            let switch = steps.split_off(switch);
            let is_found = steps.iter().all(is_looked_up_later);
            let mut prepare = batches(steps);
            let switch = if is_found {
                let mut last = prepare.pop().unwrap_or_default();
                last.extend(switch);
                last
            } else {
                switch
            };
            let prepare = prepare.into_iter().map(now);
            prepare.chain([switch, tidy].map(when_arrived)).collect()
        } else if !scope.movers.is_empty() {
            let tidy = steps.split_off(tidy);
            vec![now(steps), when_arrived(tidy)]
        } else {
            vec![now(steps)]
        };
        let groups = groups.into_iter().filter(|group| !group.steps.is_empty()).collect();
        Transaction { groups, generation: None }
    }

    /// Drops the wait before the first group. This is right if the previous transactions were
    /// applied to their end.
    pub(crate) fn without_initial_wait(mut self) -> Self {
        if let Some(first) = self.groups.first_mut() {
            first.wait_for = WaitFor::Nothing;
        }
        self
    }

    /// Appends a transaction that starts after all packets have left the rules of this one.
    pub(crate) fn then(mut self, mut later: Transaction) -> Self {
        if let (false, Some(next)) = (self.groups.is_empty(), later.groups.first_mut()) {
            next.wait_for = WaitFor::PacketsInFlight;
        }
        self.groups.append(&mut later.groups);
        self
    }

    /// The same steps as one group, for tables in which a packet needs no consistent view.
    pub(crate) fn in_one_group(self) -> Self {
        let steps: Vec<Step> = self.groups.into_iter().flat_map(|group| group.steps).collect();
        let group = Group { steps, wait_for: WaitFor::Nothing };
        let groups = [group].into_iter().filter(|group| !group.steps.is_empty()).collect();
        Transaction { groups, generation: self.generation }
    }

    /// The steps in groups that the kernel applies atomically.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The steps in order.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.groups.iter().flat_map(|group| &group.steps)
    }

    /// The steps as netlink messages of one batch, as if packets could not observe it.
    pub fn as_one_batch(&self) -> Result<Vec<u8>, TooLong> {
        let steps: Vec<Step> = self.steps().cloned().collect();
        Ok(Batch::from_steps(TableId::Policies, &steps, None)?.bytes().to_vec())
    }

    /// The number of elements added or removed.
    pub fn elements(&self) -> usize {
        self.steps().map(elements).sum()
    }
}

/// Splits steps that no packet can observe into batches.
///
/// If a batch adds rules, or elements that lead to chains, the kernel checks the whole table for
/// loops. So these are in one batch: the last one, after the sets and elements that they refer to.
fn batches(steps: Vec<Step>) -> Vec<Vec<Step>> {
    let (checked, plain): (Vec<Step>, Vec<Step>) = steps.into_iter().partition(|step| match step {
        Step::AddChain(..) | Step::AddRules(..) => true,
        Step::Add(_, kind, _) => kind.is_map(),
        _ => false,
    });
    let mut batches: Vec<Vec<Step>> = Vec::new();
    let mut sum = 0;
    for step in plain {
        sum += elements(&step);
        match batches.last_mut().filter(|_| sum <= MAX_BATCH_ELEMENTS) {
            Some(batch) => batch.push(step),
            None => {
                sum = elements(&step);
                batches.push(vec![step]);
            }
        }
    }
    match batches.last_mut() {
        Some(last) => last.extend(checked),
        None => batches.push(checked),
    }
    batches
}

/// The number of elements that a step adds or removes.
fn elements(step: &Step) -> usize {
    match step {
        Step::Add(_, _, elements) => elements.len(),
        Step::Remove(_, _, keys) => keys.len(),
        _ => 0,
    }
}

/// The steps that delete our table, whether it exists or not.
pub(crate) fn removal() -> Transaction {
    Transaction::new(vec![Step::AddTable, Step::DeleteTable], &BTreeSet::new())
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
        self.write(f, TableId::Policies)
    }
}

impl Step {
    /// The step as a command of nft about this table.
    pub(crate) fn in_table(&self, table: TableId) -> impl fmt::Display {
        fmt::from_fn(move |f| self.write(f, table))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, table: TableId) -> fmt::Result {
        match self {
            Step::AddTable => write!(f, "add table {table}"),
            Step::DeleteTable => write!(f, "delete table {table}"),
            Step::AddSet(name, kind, comment) => {
                let word = if kind.is_map() { "map" } else { "set" };
                write!(f, "add {word} {table} {name} {{ type {kind}; ")?;
                kind.max_elements().map_or(Ok(()), |size| write!(f, "size {size}; "))?;
                kind.flags().map_or(Ok(()), |flags| write!(f, "flags {flags}; "))?;
                if kind.max_elements().is_some() {
                    write!(f, "timeout {SOURCE_TIMEOUT_SECONDS}s; ")?;
                }
                write!(f, "comment \"{comment}\"; }}")
            }
            Step::AddChain(name, None) => write!(f, "add chain {table} {name}"),
            Step::AddChain(name, Some(hook)) => {
                write!(f, "add chain {table} {name} {{ {hook} }}")
            }
            Step::AddRules(name, rules) => {
                let lines = rules.iter().map(|rule| format!("add rule {table} {name} {rule}"));
                f.write_str(&lines.collect::<Vec<_>>().join("\n"))
            }
            Step::ReplaceRules(name, rules) => {
                write!(f, "flush chain {table} {name}")?;
                rules.iter().try_for_each(|rule| write!(f, "\nadd rule {table} {name} {rule}"))
            }
            Step::Add(name, _, elements) => {
                let list: Vec<String> = elements
                    .iter()
                    .map(|(key, data)| text::element(key, data.as_deref()))
                    .collect();
                write!(f, "add element {table} {name} {{ {} }}", list.join(", "))
            }
            Step::Remove(name, _, keys) => {
                let list: Vec<String> = keys.iter().map(ElementKey::to_string).collect();
                write!(f, "delete element {table} {name} {{ {} }}", list.join(", "))
            }
            Step::FlushChain(name) => write!(f, "flush chain {table} {name}"),
            Step::FlushSet(name) => write!(f, "flush set {table} {name}"),
            Step::DeleteChain(name) => write!(f, "delete chain {table} {name}"),
            Step::DeleteSet(name) => write!(f, "delete set {table} {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_model::IpFamily;

    use super::*;

    #[test]
    fn few_new_objects_are_one_batch() {
        let (set, kind) = (Name::from("peers"), SetKind::Addresses(IpFamily::V4));
        let member = (ElementKey::Address(IpAddr::from([10, 0, 0, 1])), None);
        let chain = Name::from("chain");
        let steps = vec![
            Step::AddChain(chain.clone(), None),
            Step::AddSet(set.clone(), kind, Name::from("")),
            Step::Add(set, kind, vec![member]),
            Step::AddRules(chain, Vec::new()),
        ];
        let [batch] = &batches(steps.clone())[..] else { panic!("more than one batch") };
        assert_eq!(batch.len(), steps.len());
        assert!(matches!(batch[..], [Step::AddSet(..), Step::Add(..), ..]), "sets come first");
    }
}
