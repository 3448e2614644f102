//! HNS on a thread of its own, one call at a time, each with a time limit.
//!
//! A call that hangs keeps its thread; nobody else waits for it. Until it returns, every other call fails at once.

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

use crate::{Host, HostError, Inventory, document::Endpoint};

/// How long one call may take; a list is many calls.
const CALL: Duration = Duration::from_secs(5);
const LIST: Duration = Duration::from_secs(8);

type Job<H> = Box<dyn FnOnce(&mut H) + Send>;

/// A host whose calls end.
pub struct Timed<H> {
    jobs: Sender<Job<H>>,
    /// Set while a call takes longer than it may, and by whoever returns from it.
    stuck: Arc<AtomicBool>,
    glance: Option<Receiver<Result<Inventory, HostError>>>,
    hint: Arc<AtomicBool>,
}

impl<H: Host + Send + 'static> Timed<H> {
    /// Puts a host on a thread of its own. `hint` is set by whoever hears that something happened.
    pub fn start(mut host: H, hint: Arc<AtomicBool>) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel::<Job<H>>();
        let work = move || waiting.into_iter().for_each(|job| job(&mut host));
        thread::Builder::new().name("weir-hns".into()).spawn(work)?;
        Ok(Timed { jobs, stuck: Arc::default(), glance: None, hint })
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
            return Err(late("HNS has not answered the call before yet"));
        }
        let answer = self.ask(job);
        match answer.recv_timeout(limit) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                self.stuck.store(true, Ordering::Release);
                let stuck = self.stuck.clone();
                // The next job runs when the one that hangs has returned.
                _ = self.jobs.send(Box::new(move |_| stuck.store(false, Ordering::Release)));
                Err(late("HNS does not answer"))
            }
            Err(RecvTimeoutError::Disconnected) => Err(late("the thread that calls HNS has ended")),
        }
    }

    fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut H) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (sender, answer) = mpsc::channel();
        // Whoever asked may have gone.
        _ = self.jobs.send(Box::new(move |host| _ = sender.send(job(host))));
        answer
    }
}

impl<H: Host + Send + 'static> Host for Timed<H> {
    fn inventory(&mut self) -> Result<Inventory, HostError> {
        self.call("list of endpoints", LIST, H::inventory)
    }

    fn endpoint(&mut self, id: &str) -> Result<Endpoint, HostError> {
        let id = id.to_owned();
        self.call("query of an endpoint", CALL, move |host| host.endpoint(&id))
    }

    fn modify(&mut self, id: &str, request: &str) -> Result<(), HostError> {
        let (id, request) = (id.to_owned(), request.to_owned());
        self.call("change of an endpoint", CALL, move |host| host.modify(&id, &request))
    }

    fn glance(&mut self) -> Option<Result<Inventory, HostError>> {
        let waiting = match self.glance.take() {
            Some(waiting) => waiting,
            None if self.stuck.load(Ordering::Acquire) => return None,
            None => self.ask(H::inventory),
        };
        match waiting.try_recv() {
            Ok(inventory) => Some(inventory),
            Err(TryRecvError::Empty) => {
                self.glance = Some(waiting);
                None
            }
            Err(TryRecvError::Disconnected) => None,
        }
    }

    fn hinted(&mut self) -> bool {
        self.hint.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A host that hangs until it is let go.
    struct Hanging(Receiver<()>);

    impl Host for Hanging {
        fn inventory(&mut self) -> Result<Inventory, HostError> {
            Ok(Inventory::default())
        }

        fn endpoint(&mut self, _: &str) -> Result<Endpoint, HostError> {
            Err(HostError { call: "x", code: 1, record: String::new() })
        }

        fn modify(&mut self, _: &str, _: &str) -> Result<(), HostError> {
            _ = self.0.recv();
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_call_that_hangs_and_it_is_over_when_it_returns() {
        let (go, hanging) = mpsc::channel();
        let mut host = Timed::start(Hanging(hanging), Arc::default()).unwrap();
        assert!(host.inventory().is_ok());
        assert_eq!(host.endpoint("e").unwrap_err().code, 1, "errors come through");
        assert_eq!(host.modify("e", "{}").unwrap_err().code, HostError::TIMEOUT);
        let start = Instant::now();
        assert_eq!(host.inventory().unwrap_err().code, HostError::TIMEOUT);
        assert!(host.glance().is_none());
        assert!(start.elapsed() < Duration::from_secs(1), "calls do not pile up");
        go.send(()).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while host.inventory().is_err() {
            assert!(Instant::now() < end, "it goes on when the call has returned");
            thread::sleep(Duration::from_millis(10));
        }
        while host.glance().is_none() {
            assert!(Instant::now() < end, "a glance comes");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
