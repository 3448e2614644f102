use std::{
    error::Error,
    io,
    sync::mpsc::{self, SyncSender},
    thread,
};

use weir_model::{Pod, PodId};

use crate::Event;

/// How many pods may wait to be read. One that finds no place is asked for again soon.
const QUEUE: usize = 256;

/// Reads one pod from where the source has its objects from, for when the source is behind.
pub trait PodReader: Send {
    /// The pod as it is now; `None` if there is none. May take its time, though not for ever.
    fn read(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Pod>, Box<dyn Error + Send + Sync>>;
}

/// Where to ask for a pod. Asking never waits.
pub(crate) type Reads = SyncSender<PodId>;

/// Reads pods, one after the other, on a thread of its own.
pub(crate) fn start(reader: Box<dyn PodReader>, events: SyncSender<Event>) -> io::Result<Reads> {
    let (reads, asked) = mpsc::sync_channel::<PodId>(QUEUE);
    let read = move || {
        for pod in asked {
            let event = match reader.read(&pod.namespace, &pod.name) {
                Ok(Some(pod)) => Event::Read(Box::new(pod)),
                Ok(None) => continue,
                Err(error) => Event::Unread(pod, error.to_string()),
            };
            if events.send(event).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("weir-read".into()).spawn(read)?;
    Ok(reads)
}
