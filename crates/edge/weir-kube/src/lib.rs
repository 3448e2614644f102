//! The Kubernetes client of weir: agent, controllers and the opflex agent all use this crate.
//!
//! ```text
//!  Access ─► ApiClient ─┬─► follow: list, watch, list … ─┬─► VersionCache ─► SourceEvent   ClusterWatch
//!                       │                                └─► ObjectEvent<T> ─► Store<T>    controllers
//!                       ├─► pages of lists ─► ManifestReader ─► Manifests                  read_cluster
//!                       ├─► one pod                                                        PodClient
//!                       ├─► single objects, programs in pods                               AdminClient
//!                       ├─◄ Events, counted and limited                                    Recorder
//!                       └─◄ a Lease for each node, rarely                                  NodeReporter
//! ```
//!
//! *Invariants*
//!
//! * Nothing is removed before a list is complete, and nothing because the API server is
//!   unreachable, restarts or has expired a version. A kind is gone only if its definition is.
//! * An object that cannot be read becomes a finding. It affects no other object, and an unreadable
//!   policy allows nothing.
//! * The agent lowers objects and drops them one by one. It keeps the name and a digest of each.
//! * No layer retries requests out of sight: the API server's last answer is the reported reason.
//!
//! Required permissions:
//!
//! * [`ClusterWatch`]: `list` and `watch` on pods, namespaces, nodes, networkpolicies.networking.k8s.io and,
//!   if installed, on adminnetworkpolicies, baselineadminnetworkpolicies and clusternetworkpolicies of
//!   policy.networking.k8s.io. `get` on the customresourcedefinitions.apiextensions.k8s.io of these
//!   three: without it, the agent waits a minute before it treats a missing kind as not installed.
//! * [`PodClient`]: `get` on pods.
//! * [`Recorder`]: `create` and `patch` on events of the core group.
//! * [`NodeReporter`]: `create` and `patch` on leases.coordination.k8s.io of one namespace.
//! * [`read_cluster`]: `list` on the kinds of `ClusterWatch`. Nodes are needed only if a policy selects
//!   nodes, and memcacheds.memcached.c5c3.io only for lints.
//!
//! * [`AdminClient`]: the rights of the user who installs weir.
//! * [`PodStreams`], for commands that ask all agents: `create` on pods/exec.
//! * [`PodRunner`], for `weir test --live`: `get` on pods and `patch` on pods/ephemeralcontainers.
//!
//! The agent uses the first three, [`NodeReporter`] if it reports, and nothing else.

mod access;
mod admin;
mod batch;
mod client;
mod error;
mod follow;
mod item;
mod kind;
mod node_report;
mod pod_runner;
mod pod_streams;
mod pods;
mod recorder;
mod reference;
mod relay;
mod resource;
mod snapshot;
mod store;
mod version_cache;
mod versions;
mod watch;
mod wire;

pub use access::Access;
pub use admin::{AdminClient, PodCommand};
pub use client::ApiClient;
pub use error::ApiError;
pub use follow::{ObjectEvent, OnMissing, RetryPolicy, WatchSpec, follow};
pub use item::{Item, Revision, WireObject};
pub use kind::{ClusterKinds, NAMESPACES, PODS, policy_kinds};
pub use node_report::{LEASES, NodeReport, NodeReporter, REPORTS};
pub use pod_runner::{PodRun, PodRunError, PodRunner};
pub use pod_streams::{PodStreams, StreamItem};
pub use pods::PodClient;
pub use recorder::{EventType, NewEvent, Recorder};
pub use reference::{node_reference, pod_reference, policy_reference};
pub use relay::{
    ClusterFeed, FeedEvent, FramePacker, RELAY_PATH, RelayOptions, RelayTimes, SyncPoint, Version,
    begin_frame, commit_frame, put_frame, remove_frame, seen_frame,
};
pub use resource::{KubeObject, NETWORK_POLICIES, ObjectId, Resource};
pub use snapshot::{Progress, read_cluster};
pub use store::Store;
pub use watch::{ClusterWatch, UNREACHABLE};
