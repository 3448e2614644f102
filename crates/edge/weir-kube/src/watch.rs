use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    pin::pin,
    thread,
    time::Duration,
};

use futures::future::{join_all, select};
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use weir_model::Finding;
use weir_runtime::SourceEvent;

use crate::{
    Access,
    follow::{Follower, Told},
    kind::Kind,
    link::Link,
};

/// How long to wait for more after the first piece of news.
const GATHER: Duration = Duration::from_millis(2);
/// How much news may wait to be gathered.
const WAITING: usize = 256;
/// How many changes make an update, so that nobody has to digest everything at once.
const MANY: usize = 4096;

/// How patient to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How many objects a page of a list has.
    pub page: u32,
    /// How long to wait after a failure, at first,
    pub retry: Duration,
    /// and at most.
    pub longest_retry: Duration,
    /// How often to look whether a kind of policy that is not installed is there now.
    pub absent: Duration,
    /// How long a kind must be missing before it counts as gone, if we may not look at its definition.
    pub patience: Duration,
    /// After this long a silence, a watch is opened anew.
    pub silence: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            page: 500,
            retry: Duration::from_millis(500),
            longest_retry: Duration::from_secs(30),
            absent: Duration::from_secs(30),
            patience: Duration::from_secs(60),
            // The API server sends a bookmark every minute.
            silence: Duration::from_secs(90),
        }
    }
}

/// A cluster that is being watched by a thread of its own, until this is dropped.
#[derive(Debug)]
pub struct Watch {
    /// How often everything was to be read again; closed when it is enough.
    reloads: watch::Sender<u64>,
}

impl Watch {
    /// Watches a cluster and tells what is new, beginning with all there is, until `tell` returns `false`.
    pub fn start(
        access: Access,
        pace: Pace,
        tell: impl FnMut(SourceEvent) -> bool + Send + 'static,
    ) -> io::Result<Watch> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (reloads, reload) = watch::channel(0);
        let thread = thread::Builder::new().name("weir-kube".into());
        thread.spawn(move || {
            runtime.block_on(follow(access, pace, reload, tell));
            // A request may be under way whose answer nobody waits for.
            runtime.shutdown_background();
        })?;
        Ok(Watch { reloads })
    }

    /// Reads everything again, changed or not, and tells.
    pub fn reload(&self) {
        self.reloads.send_modify(|count| *count += 1);
    }
}

async fn follow(
    access: Access,
    pace: Pace,
    reload: watch::Receiver<u64>,
    tell: impl FnMut(SourceEvent) -> bool,
) {
    let link = Link::new(access);
    let (out, news) = mpsc::channel(WAITING);
    let followers = Kind::ALL
        .map(|kind| Follower::new(kind, link.clone(), pace, out.clone(), reload.clone()).run());
    drop(out);
    let mut reload = reload;
    let closed = pin!(async move { while reload.changed().await.is_ok() {} });
    let (followers, gathering) = (pin!(join_all(followers)), pin!(gather(news, tell)));
    select(select(followers, gathering), closed).await;
}

/// Puts together what the followers tell.
async fn gather(mut news: mpsc::Receiver<Told>, mut tell: impl FnMut(SourceEvent) -> bool) {
    let mut state = Gathered::default();
    while let Some(told) = news.recv().await {
        state.take(told);
        state.drain(&mut news);
        if state.update.changes.len() < MANY && news.is_empty() {
            sleep(GATHER).await;
            state.drain(&mut news);
        }
        if let Some(update) = state.update()
            && !tell(update)
        {
            return;
        }
    }
}

#[derive(Default)]
struct Gathered {
    update: SourceEvent,
    listed: BTreeSet<Kind>,
    findings: BTreeMap<Kind, Vec<Finding>>,
    troubles: BTreeMap<Kind, Finding>,
    is_new: bool,
}

impl Gathered {
    fn drain(&mut self, news: &mut mpsc::Receiver<Told>) {
        while self.update.changes.len() < MANY
            && let Ok(told) = news.try_recv()
        {
            self.take(told);
        }
    }

    fn take(&mut self, told: Told) {
        match told {
            Told::Changes(changes, written) => {
                self.is_new |= !changes.is_empty();
                self.update.changes.extend(changes);
                self.update.written.extend(written);
            }
            Told::Findings(kind, findings) => {
                self.is_new = true;
                self.findings.insert(kind, findings);
            }
            Told::Listed(kind) => self.is_new |= self.listed.insert(kind),
            Told::Trouble(kind, trouble) => {
                let before = match trouble.clone() {
                    Some(finding) => self.troubles.insert(kind, finding),
                    None => self.troubles.remove(&kind),
                };
                self.is_new |= before != trouble;
            }
        }
    }

    /// What is new since the last update, if anything is.
    fn update(&mut self) -> Option<SourceEvent> {
        if !std::mem::take(&mut self.is_new) {
            return None;
        }
        let troubles: BTreeSet<&Finding> = self.troubles.values().collect();
        let troubles: Vec<Finding> = troubles.into_iter().cloned().collect();
        let findings = self.findings.values().flatten().chain(&troubles).cloned().collect();
        let in_sync = self.listed.len() == Kind::ALL.len();
        Some(SourceEvent {
            changes: std::mem::take(&mut self.update.changes),
            written: std::mem::take(&mut self.update.written),
            findings,
            in_sync,
            // Before that a part is missing; with trouble nobody knows for how long.
            more_expected: !in_sync && troubles.is_empty(),
            unread: troubles,
        })
    }
}
