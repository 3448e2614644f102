//! Detects objects that lost fields. An API server drops fields that the installed CRD does not
//! define, even from objects stored earlier. A rule without its peers would allow every peer. The
//! API server never drops annotations.

use serde::Serialize;

use crate::{
    name,
    object::{ContainerSpec, HostprotObject, Pol, PolSpec, Subj},
};

/// The annotation with the hash of `spec` at the time of writing.
pub const SEAL: &str = "weir/seal";

/// The seal of a specification.
pub(crate) fn seal(spec: &impl Serialize) -> String {
    name::hash(&serde_json::to_string(spec).unwrap_or_default())
}

impl HostprotObject {
    /// The seal to write with this object.
    pub(crate) fn seal(&self) -> String {
        match self {
            HostprotObject::Container(spec) => seal(spec),
            HostprotObject::Pol(pol) => seal(&pol.spec),
        }
    }

    /// The same object for the same pods, without rules and without addresses.
    pub(crate) fn without_permissions(self) -> HostprotObject {
        match self {
            HostprotObject::Container(spec) => HostprotObject::Container(ContainerSpec {
                name: spec.name,
                hostprot_remote_ip: Default::default(),
            }),
            HostprotObject::Pol(pol) => {
                let subjects = pol.spec.hostprot_subj.into_iter();
                let hostprot_subj = subjects
                    .map(|subject| Subj { name: subject.name, hostprot_rule: Vec::new() })
                    .collect();
                HostprotObject::Pol(Pol { spec: PolSpec { hostprot_subj, ..pol.spec }, ..pol })
            }
        }
    }
}
