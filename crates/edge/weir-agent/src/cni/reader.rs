use std::{
    error::Error,
    io,
    sync::mpsc::{self, SyncSender},
    thread,
};

use weir_model::{Pod, PodId};

use crate::AgentEvent;

/// The most pods that wait to be read. A waiting request retries if the queue is full.
const QUEUE_LENGTH: usize = 256;

/// Reads one pod directly, for when the source's events lag behind.
pub trait PodReader: Send {
    /// The pod's current state; none if there is no such pod. The call may block, but must end.
    fn read_pod(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Pod>, Box<dyn Error + Send + Sync>>;
}

/// The queue of pods to read. Sending never blocks.
pub(crate) type Reads = SyncSender<PodId>;

/// Starts a thread that reads the queued pods one after the other and sends them to the loop.
pub(crate) fn start(
    reader: Box<dyn PodReader>,
    events: SyncSender<AgentEvent>,
) -> io::Result<Reads> {
    let (reads, queue) = mpsc::sync_channel::<PodId>(QUEUE_LENGTH);
    let read = move || {
        for pod in queue {
            let event = match reader.read_pod(&pod.namespace, &pod.name) {
                Ok(Some(pod)) => AgentEvent::PodRead(Box::new(pod)),
                Ok(None) => continue,
                Err(error) => AgentEvent::PodUnreadable(pod, error.to_string()),
            };
            if events.send(event).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("weir-read".into()).spawn(read)?;
    Ok(reads)
}
