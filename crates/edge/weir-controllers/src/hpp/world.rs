//! The cluster, told to an inbox by a thread of its own.

use std::{io, sync::mpsc::sync_channel, thread};

use tokio::sync::mpsc::Sender;
use weir_runtime::SourceEvent;

/// Who puts updates into an inbox and waits for room in it, so that what is not read yet stays with the API server; `false` when nobody reads.
pub(super) fn teller<M: Send + 'static>(
    out: Sender<M>,
    word: fn(SourceEvent) -> M,
) -> io::Result<impl FnMut(SourceEvent) -> bool + Send + 'static> {
    // Who tells has a runtime, where an inbox cannot be waited for.
    let (tell, told) = sync_channel::<SourceEvent>(0);
    let thread = thread::Builder::new().name("weir-hpp".into());
    thread.spawn(move || {
        for update in told {
            if out.blocking_send(word(update)).is_err() {
                return;
            }
        }
    })?;
    Ok(move |update| tell.send(update).is_ok())
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
    fn who_tells_more_than_there_is_room_for_waits_and_ends_when_nobody_reads() {
        const MANY: usize = 1000;
        let (out, mut inbox) = mpsc::channel(4);
        let told = Arc::new(AtomicUsize::new(0));
        let count = told.clone();
        let mut tell = teller(out, |update| update).unwrap();
        let teller = thread::spawn(move || {
            let runtime = Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                while tell(SourceEvent::default()) {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            });
        });
        for read in 0..MANY {
            if read % 250 == 0 {
                thread::sleep(Duration::from_millis(20));
                assert!(told.load(Ordering::SeqCst) <= read + 5, "no more than there is room for");
            }
            assert!(inbox.blocking_recv().is_some());
        }
        drop(inbox);
        teller.join().unwrap();
        assert!(told.load(Ordering::SeqCst) >= MANY);
    }
}
