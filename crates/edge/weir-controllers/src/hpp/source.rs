//! Forwards the updates of the cluster to the event loop.

use std::{io, sync::mpsc::sync_channel, thread};

use tokio::sync::mpsc::Sender;
use weir_runtime::SourceEvent;

/// A function that sends updates to the event loop. It blocks while the queue is full, so that
/// unread data stays at the API server, and returns `false` once the loop has ended.
pub(super) fn forwarder<M: Send + 'static>(
    out: Sender<M>,
    event: fn(SourceEvent) -> M,
) -> io::Result<impl FnMut(SourceEvent) -> bool + Send + 'static> {
    // The caller runs on a runtime, where it must not block on the queue; a thread does that.
    let (forward, updates) = sync_channel::<SourceEvent>(0);
    let thread = thread::Builder::new().name("weir-hpp".into());
    thread.spawn(move || {
        for update in updates {
            if out.blocking_send(event(update)).is_err() {
                return;
            }
        }
    })?;
    Ok(move |update| forward.send(update).is_ok())
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
        time::Duration,
    };

    use tokio::{runtime::Builder, sync::mpsc};

    use super::*;

    #[test]
    fn the_forwarder_blocks_while_the_queue_is_full_and_ends_with_the_loop() {
        const READ: usize = 1000;
        let (out, mut queue) = mpsc::channel(4);
        let sent = Arc::new(AtomicUsize::new(0));
        let count = sent.clone();
        let mut forward = forwarder(out, |update| update).unwrap();
        let sender = thread::spawn(move || {
            let runtime = Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                while forward(SourceEvent::default()) {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            });
        });
        for read in 0..READ {
            if read % 250 == 0 {
                thread::sleep(Duration::from_millis(20));
                assert!(sent.load(Ordering::SeqCst) <= read + 5, "the queue is full");
            }
            assert!(queue.blocking_recv().is_some());
        }
        drop(queue);
        sender.join().unwrap();
        assert!(sent.load(Ordering::SeqCst) >= READ);
    }
}
