//! The agent's source with relays: one of them, and the API server while none works.
//!
//! ```text
//!            ┌── failure: next relay, after a back-off ──┐
//!            ▼                                           │
//!  open ─► list ─► transaction … ────────────────────────┤
//!                                                        │ no relay works for `patience`
//!  a relay has sent a complete list ◄── API server ◄─────┘
//! ```
//!
//! *Invariants*
//!
//! * Objects are removed only by a complete list, or by the source that sent them. The change of the
//!   source removes nothing.
//! * The agent follows the API server until a relay has sent a list that can be applied.

use std::{
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::future::{Either, join_all, select};
use tokio::{sync::watch::Receiver, time::sleep};
use weir_runtime::{Backoff, jitter};

use super::{RelayError, RelayStream, SyncPoint, Transaction, apply};
use crate::{
    Access, ApiClient, RetryPolicy,
    follow::{Closed, Follower},
    watch::ModelSink,
};

/// What the sinks have reached, from whichever source.
pub(crate) type Reached = Arc<Mutex<SyncPoint>>;

/// The relays that an agent uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayOptions {
    /// The node whose objects to request.
    pub node: String,
    /// The name for messages, and the access, of each relay.
    pub relays: Vec<(String, Access)>,
    /// The waits.
    pub times: RelayTimes,
}

/// The waits of an agent with relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayTimes {
    /// A relay that sends nothing for so long does not work, and neither does one that ends before.
    pub silence: Duration,
    /// How long no relay may work until the agent uses the API server, shortened by up to half at
    /// random. Without it, all agents would list everything after a restart of the relays.
    pub patience: Duration,
    /// The time between two attempts to return to a relay, shortened likewise.
    pub probe_interval: Duration,
}

impl Default for RelayTimes {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        RelayTimes { silence: seconds(20), patience: seconds(30), probe_interval: seconds(60) }
    }
}

/// A relay, its open stream, and the list that the stream began with: all objects that the agent needs,
/// and the transactions that followed.
type Opened = (usize, RelayStream, Vec<Transaction>);

/// Why the relays are not used any more.
enum Left {
    /// The receiver of the events is gone.
    Closed,
    /// No relay works.
    Failed,
}

impl From<Closed> for Left {
    fn from(_: Closed) -> Self {
        Left::Closed
    }
}

/// The relays and the API server, as one source.
pub(crate) struct RelaySource {
    node: String,
    relays: Vec<(String, ApiClient)>,
    times: RelayTimes,
    policy: RetryPolicy,
    reached: Reached,
    relist: Receiver<u64>,
    /// The relay to try next.
    next: usize,
}

impl RelaySource {
    pub(crate) fn new(
        options: RelayOptions,
        policy: RetryPolicy,
        reached: Reached,
        relist: Receiver<u64>,
    ) -> Self {
        let relays = options.relays.into_iter();
        let relays = relays.map(|(name, access)| (name, ApiClient::new(access))).collect();
        let RelayOptions { node, times, .. } = options;
        RelaySource { node, relays, times, policy, reached, relist, next: 0 }
    }

    /// Feeds the sinks until the receiver of their events is gone.
    pub(crate) async fn run(mut self, api: ApiClient, sinks: &mut [ModelSink]) {
        let mut opened = None;
        loop {
            match self.follow_relays(opened.take(), sinks).await {
                Left::Closed => return,
                Left::Failed => tracing::warn!("no relay works, using the API server"),
            }
            if apply::restart(sinks, "the API server").await.is_err() {
                return;
            }
            let followers = sinks.iter_mut().map(|sink| {
                let (version, relist) = (sink.reached_version(), self.relist.clone());
                let (client, spec) = (api.clone(), sink.kind.spec());
                let follower = Follower::new(client, spec, self.policy, Some(relist), sink);
                follower.not_before(version).run()
            });
            let followers = join_all(followers);
            match select(pin!(followers), pin!(self.probe())).await {
                Either::Left(_) => return,
                Either::Right((stream, _)) => opened = Some(stream),
            }
        }
    }

    /// Uses one relay after another, until none has worked for a while.
    async fn follow_relays(&mut self, opened: Option<Opened>, sinks: &mut [ModelSink]) -> Left {
        let mut backoff = Backoff::new(self.policy.first_retry, self.policy.longest_retry);
        let mut give_up = Instant::now() + jitter(self.times.patience);
        let mut opened = opened;
        loop {
            let at = self.next % self.relays.len().max(1);
            let result = match opened.take() {
                Some(opened) => Ok(opened),
                None => self.open(at).await,
            };
            let error = match result {
                Ok((at, stream, list)) => {
                    self.next = at;
                    let name = self.relays.get(at).map(|(name, _)| name.clone());
                    let name = name.unwrap_or_default();
                    match self.follow_one(&name, stream, list, sinks).await {
                        Ok((lasted, error)) => {
                            // A relay whose list cannot be used, or that ends soon after it, does not
                            // work.
                            if lasted > self.times.silence {
                                backoff.reset();
                                give_up = Instant::now() + jitter(self.times.patience);
                            }
                            error
                        }
                        Err(Closed) => return Left::Closed,
                    }
                }
                Err(error) => error,
            };
            let relay = self.relays.get(at).map(|(name, _)| &**name).unwrap_or_default();
            tracing::info!(relay, %error, "the relay cannot be used");
            self.next += 1;
            if Instant::now() >= give_up || self.relays.is_empty() {
                return Left::Failed;
            }
            let (wait, closed) = (sleep(backoff.next_delay()), apply::closed(sinks));
            if let Either::Right(_) = select(pin!(wait), pin!(closed)).await {
                return Left::Closed;
            }
        }
    }

    /// Applies the transactions of a stream until it fails. Returns how long it worked.
    async fn follow_one(
        &mut self,
        name: &str,
        mut stream: RelayStream,
        mut list: Vec<Transaction>,
        sinks: &mut [ModelSink],
    ) -> Result<(Duration, RelayError), Closed> {
        // What the API server sent is older than the list.
        apply::flush(sinks).await?;
        let opened = Instant::now();
        let applied = match stream.catch_up(&self.sync_point(), &mut list).await {
            Ok(()) => apply::apply_list(sinks, &list, &self.node, stream.relists),
            Err(error) => Err(error),
        };
        if let Err(error) = applied {
            return Ok((Duration::ZERO, error));
        }
        apply::name_server(sinks, &format!("relay {name}")).await?;
        apply::flush(sinks).await?;
        tracing::info!(relay = name, "following the cluster through a relay");
        loop {
            let event = {
                let reload = pin!(self.relist.changed());
                match select(pin!(stream.next()), reload).await {
                    Either::Left((event, _)) => event,
                    Either::Right((Ok(()), _)) => {
                        sinks.iter_mut().for_each(|sink| sink.cache.distrust());
                        return Ok((opened.elapsed(), RelayError::Ended));
                    }
                    Either::Right((Err(_), _)) => return Err(Closed),
                }
            };
            let applied = event.and_then(|event| apply::apply(sinks, event));
            if let Err(error) = applied {
                return Ok((opened.elapsed(), error));
            }
            apply::flush(sinks).await?;
        }
    }

    /// Opens a stream and checks its list, so that no other source ends because of a useless relay.
    async fn open(&self, at: usize) -> Result<Opened, RelayError> {
        let Some((_, client)) = self.relays.get(at) else {
            return Err(RelayError::Unreachable("there is no relay".into()));
        };
        let (silence, relists) = (self.times.silence, *self.relist.borrow());
        let opening = RelayStream::open(client, &self.node, self.sync_point(), silence, relists);
        let (mut stream, list) = opening.await?;
        let mut list = vec![list];
        stream.catch_up(&self.sync_point(), &mut list).await?;
        apply::check_list(&list, &self.node)?;
        Ok((at, stream, list))
    }

    /// What the sinks have reached.
    fn sync_point(&self) -> SyncPoint {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a relay works again, and has sent a list that can be used.
    async fn probe(&self) -> Opened {
        let mut at = self.next;
        loop {
            sleep(jitter(self.times.probe_interval)).await;
            match self.open(at % self.relays.len().max(1)).await {
                Ok(opened) => return opened,
                Err(error) => tracing::debug!(%error, "no relay works yet"),
            }
            at += 1;
        }
    }
}
