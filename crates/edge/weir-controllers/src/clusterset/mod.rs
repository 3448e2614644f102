//! The controller for ClusterSetNetworkPolicies. It runs in each cluster of the set; the clusters
//! exchange objects through a broker.
//!
//! ```text
//!          this cluster                          the broker: a namespace on any API server
//!  pods, namespaces ──────────► publisher ─── RemotePod, RemoteNamespace, ClusterSetMember, Lease ──►
//!                                   ▲   │ ◄── ClusterSetMember, Lease of other clusters ─────────────
//!                         interests │   │ live clusters
//!                                   │   ▼
//!  ClusterSetNetworkPolicy ───► translator ◄─ RemotePod, RemoteNamespace, ClusterSetMember ──────────
//!  owned NetworkPolicies ◄──────────┘
//! ```
//!
//! The two loops do not wait for each other, so a broker that hangs blocks nothing in this cluster.
//!
//! *Invariants*
//!
//! * The controller changes and deletes only NetworkPolicies in the namespace of a
//!   ClusterSetNetworkPolicy that have a name made from its uid, and that either it controls or
//!   have our labels. On the broker it changes and deletes only objects with the label of its own
//!   cluster.
//! * The controller adds and removes no remote address before it has listed the broker, nor because
//!   the broker is unreachable. Rules that a policy no longer has are removed immediately.
//! * A controller whose cluster id belongs to another cluster, or to another controller of the same
//!   cluster, changes nothing: neither objects on the broker nor the allowed addresses.
//! * The objects of another cluster are not trusted alone: label, name and `clusterID` must agree,
//!   the cluster's lease must have the same holder, and an address must lie in the networks it
//!   declared, which must be small. Only pods of publishable namespaces are published, whatever
//!   other clusters are interested in.

mod lease;
mod leave;
mod owned;
mod policy_status;
mod publisher;
mod translator;
pub mod wire;

use std::{collections::BTreeMap, collections::BTreeSet, time::Duration};

use futures::future::select;
use ipnet::IpNet;
use tokio::sync::watch;
use weir_clusterset::{Interest, Liveness, Merging, NetworkLimits};
use weir_kube::Access;
use weir_model::{Name, Selector};

pub use leave::{Departure, Removed, leave};

use crate::ControllerContext;

/// The name of the controller.
pub const NAME: &str = "clusterset";

/// The settings of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSetSettings {
    /// The id of this cluster, unique in the set.
    pub cluster: Name,
    /// The pod networks of this cluster.
    pub networks: Vec<IpNet>,
    /// The API server of the broker.
    pub broker: Access,
    /// The namespace on the broker.
    pub namespace: String,
    /// The interval between renewals of this cluster's lease.
    pub renewal: Duration,
    /// A cluster is gone after this time without a renewal.
    pub expiry: Duration,
    /// The trusted networks of each other cluster. If empty, the networks that the clusters
    /// declare.
    pub accepted: BTreeMap<Name, Vec<IpNet>>,
    /// The networks that another cluster may declare at most.
    pub network_limits: NetworkLimits,
    /// Selects the namespaces of this cluster whose pods may be published.
    pub publishable: Selector,
    /// The maximum number of pods per cluster.
    pub pods: usize,
    /// The maximum number of namespaces per cluster.
    pub namespaces: usize,
    /// The maximum number of peers of a NetworkPolicy.
    pub shard: usize,
    /// Whether adjacent addresses are written as one network.
    pub merging: Merging,
}

/// The other clusters with a lease: the uid of the holder, and its liveness.
type RemoteClusters = BTreeMap<Name, (Name, Liveness)>;

/// The publisher's view of the broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum BrokerView {
    /// The leases are not listed yet.
    #[default]
    Unknown,
    /// The id of this cluster belongs to another cluster or controller, and why. The allowed
    /// addresses stay.
    Disowned(String),
    /// This controller holds the lease of its cluster, and knows the other clusters.
    Clusters(RemoteClusters),
}

/// The publisher's last view of the broker, and whether it can still reach it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct BrokerContact {
    view: BrokerView,
    /// The time of the last contact, once several renewals of the lease have failed.
    lost_since: Option<String>,
}

/// Runs until the context is stopped.
pub(crate) async fn run(context: &ControllerContext, settings: &ClusterSetSettings) {
    let (interests_sender, interests) = watch::channel(None::<BTreeSet<Interest>>);
    let (contact_sender, contact) = watch::channel(BrokerContact::default());
    let publisher = Box::pin(publisher::run(context, settings, interests, contact_sender));
    let translator = Box::pin(translator::run(context, settings, interests_sender, contact));
    select(publisher, translator).await;
}
