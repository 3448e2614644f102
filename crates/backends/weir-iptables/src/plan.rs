use std::{collections::BTreeMap, fmt};

use weir_model::{IpFamily, Name};

use crate::{Entry, Kind, Rule, order::Turns, text};

/// Steps that lead from what is in the kernel to what is wanted. It displays as the commands that do the same.
///
/// Sets and rules are not one transaction, so the order matters: a packet at any moment meets the old decision of a direction or
/// the new one. First come new sets and new entries, and pods that nobody judges any more are let out; then the rules change, all
/// of a family at once; last come pods that are judged from now on, and what nothing needs any more goes. A packet that is under way
/// meets the rules as they were when it came and the sets as they are when they are asked, so before the last part all that are
/// under way arrive; and so they do between entries whose order matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps in order.
    pub steps: Vec<Step>,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A set comes to be, without entries.
    Create(Name, Kind, IpFamily),
    /// Entries come into a set, or get another word.
    Add(Name, Kind, Vec<(Entry, Name)>),
    /// Entries go from a set.
    Remove(Name, Kind, Vec<Entry>),
    /// Rules change, all at once.
    Restore(Script),
    /// Packets that are being judged are judged to the end.
    Settle,
    /// A set goes, with its entries.
    Destroy(Name),
}

impl Step {
    /// Whether it does anything.
    pub(crate) fn is_work(&self) -> bool {
        match self {
            Step::Add(_, _, entries) => !entries.is_empty(),
            Step::Remove(_, _, entries) => !entries.is_empty(),
            Step::Restore(script) => !script.is_empty(),
            Step::Create(..) | Step::Settle | Step::Destroy(_) => true,
        }
    }
}

/// What `iptables-restore --noflush` is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Whose table it is for.
    pub family: IpFamily,
    /// Chains that come to be or change, with all their rules.
    pub chains: BTreeMap<Name, Vec<Rule>>,
    /// Lines about built-in chains.
    pub jumps: Vec<String>,
    /// Chains that go.
    pub gone: Vec<Name>,
}

impl Script {
    /// A script that does nothing.
    pub(crate) fn new(family: IpFamily) -> Self {
        Script { family, chains: BTreeMap::new(), jumps: Vec::new(), gone: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.jumps.is_empty() && self.gone.is_empty()
    }
}

/// Entries, each with a word for people.
type Entries = Vec<(Entry, Name)>;

/// What is to be done, in no order yet.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) created: Vec<(Name, Kind, IpFamily, Entries)>,
    pub(crate) added: Vec<(Name, Kind, Entries)>,
    pub(crate) removed: Vec<(Name, Kind, Vec<Entry>)>,
    pub(crate) scripts: Vec<Script>,
    pub(crate) destroyed: Vec<Name>,
}

impl Draft {
    pub(crate) fn plan(self, turns: &Turns<'_>) -> Plan {
        let judged = |kind: Kind| kind == Kind::Isolated;
        let (closing, opening): (Vec<_>, Vec<_>) =
            self.added.into_iter().partition(|(_, kind, _)| judged(*kind));
        let (letting_out, leaving): (Vec<_>, Vec<_>) =
            self.removed.into_iter().partition(|(_, kind, _)| judged(*kind));
        let add = |(name, kind, entries)| Step::Add(name, kind, entries);
        let remove = |(name, kind, entries)| Step::Remove(name, kind, entries);
        let mut steps = Vec::new();
        for (name, kind, family, entries) in self.created {
            steps.push(Step::Create(name.clone(), kind, family));
            steps.push(Step::Add(name, kind, entries));
        }
        for (at, group) in turns.groups(opening, |(entry, _)| entry).into_iter().enumerate() {
            steps.extend((at > 0).then_some(Step::Settle));
            steps.extend(group.into_iter().map(add));
        }
        steps.extend(letting_out.into_iter().map(remove));
        steps.extend(self.scripts.into_iter().map(Step::Restore));
        steps.push(Step::Settle);
        steps.extend(closing.into_iter().map(add));
        for (at, group) in turns.groups(leaving, |entry| entry).into_iter().rev().enumerate() {
            steps.extend((at > 0).then_some(Step::Settle));
            steps.extend(group.into_iter().map(remove));
        }
        // Packets arrive between two steps, and once.
        steps.retain(Step::is_work);
        steps.dedup_by(|one, other| *one == Step::Settle && *other == Step::Settle);
        if steps.first() == Some(&Step::Settle) {
            steps.remove(0);
        }
        _ = steps.pop_if(|step| *step == Step::Settle);
        steps.extend(self.destroyed.into_iter().map(Step::Destroy));
        Plan { steps }
    }
}

impl weir_datapath::Plan for Plan {
    fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl fmt::Display for Plan {
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
            Step::Add(name, _, entries) => entries
                .iter()
                .try_for_each(|(entry, word)| writeln!(f, "{}", text::add(name, entry, word))),
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
            Step::Settle => writeln!(f, "# packets that are under way arrive"),
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
