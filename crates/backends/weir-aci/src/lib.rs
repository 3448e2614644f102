//! Network policies as host protection policies of Cisco ACI, distributed through Kubernetes.
//!
//! ```text
//!  World ─► Hpp ─► HostprotRemoteIpContainer, HostprotPol       the controller's half: objects in the API
//!                        │
//!                        └─► netpol::render ─► MO tree, JSON ─► Folder     the node's half: files for opflex-agent
//!                                                   └─► Reading ─► Verdict            a third reader, for tests
//! ```
//!
//! *Invariant*: the output depends on the world, never on the road to it, and is the same to the byte.
//!
//! *Invariant*: opflex-agent reads a rule without addresses as a rule for all. So a rule that names somebody is written only while somebody
//! is there.

mod crd;
mod files;
mod findings;
mod fixed;
mod folder;
mod judge;
mod mo;
mod name;
mod net;
mod netpol;
mod object;
mod reading;
mod remotes;
mod roster;
mod rules;
mod said;
mod seal;
mod state;
mod status;
mod term;
mod text;

pub use files::Files;
pub use folder::{Folder, FolderError, Touched};
pub use judge::Judge;
pub use netpol::{Netpol, render};
pub use object::{
    API_VERSION, Choice, ContainerSpec, EpLabel, Filter, FilterContainer, Kind, Object,
    ObjectError, ObjectId, Pol, PolSpec, RemoteIp, Rule, SELECTS, Subj,
};
pub use reading::{Reading, ReadingError};
pub use remotes::Remotes;
pub use seal::SEAL;
pub use state::{Changed, Hpp};

/// What an installation calls its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What all names begin with: lower case letters, digits, `-` and `_`.
    pub prefix: String,
}

/// The objects that a cluster must have.
pub fn desired(
    settings: &Settings,
    world: &weir_model::World,
) -> std::collections::BTreeMap<ObjectId, Object> {
    let mut hpp = Hpp::new(settings.clone());
    let changes: Vec<weir_model::Change> = world.changes().collect();
    hpp.apply(&changes);
    hpp.into_objects()
}
