//! The controller of ClusterSetNetworkPolicies: one in each cluster of a set, and a broker between them.
//!
//! ```text
//!            this cluster                                     the broker: a namespace of any API server
//!  pods, namespaces ─────────────► publisher ─── RemotePod, RemoteNamespace, ClusterSetMember, Lease ──►
//!                                      ▲   │ ◄── ClusterSetMember, Lease of the others ────────────────
//!                            interests │   │ who is alive
//!                                      │   ▼
//!  ClusterSetNetworkPolicy ──────► translator ◄─ RemotePod, RemoteNamespace, ClusterSetMember ──────────
//!  NetworkPolicies of its own ◄────────┘
//! ```
//!
//! The two loops do not wait for each other, so that a broker that hangs stops nothing in this cluster.
//!
//! *Invariants*
//!
//! * Only NetworkPolicies in the namespace of a ClusterSetNetworkPolicy, with a name made from its uid, and with it as controller or with our
//!   labels are changed or removed; on the broker, only objects with our cluster's label.
//! * Remote addresses are neither added nor removed before everything on the broker was read once, nor because it is away; what a policy no
//!   longer says about any remote pod goes at once.
//! * Who is not the one that its id says, or not the only controller of its cluster, changes nothing: neither on the broker nor who is allowed.
//! * Who another cluster is, its objects cannot say alone: label, name and `clusterID` must agree, its lease must be held by the cluster that it
//!   says it is, and an address must lie in the networks it declared.

mod broker;
mod owned;
mod publisher;
mod status;
mod translator;
pub mod wire;

use std::{collections::BTreeMap, collections::BTreeSet, time::Duration};

use futures::future::select;
use ipnet::IpNet;
use tokio::sync::watch;
use weir_clusterset::{Interest, Life, Merging};
use weir_kube::Access;
use weir_model::Name;

use crate::Context;

/// The name of the controller.
pub const NAME: &str = "clusterset";

/// How the controller is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The id of this cluster, which no other of the set has.
    pub cluster: Name,
    /// The networks that the pods of this cluster are in.
    pub networks: Vec<IpNet>,
    /// How to reach the broker.
    pub broker: Access,
    /// The namespace there.
    pub namespace: String,
    /// How often this cluster gives a sign of life.
    pub renewal: Duration,
    /// After how long without one a cluster is gone.
    pub expiry: Duration,
    /// The networks that are accepted of each other cluster, whatever it says; if there are none, those that it says.
    pub accepted: BTreeMap<Name, Vec<IpNet>>,
    /// How many pods of a cluster are taken, at most.
    pub pods: usize,
    /// How many namespaces of a cluster are taken, at most.
    pub namespaces: usize,
    /// How many peers a NetworkPolicy may have.
    pub shard: usize,
    /// Whether addresses next to each other are written as one network.
    pub merging: Merging,
}

/// Who of the other clusters is alive: the uid of each that gives signs of life, and how it is.
pub(crate) type Lives = BTreeMap<Name, (Name, Life)>;

/// What is to be seen of the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Nothing yet.
    #[default]
    Nothing,
    /// Our id is not ours, and why. Who we are nobody knows, and so not who the others are: what is in force stays.
    Disowned(String),
    /// Who of the others is alive.
    Lives(Lives),
}

/// Works until it is time to finish.
pub(crate) async fn keep(context: &Context, settings: &Settings) {
    let (interests, asked) = watch::channel(None::<BTreeSet<Interest>>);
    let (sight, seen) = watch::channel(Sight::default());
    let publisher = Box::pin(publisher::keep(context, settings, asked, sight));
    let translator = Box::pin(translator::keep(context, settings, interests, seen));
    select(publisher, translator).await;
}
