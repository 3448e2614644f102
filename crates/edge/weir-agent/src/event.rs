use std::{sync::Arc, time::Instant};

use weir_datapath::Dropped;
use weir_model::{Pod, PodId};
use weir_runtime::SourceEvent;

use crate::cni::Asked;

/// Every way in.
#[derive(Debug)]
pub(crate) enum Event {
    /// The source has news, since this moment.
    Source(SourceEvent, Instant),
    /// Packets were dropped. As long as they wait here, they hold one of few places.
    Dropped(Vec<Dropped>, Arc<()>),
    /// So many more were, and nobody could look at them.
    Missed(u64),
    /// Dropped packets cannot be heard of.
    Deaf(String),
    /// A plugin asks.
    #[cfg_attr(not(unix), allow(dead_code, reason = "there are no plugins"))]
    Asked(Asked),
    /// A pod was read, because the source was behind.
    Read(Box<Pod>),
    /// A pod could not be read.
    Unread(PodId, String),
    /// Everything is to be compared with what is installed.
    Compare,
    /// It is enough.
    Stop,
}
