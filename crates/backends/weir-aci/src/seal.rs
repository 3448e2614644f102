//! Whether an object still says all that its writer wrote. An API server drops fields that the definition in the cluster does not know, also from
//! objects that it has kept for long, and a rule without its peers would be a rule for all. Annotations are never dropped.

use serde::Serialize;

use crate::{
    name,
    object::{ContainerSpec, Object, Pol, PolSpec, Subj},
};

/// The annotation with the hash of `spec` as it was written.
pub const SEAL: &str = "weir/seal";

/// The seal of a specification.
pub(crate) fn seal(spec: &impl Serialize) -> String {
    name::hash(&serde_json::to_string(spec).unwrap_or_default())
}

impl Object {
    /// The seal that it is written with.
    pub(crate) fn seal(&self) -> String {
        match self {
            Object::Container(spec) => seal(spec),
            Object::Pol(pol) => seal(&pol.spec),
        }
    }

    /// The same object for the same pods, allowing nothing and naming nobody.
    pub(crate) fn emptied(self) -> Object {
        match self {
            Object::Container(spec) => Object::Container(ContainerSpec {
                name: spec.name,
                hostprot_remote_ip: Default::default(),
            }),
            Object::Pol(pol) => {
                let subjects = pol.spec.hostprot_subj.into_iter();
                let hostprot_subj = subjects
                    .map(|subject| Subj { name: subject.name, hostprot_rule: Vec::new() })
                    .collect();
                Object::Pol(Pol { spec: PolSpec { hostprot_subj, ..pol.spec }, ..pol })
            }
        }
    }
}
