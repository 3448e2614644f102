//! Computes which pods and addresses reach each other, for all ports, without trying every pair.
//!
//! Rules distinguish few pods, addresses and ports. This crate groups those that no rule
//! distinguishes, and evaluates each pair of groups once.
//!
//! ```text
//!  State (a world and its program) ┐                    ┌ groups   pods that no rule distinguishes
//!                                  ├──► Partition ──────┤ outside  addresses that no rule distinguishes
//!  State, a second one (diff)      ┘                    └ slices   ports that no rule distinguishes
//!
//!  Partition ──► Evaluator ──► MatrixQuery::evaluate, evaluate_workloads, ReachState::connections
//!                              (one state)
//!                              Comparison::changes (two states)
//! ```
//!
//! *Invariant*: the verdict for one member of a pod group, address class and port slice holds for
//! all of its members, in every state that the partition was computed from.

mod assumption;
mod comparison;
mod connection;
mod ends;
mod evaluator;
mod exposure;
mod fold;
mod indexed_chain;
#[cfg(test)]
mod laws;
mod matrix;
mod name;
mod named_source;
mod networks;
mod outside;
mod pairs;
mod partition;
mod port;
mod port_numbering;
mod port_query;
mod port_set;
mod small_hash;
mod view;
mod workload_matrix;

pub use assumption::{Assumption, PodAddresses};
pub use comparison::{Comparison, ConnectionChange};
pub use connection::{Connection, Reach};
pub use ends::ExampleEnd;
pub use exposure::{Exposure, NewPodNamespaces, NewPods};
pub use matrix::{Cell, Coverage, Matrix, MatrixQuery, OTHER_NAMESPACES, RowLimits};
pub use named_source::NamedSource;
pub use networks::OtherNetworks;
pub use port::{phrase, spell};
pub use port_query::PortQuery;
pub use workload_matrix::{OutsideNetworks, WorkloadEnd, WorkloadMatrix};

use weir_model::{Program, World};

/// A world and the program that it compiles to.
pub struct ReachState {
    /// The cluster.
    pub world: World,
    /// The compiled rules of all nodes.
    pub program: Program,
}
