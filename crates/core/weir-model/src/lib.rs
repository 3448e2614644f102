//! The data types that all crates of weir share.
//!
//! ```text
//!  Change ──► World                the cluster: pods, namespaces, nodes, policies, Services, domain names
//!     │
//!     └─────► (engine) ──► Delta ──► Program      the rules of a node: endpoints, rule sets, sets
//!
//!  Flow: one connection to check against either; Finding: a problem in the input
//! ```
//!
//! ```
//! use weir_model::{Change, Labels, Namespace, Object, Requirement, Selector, World};
//!
//! let labels: Labels = [("team", "shop")].into_iter().collect();
//! let selector: Selector = [Requirement::equals("team", "shop")].into_iter().collect();
//! assert!(selector.matches(&labels));
//!
//! let mut world = World::default();
//! let namespace = Namespace { name: "shop".into(), labels, location: None };
//! world.apply(Change::Put(Object::Namespace(namespace.clone())));
//! assert_eq!(world.namespaces["shop"], namespace);
//! world.apply(Change::Remove(Object::Namespace(namespace).key()));
//! assert_eq!(world, World::default());
//! ```
//!
//! *Invariant*: the types are plain data. Values with the same meaning compare equal, and
//! everything that can reach an output is ordered.

mod attachment;
mod change;
mod cluster;
mod delta;
mod family;
mod finding;
mod flow;
mod interval;
mod label;
mod name_table;
mod net;
mod object;
mod packed_name;
mod policy;
mod ports;
mod program;
mod rule;
mod section_list;
mod service;
mod set;
mod shared_list;
mod spelling;
mod world;

pub use attachment::Attachments;
pub use change::{Change, Key, Object};
pub use cluster::{CLUSTER_LABEL, QualifiedName};
pub use delta::{Delta, Endpoint, SetDelta};
pub use family::IpFamily;
pub use finding::{Finding, Location, ObjectRef, Severity};
pub use flow::{Direction, Flow, Verdict};
pub use interval::{Interval, address_number, covering_nets, numbered_address};
pub use label::{Labels, NAMESPACE_NAME_LABEL, Requirement, Selector, is_lasting_label};
pub use name_table::NameTable;
pub use net::{Block, DomainPattern, PortRange, Protocol};
pub use object::{Claim, Name, NamedPort, Namespace, Node, Pod, PodId, PodOwner};
pub use packed_name::{NameStore, PackedName};
pub use policy::{
    Action, Peer, Policy, PolicyId, PolicyKind, PolicyRule, PortMatch, PortSpec, Scope, Spec,
    Subject, Tier, Who,
};
pub use ports::{PortList, PortNameList, Ports};
pub use program::Program;
pub use rule::{Chain, Origin, Peers, Rule, RuleSet, Section};
pub use section_list::SectionList;
pub use service::{
    EndpointPort, EndpointSlice, ExternalTraffic, Service, ServiceBackend, ServiceId, ServiceKind,
    ServicePort, TargetPort,
};
pub use set::{Holders, Member, PortOwners, SetId, SetKey};
pub use shared_list::SharedList;
pub use spelling::{closest, edit_distance};
pub use world::World;
