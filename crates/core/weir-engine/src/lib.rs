//! Compiles a world into the rules that a node must enforce, change by change, and explains what they do to a flow.
//!
//! ```text
//!   Change ──► Cluster          facts, interned and indexed: pods by label, namespace and address
//!                │ touched
//!                ▼
//!   Policies ──► Endpoints ──► rule sets      groups of policies by subject; classes of endpoints by groups
//!        └─────► Sets      ──► members        only those that rules here name
//!                    └───────────────► Delta
//! ```
//!
//! *Invariant*: the output depends on the world, never on the road to it. No cache holds a truth of its own: indexes say
//! what a change touches, and what it touches is computed anew and compared.
//!
//! *Invariant*: the cost of a change depends on what it touches. A pod asks only the selectors that need one of its labels in
//! its namespace; a policy asks only the pods that have the label it needs; members are never enumerated unless a set is new.

mod anchors;
mod cluster;
mod compile;
mod domains;
mod endpoints;
mod engine;
mod explain;
mod labels;
mod members;
mod namespaces;
mod nodes;
mod owners;
mod pods;
mod policies;
mod postings;
mod remedy;
mod selectors;
mod sets;
mod slab;

pub use engine::Engine;
pub use explain::{Cited, Explanation, Judgement, Miss, Missing, Reason, Side, explain};
pub use remedy::{Remedy, remedy};
use weir_model::{Name, Program, World};

/// Whose endpoints an engine compiles rules for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Locality {
    /// The pods of every node; for tools that look at a whole cluster.
    Everywhere,
    /// The pods that run on this node.
    Node(Name),
}

impl Locality {
    fn covers(&self, node: Option<&Name>) -> bool {
        match self {
            Locality::Everywhere => true,
            Locality::Node(name) => node == Some(name),
        }
    }
}

/// The rules for a whole world at once.
pub fn compile(world: &World, locality: Locality) -> Program {
    let mut program = Program::default();
    program.apply(Engine::new(locality).apply(world.changes()));
    program
}
