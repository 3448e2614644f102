use std::{collections::BTreeMap, fmt};

use weir_model::{IpFamily, Name};

use crate::{Entry, IpSetKind, IptablesRule, order::EvaluationOrder, text};

/// The steps from the installed state to the desired one. It displays as equivalent commands.
///
/// Sets and rules do not change in one transaction, so the order matters: at any moment a packet
/// must meet the old or the new decision of a direction. The plan first adds new sets and entries,
/// and removes pods that are no longer selected from the isolated sets. Then it replaces the rules
/// of each family atomically. Last it adds newly isolated pods, and removes unused objects. A
/// packet in flight uses the rules of its arrival but the current sets. Therefore the plan waits
/// for packets in flight before the last part, and between entries whose order matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IptablesPlan {
    /// The steps in order.
    pub steps: Vec<Step>,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create an empty set.
    Create(Name, IpSetKind, IpFamily),
    /// Add entries to a set, or change their comments.
    Add(Name, IpSetKind, Vec<(Entry, Name)>),
    /// Remove entries from a set.
    Remove(Name, IpSetKind, Vec<Entry>),
    /// Replace rules atomically.
    Restore(Script),
    /// Wait until all packets in flight have left the chains.
    WaitForPackets,
    /// Destroy a set with its entries.
    Destroy(Name),
}

impl Step {
    /// Whether the step does anything.
    pub(crate) fn is_work(&self) -> bool {
        match self {
            Step::Add(_, _, entries) => !entries.is_empty(),
            Step::Remove(_, _, entries) => !entries.is_empty(),
            Step::Restore(script) => !script.is_empty(),
            Step::Create(..) | Step::WaitForPackets | Step::Destroy(_) => true,
        }
    }
}

/// The input of `iptables-restore --noflush`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The family of the table.
    pub family: IpFamily,
    /// New and changed chains, with all their rules.
    pub chains: BTreeMap<Name, Vec<IptablesRule>>,
    /// Commands for built-in chains.
    pub jumps: Vec<String>,
    /// Chains to delete.
    pub gone: Vec<Name>,
}

impl Script {
    /// An empty script.
    pub(crate) fn new(family: IpFamily) -> Self {
        Script { family, chains: BTreeMap::new(), jumps: Vec::new(), gone: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.jumps.is_empty() && self.gone.is_empty()
    }
}

/// Entries with their comments.
type Entries = Vec<(Entry, Name)>;

/// The changes of a plan, without an order.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) created: Vec<(Name, IpSetKind, IpFamily, Entries)>,
    pub(crate) added: Vec<(Name, IpSetKind, Entries)>,
    pub(crate) removed: Vec<(Name, IpSetKind, Vec<Entry>)>,
    pub(crate) scripts: Vec<Script>,
    /// Changes to chains that no packet enters.
    pub(crate) signposts: Vec<Script>,
    pub(crate) destroyed: Vec<Name>,
}

impl Draft {
    pub(crate) fn plan(mut self, order: &EvaluationOrder<'_>) -> IptablesPlan {
        self.join_signposts();
        let is_isolated = |kind: IpSetKind| kind == IpSetKind::Isolated;
        let (newly_isolated, opening): (Vec<_>, Vec<_>) =
            self.added.into_iter().partition(|(_, kind, _)| is_isolated(*kind));
        let (no_longer_isolated, leaving): (Vec<_>, Vec<_>) =
            self.removed.into_iter().partition(|(_, kind, _)| is_isolated(*kind));
        let add = |(name, kind, entries)| Step::Add(name, kind, entries);
        let remove = |(name, kind, entries)| Step::Remove(name, kind, entries);
        let mut steps = Vec::new();
        for (name, kind, family, entries) in self.created {
            steps.push(Step::Create(name.clone(), kind, family));
            steps.push(Step::Add(name, kind, entries));
        }
        for (at, group) in order.groups(opening, |(entry, _)| entry).into_iter().enumerate() {
            steps.extend((at > 0).then_some(Step::WaitForPackets));
            steps.extend(group.into_iter().map(add));
        }
        steps.extend(no_longer_isolated.into_iter().map(remove));
        steps.extend(self.scripts.into_iter().map(Step::Restore));
        steps.push(Step::WaitForPackets);
        steps.extend(newly_isolated.into_iter().map(add));
        for (at, group) in order.groups(leaving, |entry| entry).into_iter().rev().enumerate() {
            steps.extend((at > 0).then_some(Step::WaitForPackets));
            steps.extend(group.into_iter().map(remove));
        }
        // Keep only single waits between two other steps.
        steps.retain(Step::is_work);
        steps.dedup_by(|one, other| *one == Step::WaitForPackets && *other == Step::WaitForPackets);
        if steps.first() == Some(&Step::WaitForPackets) {
            steps.remove(0);
        }
        _ = steps.pop_if(|step| *step == Step::WaitForPackets);
        let signposts = self.signposts.into_iter().map(Step::Restore);
        steps.extend(signposts.filter(Step::is_work));
        steps.extend(self.destroyed.into_iter().map(Step::Destroy));
        IptablesPlan { steps }
    }

    /// Joins the signposts of a family with its other rules. Without others, they stay separate:
    /// packets do not have to wait for them.
    fn join_signposts(&mut self) {
        for signposts in &mut self.signposts {
            let mut scripts = self.scripts.iter_mut();
            let script = scripts.find(|one| one.family == signposts.family && !one.is_empty());
            if let Some(script) = script {
                script.chains.append(&mut signposts.chains);
                script.gone.append(&mut signposts.gone);
            }
        }
    }
}

impl weir_datapath::Plan for IptablesPlan {
    fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl fmt::Display for IptablesPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| step.fmt(f))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Create(name, kind, family) => {
                writeln!(f, "{}", text::create(name, *kind, *family))
            }
            Step::Add(name, _, entries) => entries.iter().try_for_each(|(entry, comment)| {
                writeln!(f, "{}", text::add(name, entry, comment))
            }),
            Step::Remove(name, _, entries) => {
                entries.iter().try_for_each(|entry| writeln!(f, "del {name} {entry}"))
            }
            Step::Restore(script) => {
                let program = match script.family {
                    IpFamily::V4 => "iptables-restore",
                    IpFamily::V6 => "ip6tables-restore",
                };
                write!(f, "# {program} --noflush\n{script}")
            }
            Step::WaitForPackets => writeln!(f, "# wait for packets in flight"),
            Step::Destroy(name) => writeln!(f, "destroy {name}"),
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "*filter")?;
        for name in self.chains.keys().chain(&self.gone) {
            writeln!(f, ":{name} - [0:0]")?;
        }
        for (name, rules) in &self.chains {
            for rule in rules {
                writeln!(f, "-A {name} {rule}")?;
            }
        }
        for line in &self.jumps {
            writeln!(f, "{line}")?;
        }
        for name in &self.gone {
            writeln!(f, "-X {name}")?;
        }
        writeln!(f, "COMMIT")
    }
}
