//! The loop that every controller runs: apply events to the state, then do the work that is due.

use std::{future::Future, pin::pin, time::Instant};

use futures::future::{Either, select};
use tokio::{sync::mpsc, task::JoinSet, time::sleep_until};
use weir_kube::{ApiClient, ObjectEvent, WatchSpec, WireObject, follow};

use crate::ControllerContext;

/// The capacity of the queue. A full queue blocks the senders.
const QUEUE_CAPACITY: usize = 256;
/// Queued events come before work that is due, so that changes which arrive together are written
/// together. After this many events in a row, work runs anyway.
const MAX_EVENTS_BEFORE_WORK: usize = 256;

/// A controller, as the event loop drives it.
pub(crate) trait Handler: Send {
    /// The events that it handles.
    type Event: Send + 'static;

    /// Applies an event to the state. Does no I/O.
    fn apply(&mut self, event: Self::Event);

    /// When `work` is due next, if there is any.
    fn next_due(&self) -> Option<Instant>;

    /// Does a part of the work that is due.
    fn work(&mut self) -> impl Future<Output = ()> + Send;
}

/// A queue of events with several senders: followers of one or more API servers, and others.
#[derive(Debug)]
pub(crate) struct EventLoop<E> {
    context: ControllerContext,
    sender: mpsc::Sender<E>,
    events: mpsc::Receiver<E>,
    followers: JoinSet<()>,
}

enum Next<E> {
    Event(E),
    Work,
    Stop,
}

impl<E: Send + 'static> EventLoop<E> {
    pub(crate) fn new(context: &ControllerContext) -> Self {
        let (sender, events) = mpsc::channel(QUEUE_CAPACITY);
        EventLoop { context: context.clone(), sender, events, followers: JoinSet::new() }
    }

    /// Follows objects for as long as the loop exists.
    ///
    /// `read` converts each object, and `wrap` makes an event of this loop.
    pub(crate) fn follow<R, T>(
        &mut self,
        client: &ApiClient,
        spec: WatchSpec,
        read: fn(R) -> T,
        wrap: fn(ObjectEvent<T>) -> E,
    ) where
        R: WireObject + 'static,
        T: Send + 'static,
    {
        let (client, policy, sender) =
            (client.clone(), self.context.retry_policy, self.sender.clone());
        self.followers.spawn(follow(client, spec, policy, read, wrap, sender));
    }

    /// A sender for other sources of events.
    pub(crate) fn sender(&self) -> mpsc::Sender<E> {
        self.sender.clone()
    }

    /// Runs until the context is stopped.
    pub(crate) async fn run(mut self, handler: &mut impl Handler<Event = E>) {
        let mut events = 0;
        loop {
            let due = handler.next_due();
            let is_due = due.is_some_and(|due| due <= Instant::now());
            let next = if is_due && events >= MAX_EVENTS_BEFORE_WORK && !self.context.is_stopped() {
                Next::Work
            } else {
                self.next(due).await
            };
            match next {
                Next::Event(event) => {
                    events += 1;
                    handler.apply(event);
                }
                Next::Work => {
                    events = 0;
                    handler.work().await;
                }
                Next::Stop => return,
            }
        }
    }

    async fn next(&mut self, due: Option<Instant>) -> Next<E> {
        if self.context.is_stopped() {
            return Next::Stop;
        }
        if let Ok(event) = self.events.try_recv() {
            return Next::Event(event);
        }
        let timer = pin!(async {
            match due {
                Some(due) => sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        });
        let event = pin!(self.events.recv());
        let waiting = select(event, timer);
        match select(pin!(self.context.stopped()), waiting).await {
            Either::Right((Either::Left((Some(event), _)), _)) => Next::Event(event),
            Either::Right((Either::Right(_), _)) => Next::Work,
            // `self.sender` keeps the channel open.
            Either::Left(_) | Either::Right((Either::Left((None, _)), _)) => Next::Stop,
        }
    }
}
