//! Compiles a world into the rules that a node must enforce, incrementally, and explains the
//! verdict for a flow.
//!
//! ```text
//!   Change ──► Cluster      facts, interned and indexed: pods by label, namespace and address
//!                │ touched
//!                ▼
//!   Policies ──► Endpoints ──► rule sets   groups of policies by subject, classes of endpoints
//!        └─────► Sets      ──► members     only the sets that rules here use
//!                    └───────────────► Delta
//! ```
//!
//! ```
//! use weir_api::ManifestReader;
//! use weir_engine::{Engine, Locality, compile, explain};
//! use weir_model::{Change, Flow, Key, Program, Protocol, Verdict, World};
//!
//! let mut reader = ManifestReader::new();
//! reader.read_file("shop.yaml".into(), br#"
//! apiVersion: v1
//! kind: Pod
//! metadata: {name: web, namespace: shop, labels: {app: web}}
//! status: {podIP: 10.0.0.1}
//! ---
//! apiVersion: v1
//! kind: Pod
//! metadata: {name: db, namespace: shop, labels: {app: db}}
//! status: {podIP: 10.0.0.2}
//! ---
//! apiVersion: networking.k8s.io/v1
//! kind: NetworkPolicy
//! metadata: {name: db, namespace: shop}
//! spec:
//!   podSelector: {matchLabels: {app: db}}
//!   ingress:
//!   - from: [{podSelector: {matchLabels: {app: web}}}]
//!     ports: [{port: 5432}]
//! "#);
//! let world: World = reader.finish().objects.into_iter().collect();
//!
//! // Compile everything, and evaluate a connection.
//! let program = compile(&world, Locality::Everywhere);
//! let [from, to] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
//! let flow = |port| Flow { from, to, protocol: Protocol::Tcp, port };
//! assert_eq!(program.verdict(&flow(5432)), Verdict::Allow);
//! assert_eq!(program.verdict(&flow(22)), Verdict::Deny);
//! assert_eq!(explain(&program, &flow(22)).verdict, Verdict::Deny);
//!
//! // Compile changes as they arrive: the engine returns what they change in the rules.
//! let mut engine = Engine::new(Locality::Everywhere);
//! let mut program = Program::default();
//! program.apply(engine.apply(world.changes()));
//! let policy = world.policies.keys().next().cloned().ok_or("the policy")?;
//! program.apply(engine.apply([Change::Remove(Key::Policy(policy))]));
//! assert_eq!(program.verdict(&flow(22)), Verdict::Allow);
//! # Ok::<(), &str>(())
//! ```
//!
//! *Invariant*: the output depends on the world, never on the sequence of changes that led to it.
//! Indexes find what a change touches; the engine recomputes those parts and compares them.
//!
//! *Invariant*: the cost of a change depends on what it touches. A pod is checked only against the
//! selectors that need one of its labels in its namespace. A policy is checked only against the
//! pods that have the label it needs. The members of a set are enumerated only when the set is new.

mod addresses;
mod anchors;
mod budget;
mod cluster;
mod compile;
mod domains;
mod endpoints;
mod engine;
mod explain;
mod interner;
mod labels;
mod layer;
mod members;
mod namespaces;
mod nodes;
mod owners;
mod pods;
mod policies;
mod postings;
mod profiles;
mod remedy;
mod sections;
mod selectors;
mod sets;
mod slab;

pub use budget::{Budget, Lockdown, rule_entries};
pub use engine::{Contest, Engine};
pub use explain::{Cited, Explanation, Judgement, Miss, Missing, Reason, Side, explain};
pub use remedy::{Remedy, remedy};
use weir_model::{Name, Program, World};

/// The pods for which an engine compiles rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Locality {
    /// The pods of every node, for tools that analyse a whole cluster.
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

/// Compiles the rules of a whole world.
pub fn compile(world: &World, locality: Locality) -> Program {
    let mut program = Program::default();
    program.apply(Engine::new(locality).apply(world.changes()));
    program
}
