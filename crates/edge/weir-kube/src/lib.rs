//! Where the world comes from: the API server of a cluster.
//!
//! ```text
//!  Access ─► client ─┬─► pages of lists ──────────────► weir_api::Reader ─► Manifests   one look: read
//!                    ├─► follow: list, watch, list … ─► Known ─► SourceEvent              all the time: Watch
//!                    ├─► one pod ───────────────────────────────────────────────► Pod   when a watch is behind: Pods
//!                    └─◄ Event ◄─ counted, few ◄─ Note                                  what there is to say: Events
//! ```
//!
//! *Invariants*
//!
//! * Nothing is removed before a list is complete, and nothing because the API server is away, starts, or forgets. A kind of
//!   policy is gone only if its definition is.
//! * What cannot be read is a finding. It stops nothing else, and the policy it is about allows nothing.
//! * Objects are lowered and dropped one by one: what stays is a name, and what tells one version from another.
//!
//! Rights, by what is done with a cluster:
//!
//! | who | needs |
//! | --- | --- |
//! | `Watch` | `list` and `watch` on pods, namespaces, nodes, networkpolicies.networking.k8s.io and, if they are installed, adminnetworkpolicies, baselineadminnetworkpolicies and clusternetworkpolicies of policy.networking.k8s.io; `get` on the customresourcedefinitions.apiextensions.k8s.io of these three: without it a kind that is not installed counts as such only after a while |
//! | `Pods` | `get` on pods |
//! | `Events` | `create` and `patch` on events of the core group |
//! | `read` | `list` on the same kinds as `Watch`; can do without nodes as long as no policy names them, and without memcacheds.memcached.c5c3.io, which are looked at if they are installed |
//!
//! The agent uses the first three, and nothing else.

mod access;
mod client;
mod error;
mod events;
mod follow;
mod kind;
mod known;
mod link;
mod look;
mod pods;
mod reference;
mod watch;
mod wire;

pub use access::Access;
pub use error::ReadError;
pub use events::{Events, Note, NoteKind};
pub use follow::UNREACHABLE;
pub use look::{Step, read};
pub use pods::Pods;
pub use reference::{node_reference, policy_reference};
pub use watch::{Pace, Watch};
