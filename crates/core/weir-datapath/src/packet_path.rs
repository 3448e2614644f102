/// The way of packets through a machine whose datapath remembers connections itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketPath {
    /// Whether conntrack follows connections beside it.
    pub conntrack: ConntrackUse,
    /// The fast lane between pods of the machine.
    pub fast_lane: FastLaneState,
}

/// Whether conntrack follows connections of the machine. It does so if rules of other programs need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConntrackUse {
    /// It follows connections.
    Active,
    /// It follows none: the table of the datapath is the only one.
    Idle,
    /// The kernel does not tell.
    Unknown,
}

/// The state of the fast lane, in which packets skip the network stack of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastLaneState {
    /// The options of the agent do not include it.
    Off,
    /// Packets of this number of links take it.
    On {
        /// The number of links.
        links: usize,
    },
    /// It cannot be used at the moment. The datapath tries again.
    Failed,
    /// It cannot be used until the agent restarts.
    Refused,
}

impl ConntrackUse {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            ConntrackUse::Active => "active",
            ConntrackUse::Idle => "idle",
            ConntrackUse::Unknown => "unknown",
        }
    }
}

impl FastLaneState {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            FastLaneState::Off => "off",
            FastLaneState::On { .. } => "on",
            FastLaneState::Failed => "failed",
            FastLaneState::Refused => "refused",
        }
    }
}
