//! NetworkPolicies rendered as host protection policies of Cisco ACI.
//!
//! ```text
//!  World ─► Hpp ─► HostprotRemoteIpContainer, HostprotPol   controller: objects in the API
//!                        │
//!                        └─► netpol::render ─► MO tree, JSON ─► Folder   node: opflex-agent's files
//!                                                   └─► Evaluator ─► Verdict   for tests
//! ```
//!
//! *Invariant*: the output depends on the world, never on the history of changes. Equal worlds give
//! equal bytes.
//!
//! *Invariant*: opflex-agent treats a rule without addresses as a rule for every peer. weir
//! therefore writes a rule that selects peers only while at least one peer exists.

mod crd;
mod derived;
mod destinations;
mod evaluator;
mod file_policies;
mod files;
mod findings;
mod fixed;
mod folder;
mod frontend;
mod mo;
mod name;
mod namespace_pods;
mod net;
mod netpol;
mod normalized;
mod object;
mod peer;
mod remotes;
mod rendered;
mod rules;
mod seal;
mod size;
mod state;
mod status;
mod text;

pub use derived::with_derived_endpoints;
pub use evaluator::{Evaluator, EvaluatorError};
pub use files::{Files, GroupNames};
pub use folder::{Folder, FolderError, Touched};
pub use netpol::{Netpol, NetpolLimits, render, render_within};
pub use object::{
    API_VERSION, ContainerSpec, EpLabel, Filter, FilterContainer, HostprotError, HostprotId,
    HostprotKind, HostprotObject, HostprotRule, PodSelection, Pol, PolSpec, RemoteIp, SELECTS,
    Subj,
};
pub use remotes::Remotes;
pub use rendered::RenderedCluster;
pub use seal::SEAL;
pub use size::AciLimits;
pub use state::{Changed, Hpp};

/// The naming settings of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AciSettings {
    /// The prefix of all object names: lower-case letters, digits, `-` and `_`.
    pub prefix: String,
}

/// Computes the objects that a cluster must have.
pub fn desired(
    settings: &AciSettings,
    world: &weir_model::World,
) -> std::collections::BTreeMap<HostprotId, HostprotObject> {
    let mut hpp = Hpp::new(settings.clone());
    let changes: Vec<weir_model::Change> = world.changes().collect();
    hpp.apply(&changes);
    hpp.into_objects()
}
