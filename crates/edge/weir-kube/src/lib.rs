//! Where the world comes from: the API server of a cluster.
//!
//! ```text
//!  Access ─► client ─┬─► pages of lists ──────────────► weir_api::Reader ─► Manifests   one look: read
//!                    ├─► follow: list, watch, list … ─► Known ─► Update                 all the time: Watch
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
//! Who follows a cluster needs the verbs `list` and `watch` on pods, namespaces, nodes, networkpolicies.networking.k8s.io and, if they are
//! installed, the three kinds of policy.networking.k8s.io; and should have `get` on customresourcedefinitions.apiextensions.k8s.io: without
//! it a kind that is not installed counts as such only after a while. Who has something to say about objects needs `create` and `patch` on
//! events. Who only looks needs `list`, and can do without nodes as long as no
//! policy names them.

mod access;
mod backoff;
mod error;
mod events;
mod follow;
mod kind;
mod known;
mod link;
mod look;
mod watch;
mod wire;

pub use access::Access;
pub use backoff::Backoff;
pub use error::ReadError;
pub use events::{Events, Note, NoteKind};
pub use look::{Step, read};
pub use watch::{Pace, Watch};
