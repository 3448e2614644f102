use std::{sync::Arc, time::Instant};

use weir_datapath::Dropped;
use weir_model::{Pod, PodId};
use weir_names::HeldAnswer;
use weir_runtime::SourceEvent;

use crate::{cni::PluginRequest, flows::ConnectionBatch};

/// The loop's input. Other threads reach the loop's state only through these.
#[derive(Debug)]
pub(crate) enum AgentEvent {
    /// An event from the source, which arrived at this time.
    Source(SourceEvent, Instant),
    /// A batch of dropped packets. The `Arc` bounds the number of queued batches.
    Dropped(Vec<Dropped>, Arc<()>),
    /// A batch of connections. The `Arc` bounds the number of queued batches.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has the events"))]
    Connections(ConnectionBatch, Arc<()>),
    /// The datapath cannot report dropped packets, for this reason.
    DropsUnavailable(String),
    /// A request from the CNI plugin.
    #[cfg_attr(not(unix), allow(dead_code, reason = "only Unix has the plugin's socket"))]
    Plugin(PluginRequest),
    /// A pod that was read directly because the source did not have it yet.
    PodRead(Box<Pod>),
    /// A pod that could not be read directly, and the error.
    PodUnreadable(PodId, String),
    /// DNS answers that wait until their addresses are in force.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux observes DNS"))]
    Answer(HeldAnswer),
    /// A request to read everything again and compare it with the installed rules.
    Resync,
    /// A request to stop.
    Stop,
}
