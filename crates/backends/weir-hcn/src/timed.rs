//! Runs HNS calls on a separate thread, one at a time, each with a timeout.
//!
//! A call that hangs blocks only that thread. Until it returns, every other call fails immediately.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError},
    },
    thread,
    time::Duration,
};

use crate::{HnsEndpoint, Host, HostError, Inventory};

/// The timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of a listing, which makes many calls.
const LIST_TIMEOUT: Duration = Duration::from_secs(8);

type Job<H> = Box<dyn FnOnce(&mut H) + Send>;

/// A host whose calls time out.
pub struct Timed<H> {
    jobs: Sender<Job<H>>,
    /// Set while a call exceeds its timeout. The thread clears it when the call returns.
    stuck: Arc<AtomicBool>,
    pending: Option<Receiver<Result<Inventory, HostError>>>,
    hint: Arc<AtomicBool>,
}

impl<H: Host + Send + 'static> Timed<H> {
    /// Moves a host to a separate thread. The owner of `hint` sets it when HNS sends a
    /// notification.
    pub fn start(mut host: H, hint: Arc<AtomicBool>) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel::<Job<H>>();
        let work = move || waiting.into_iter().for_each(|job| job(&mut host));
        thread::Builder::new().name("weir-hns".into()).spawn(work)?;
        Ok(Timed { jobs, stuck: Arc::default(), pending: None, hint })
    }

    fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        limit: Duration,
        job: impl FnOnce(&mut H) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, HostError> {
        let late = |record: &str| HostError {
            call: name,
            code: HostError::TIMEOUT,
            record: record.to_owned(),
        };
        if self.stuck.load(Ordering::Acquire) {
            return Err(late("HNS has not answered the previous call yet"));
        }
        let answer = self.submit(job);
        match answer.recv_timeout(limit) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                self.stuck.store(true, Ordering::Release);
                let stuck = self.stuck.clone();
                // This job runs when the hanging call has returned.
                _ = self.jobs.send(Box::new(move |_| stuck.store(false, Ordering::Release)));
                Err(late("HNS does not respond"))
            }
            Err(RecvTimeoutError::Disconnected) => Err(late("the thread that calls HNS has ended")),
        }
    }

    fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut H) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (sender, answer) = mpsc::channel();
        // The receiver may be gone after a timeout, so ignore send errors.
        _ = self.jobs.send(Box::new(move |host| _ = sender.send(job(host))));
        answer
    }
}

impl<H: Host + Send + 'static> Host for Timed<H> {
    fn inventory(&mut self) -> Result<Inventory, HostError> {
        self.call("list of endpoints", LIST_TIMEOUT, H::inventory)
    }

    fn endpoint(&mut self, id: &str) -> Result<HnsEndpoint, HostError> {
        let id = id.to_owned();
        self.call("query of an endpoint", CALL_TIMEOUT, move |host| host.endpoint(&id))
    }

    fn modify(&mut self, id: &str, request: &str) -> Result<(), HostError> {
        let (id, request) = (id.to_owned(), request.to_owned());
        self.call("change of an endpoint", CALL_TIMEOUT, move |host| host.modify(&id, &request))
    }

    fn poll_inventory(&mut self) -> Option<Result<Inventory, HostError>> {
        let waiting = match self.pending.take() {
            Some(waiting) => waiting,
            None if self.stuck.load(Ordering::Acquire) => return None,
            None => self.submit(H::inventory),
        };
        match waiting.try_recv() {
            Ok(inventory) => Some(inventory),
            Err(TryRecvError::Empty) => {
                self.pending = Some(waiting);
                None
            }
            Err(TryRecvError::Disconnected) => None,
        }
    }

    fn was_notified(&mut self) -> bool {
        self.hint.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A host whose `modify` hangs until the test releases it.
    struct Hanging(Receiver<()>);

    impl Host for Hanging {
        fn inventory(&mut self) -> Result<Inventory, HostError> {
            Ok(Inventory::default())
        }

        fn endpoint(&mut self, _: &str) -> Result<HnsEndpoint, HostError> {
            Err(HostError { call: "x", code: 1, record: String::new() })
        }

        fn modify(&mut self, _: &str, _: &str) -> Result<(), HostError> {
            _ = self.0.recv();
            Ok(())
        }
    }

    #[test]
    fn a_hanging_call_blocks_no_other_call_and_recovers_when_it_returns() {
        let (go, hanging) = mpsc::channel();
        let mut host = Timed::start(Hanging(hanging), Arc::default()).unwrap();
        assert!(host.inventory().is_ok());
        assert_eq!(host.endpoint("e").unwrap_err().code, 1, "errors are passed on");
        assert_eq!(host.modify("e", "{}").unwrap_err().code, HostError::TIMEOUT);
        let start = Instant::now();
        assert_eq!(host.inventory().unwrap_err().code, HostError::TIMEOUT);
        assert!(host.poll_inventory().is_none());
        assert!(start.elapsed() < Duration::from_secs(1), "calls fail immediately");
        go.send(()).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while host.inventory().is_err() {
            assert!(Instant::now() < end, "calls work after the hanging call has returned");
            thread::sleep(Duration::from_millis(10));
        }
        while host.poll_inventory().is_none() {
            assert!(Instant::now() < end, "the background listing completes");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
