use std::{fmt, sync::Arc};

use weir_datapath::Plan;
use weir_model::Name;

use crate::{Aim, Hook, Key, Kind, Rule, Set, text};

/// Steps that the kernel takes all at once or not at all. It displays as commands of nft that do the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The steps in order.
    pub steps: Vec<Step>,
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
    pub(crate) fn add_set(name: &Name, set: &Set) -> Self {
        Step::AddSet(name.clone(), set.kind, set.comment.clone())
    }
}

impl Transaction {
    pub(crate) fn of(steps: Vec<Step>) -> Self {
        Transaction { steps, generation: None }
    }

    /// How many elements come or go.
    pub fn elements(&self) -> usize {
        let count = |step: &Step| match step {
            Step::Add(_, _, elements) => elements.len(),
            Step::Remove(_, _, keys) => keys.len(),
            _ => 0,
        };
        self.steps.iter().map(count).sum()
    }
}

/// The steps that leave no table of ours, whether there is one or not.
pub(crate) fn removal() -> Transaction {
    Transaction::of(vec![Step::AddTable, Step::DeleteTable])
}

impl Plan for Transaction {
    fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
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
