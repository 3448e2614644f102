use std::fmt;

use weir_model::{Location, Name};

/// Why a rule exists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Evidence {
    /// The source of the evidence.
    pub kind: EvidenceKind,
    /// What was found, such as `shop/deployment/web to shop/deployment/api, port 8080/TCP`.
    pub what: Name,
    /// The number of connections; 0 if nothing was counted.
    pub connections: u64,
    /// The time of the last connection, in RFC 3339.
    pub last_seen: Option<Name>,
    /// The line of the manifest.
    pub location: Option<Location>,
}

/// The source of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EvidenceKind {
    /// Connections that passed.
    Flow,
    /// Packets that policies deny and that passed because of audit mode.
    AuditDrop,
    /// A manifest declares the connection.
    Manifest,
    /// Pods need DNS to find their peers.
    Dns,
}

impl EvidenceKind {
    /// The name of the kind in outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            EvidenceKind::Flow => "flow",
            EvidenceKind::AuditDrop => "audit drop",
            EvidenceKind::Manifest => "manifest",
            EvidenceKind::Dns => "dns",
        }
    }
}

impl fmt::Display for EvidenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Evidence {
    /// Combines evidence about one connection. The agents of both nodes report it, so counts are not
    /// added.
    fn absorb(&mut self, other: Evidence) {
        self.connections = self.connections.max(other.connections);
        self.last_seen = self.last_seen.take().max(other.last_seen);
        self.location = self.location.take().or(other.location);
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.what)?;
        match self.connections {
            0 => (),
            1 => f.write_str(", 1 connection")?,
            count => write!(f, ", at least {count} connections")?,
        }
        if let Some(last) = &self.last_seen {
            write!(f, ", last at {last}")?;
        }
        if let Some(location) = &self.location {
            write!(f, " ({location})")?;
        }
        Ok(())
    }
}

/// Adds evidence to a sorted list. Evidence for the same connection is combined.
pub(crate) fn add(list: &mut Vec<Evidence>, evidence: Evidence) {
    let key = |one: &Evidence| (one.kind, one.what.clone());
    match list.binary_search_by_key(&key(&evidence), key) {
        Ok(at) => list[at].absorb(evidence),
        Err(at) => list.insert(at, evidence),
    }
}
