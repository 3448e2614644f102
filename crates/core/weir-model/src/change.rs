use std::net::IpAddr;

use crate::{
    EndpointSlice, Name, Namespace, Node, Pod, PodId, Policy, PolicyId, Service, ServiceId,
};

/// A change of the world. Applying it twice is the same as applying it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The object exists and looks like this.
    Put(Object),
    /// The object does not exist.
    Remove(Key),
}

/// An object of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A pod.
    Pod(Pod),
    /// A namespace.
    Namespace(Namespace),
    /// A node.
    Node(Node),
    /// A policy of any kind.
    Policy(Policy),
    /// A Service.
    Service(Service),
    /// Backends of a Service.
    EndpointSlice(EndpointSlice),
    /// The current addresses of a domain name, which is in lower case and without the final dot.
    Domain(Name, Vec<IpAddr>),
}

impl Object {
    /// The key of the object.
    pub fn key(&self) -> Key {
        match self {
            Object::Pod(pod) => Key::Pod(pod.id.clone()),
            Object::Namespace(namespace) => Key::Namespace(namespace.name.clone()),
            Object::Node(node) => Key::Node(node.name.clone()),
            Object::Policy(policy) => Key::Policy(policy.id.clone()),
            Object::Service(service) => Key::Service(service.id.clone()),
            Object::EndpointSlice(slice) => Key::EndpointSlice(slice.id.clone()),
            Object::Domain(name, _) => Key::Domain(name.clone()),
        }
    }
}

/// The key of an object of the world.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A pod.
    Pod(PodId),
    /// A namespace.
    Namespace(Name),
    /// A node.
    Node(Name),
    /// A policy.
    Policy(PolicyId),
    /// A Service.
    Service(ServiceId),
    /// Backends of a Service.
    EndpointSlice(ServiceId),
    /// A domain name.
    Domain(Name),
}
