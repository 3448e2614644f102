use std::{collections::BTreeMap, time::SystemTime};

use weir_model::{Change, Finding, Name, PolicyKind};

/// An event from a source of cluster state: a folder of manifests, or the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceEvent {
    /// The changes to the world since the last event.
    pub changes: Vec<Change>,
    /// When the changed objects were written, for those that carry a time.
    pub written: Vec<SystemTime>,
    /// The resourceVersion of the newest policy of each kind, among the changes so far. A folder has
    /// none.
    pub policy_versions: BTreeMap<PolicyKind, u64>,
    /// All findings about the current input.
    pub findings: Vec<Finding>,
    /// The findings that keep input out: it is missing, or its last valid version is still in
    /// effect.
    pub unread: Vec<Finding>,
    /// The server that the events come from: a relay or the API server. Without relays there is none.
    pub server: Option<Name>,
    /// Whether the source has read everything at least once.
    pub in_sync: bool,
    /// Whether the source has read everything that it can, and `unread` names the rest. Only before
    /// it is in sync.
    pub is_partial: bool,
    /// Whether the source already knows of input that it will report soon.
    pub more_expected: bool,
}
