use std::{
    pin::pin,
    time::{Duration, Instant, SystemTime},
};

use futures::future::{Either, select};
use kube::Client;
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use weir_model::{Change, Finding, Severity};
use weir_runtime::{Backoff, jitter};

use crate::{
    Pace, ReadError,
    kind::Kind,
    known::Known,
    link::Link,
    wire::{self, Definition, Page, Seen},
};

/// The code of a finding about the way to the API server, whatever is wrong with it.
pub const UNREACHABLE: &str = "unreachable";

/// What is new about a kind.
#[derive(Debug)]
pub(crate) enum Told {
    /// What happened to the world, and when it was written, if that is known.
    Changes(Vec<Change>, Option<SystemTime>),
    /// All that is wrong with the objects of the kind.
    Findings(Kind, Vec<Finding>),
    /// A list is complete.
    Listed(Kind),
    /// Why the kind cannot be read at the moment; `None` if it can.
    Trouble(Kind, Option<Finding>),
}

/// Nobody listens any more.
struct Unheard;

/// Lists the objects of a kind, watches them, and begins again when that is needed, for ever.
pub(crate) struct Follower {
    kind: Kind,
    link: Link,
    pace: Pace,
    out: mpsc::Sender<Told>,
    reload: watch::Receiver<u64>,
    known: Known,
    backoff: Backoff,
    /// What is wrong with the definition of the kind.
    definition: Option<Finding>,
    in_trouble: bool,
    /// Since when the API server says that there is no such kind.
    missing_since: Option<Instant>,
}

/// What comes next, if it is not the same again; or why it did not work.
type Tried = Result<Option<Next>, ReadError>;

/// What to do.
enum Next {
    /// Watch, from this version on.
    Watch(String),
    /// List everything.
    List,
    /// The kind does not exist; look again later.
    Later,
}

impl Follower {
    pub(crate) fn new(
        kind: Kind,
        link: Link,
        pace: Pace,
        out: mpsc::Sender<Told>,
        reload: watch::Receiver<u64>,
    ) -> Self {
        Follower {
            kind,
            link,
            pace,
            out,
            reload,
            known: Known::new(kind),
            backoff: Backoff::new(pace.retry, pace.longest_retry),
            definition: None,
            in_trouble: false,
            missing_since: None,
        }
    }

    /// Goes on until nobody listens.
    pub(crate) async fn run(mut self) {
        let mut next = Next::List;
        while let Ok(then) = self.step(next).await {
            next = then;
        }
    }

    async fn step(&mut self, now: Next) -> Result<Next, Unheard> {
        let (tried, retry) = match now {
            Next::List => (self.list().await?, Next::List),
            Next::Watch(mut version) => {
                // After a failure it goes on from where it came to.
                let tried = self.watch(&mut version).await?;
                (tried, Next::Watch(version))
            }
            Next::Later => {
                let wait = jitter(self.pace.absent);
                self.pause(wait).await;
                return Ok(Next::List);
            }
        };
        let error = match tried {
            Ok(Some(next)) => return Ok(next),
            Ok(None) => return Ok(retry),
            Err(error) => error,
        };
        let retry = match (&error, retry) {
            // What the API server forgot, or no longer has, is asked for from the beginning.
            (ReadError::Gone { .. } | ReadError::Missing { .. }, Next::Watch(_)) => {
                return Ok(Next::List);
            }
            (ReadError::Garbled { .. }, _) => Next::List,
            (_, retry) => retry,
        };
        self.trouble(&error).await?;
        let wait = self.backoff.next_delay();
        self.pause(wait).await;
        Ok(retry)
    }

    /// Reads all pages. What is there is told at once, what is gone only at the end.
    async fn list(&mut self) -> Result<Tried, Unheard> {
        let (client, count) = match self.client().await {
            Ok(made) => made,
            Err(error) => return Ok(Err(error)),
        };
        self.known.begin();
        let mut after = None;
        loop {
            let page = Page::get(&client, self.kind, self.pace.page, after.as_deref()).await;
            let page = match page {
                Ok(page) => page,
                Err(ReadError::Missing { .. }) if self.kind.is_optional() => {
                    return self.absent(&client).await;
                }
                Err(error @ ReadError::Forbidden { .. }) if self.kind.is_optional() => {
                    // Rights are checked before it is known whether there is such a kind.
                    return match wire::is_served(&client, self.kind.version(), self.kind.resource())
                        .await
                    {
                        Ok(false) => self.absent(&client).await,
                        Ok(true) => Ok(Err(error)),
                        Err(error) => Ok(Err(error)),
                    };
                }
                // The list took too long, and its rest is forgotten.
                Err(ReadError::Gone { .. }) if after.is_some() => return Ok(Ok(Some(Next::List))),
                Err(error) => return Ok(Err(self.failed(error, count))),
            };
            self.missing_since = None;
            self.defined(None).await?;
            let mut changes = Vec::new();
            let known = &mut self.known;
            let rest = page.each(self.kind, |node| changes.extend(known.put(node)));
            drop(page);
            let rest = match rest {
                Ok(rest) => rest,
                Err(error) => return Ok(Err(error)),
            };
            self.calm().await?;
            self.changed(changes, None).await?;
            after = rest.more;
            if after.is_none() {
                let gone = self.known.complete();
                self.changed(gone, None).await?;
                self.tell(Told::Listed(self.kind)).await?;
                return Ok(Ok(Some(Next::Watch(rest.version))));
            }
        }
    }

    /// The API server says that there is no such kind. That it is so, only its definition can tell: after a start the API server
    /// says so for a moment about everything that was installed.
    async fn absent(&mut self, client: &Client) -> Result<Tried, Unheard> {
        let for_long =
            self.missing_since.get_or_insert_with(Instant::now).elapsed() >= self.pace.patience;
        let definition = match wire::definition(client, self.kind).await {
            Ok(Definition::None) => None,
            Ok(Definition::Other) => Some(unknown_version(self.kind)),
            // Without the right to look, time has to tell.
            Err(ReadError::Forbidden { .. }) if for_long => None,
            Ok(Definition::Served) if for_long => {
                let resource = self.kind.resource().into();
                return Ok(Err(ReadError::Missing { resource }));
            }
            Ok(Definition::Served) | Err(ReadError::Forbidden { .. }) => {
                let wait = jitter(self.pace.retry);
                self.pause(wait).await;
                return Ok(Ok(Some(Next::List)));
            }
            Err(error) => return Ok(Err(error)),
        };
        self.calm().await?;
        // What is only not served in our version is still meant: it stays as it was.
        if definition.is_none() {
            self.known.begin();
            let gone = self.known.complete();
            self.changed(gone, None).await?;
        }
        self.defined(definition).await?;
        self.tell(Told::Listed(self.kind)).await?;
        Ok(Ok(Some(Next::Later)))
    }

    /// Watches from a version on, until the watch ends, and moves the version along.
    async fn watch(&mut self, version: &mut String) -> Result<Tried, Unheard> {
        let (client, count) = match self.client().await {
            Ok(made) => made,
            Err(error) => return Ok(Err(error)),
        };
        let start = Instant::now();
        let mut events = match wire::watch(&client, self.kind, version).await {
            Ok(events) => events,
            Err(error) => return Ok(Err(self.failed(error, count))),
        };
        self.calm().await?;
        let mut reload = self.reload.clone();
        loop {
            let next = pin!(timeout(self.pace.silence, events.next()));
            let seen = match select(next, pin!(reload.changed())).await {
                Either::Left((seen, _)) => seen,
                Either::Right((Ok(()), _)) => {
                    self.known.distrust();
                    self.reload.mark_unchanged();
                    return Ok(Ok(Some(Next::List)));
                }
                Either::Right((Err(_), _)) => return Err(Unheard),
            };
            let seen = match seen {
                Ok(Ok(Some(seen))) => seen,
                Ok(Err(error)) => {
                    self.lasted(start);
                    return Ok(Err(self.failed(error, count)));
                }
                // It has ended; or there was nothing for long, not even a bookmark, and perhaps nobody is at the other end.
                Ok(Ok(None)) | Err(_) => {
                    // A watch that ends at once is no way to go on quickly.
                    if start.elapsed() < Duration::from_secs(1) {
                        let wait = self.backoff.next_delay();
                        self.pause(wait).await;
                    }
                    self.lasted(start);
                    return Ok(Ok(None));
                }
            };
            self.backoff.reset();
            let (to, written) = (seen.version(), seen.written());
            let change = match seen {
                Seen::Put(node) => self.known.put(node),
                Seen::Removed(node) => self.known.remove(&node),
                Seen::Bookmark(_) => None,
            };
            self.changed(change.into_iter().collect(), written).await?;
            // Only now, so that nothing is skipped.
            if let Some(to) = to {
                *version = to;
            }
        }
    }

    /// A watch that went on for a while is a success, however it ended.
    fn lasted(&mut self, since: Instant) {
        if since.elapsed() > Duration::from_secs(10) {
            self.backoff.reset();
        }
    }

    async fn client(&self) -> Result<(Client, u64), ReadError> {
        self.link.client().await
    }

    /// An error of a request. It may be the client's.
    fn failed(&self, error: ReadError, count: u64) -> ReadError {
        if error.is_about_access() {
            self.link.renew(count);
        }
        error
    }

    /// Tells what happened, and what is wrong now.
    async fn changed(
        &mut self,
        changes: Vec<Change>,
        written: Option<SystemTime>,
    ) -> Result<(), Unheard> {
        if self.known.has_news() {
            self.tell_findings().await?;
        }
        if !changes.is_empty() {
            self.tell(Told::Changes(changes, written)).await?;
        }
        Ok(())
    }

    /// Tells what is wrong with the definition of the kind, if that is new.
    async fn defined(&mut self, finding: Option<Finding>) -> Result<(), Unheard> {
        if self.definition == finding {
            return Ok(());
        }
        self.definition = finding;
        self.tell_findings().await
    }

    async fn tell_findings(&mut self) -> Result<(), Unheard> {
        let mut findings = self.known.findings();
        findings.extend(self.definition.clone());
        self.tell(Told::Findings(self.kind, findings)).await
    }

    async fn trouble(&mut self, error: &ReadError) -> Result<(), Unheard> {
        self.in_trouble = true;
        // Whatever is wrong with the way to the API server is wrong for all kinds, and said once.
        let (code, what) = match error.is_about_access() {
            true => (UNREACHABLE, "the cluster"),
            false => ("unread", self.kind.resource()),
        };
        let finding = Finding {
            location: None,
            code,
            severity: Severity::Error,
            object: None,
            field: String::new(),
            message: format!("{what} cannot be followed: {}", error.text()),
            hint: error.hint(),
        };
        self.tell(Told::Trouble(self.kind, Some(finding))).await
    }

    async fn calm(&mut self) -> Result<(), Unheard> {
        match std::mem::take(&mut self.in_trouble) {
            true => self.tell(Told::Trouble(self.kind, None)).await,
            false => Ok(()),
        }
    }

    async fn tell(&mut self, told: Told) -> Result<(), Unheard> {
        self.out.send(told).await.map_err(|_| Unheard)
    }

    /// Waits, or not, if everything is to be read again.
    async fn pause(&mut self, wait: Duration) {
        let mut reload = self.reload.clone();
        select(pin!(sleep(wait)), pin!(reload.changed())).await;
        if self.reload.has_changed().is_ok_and(|has_changed| has_changed) {
            self.reload.mark_unchanged();
            self.known.distrust();
        }
    }
}

fn unknown_version(kind: Kind) -> Finding {
    Finding {
        location: None,
        code: "unknown-version",
        severity: Severity::Error,
        object: None,
        field: String::new(),
        message: format!(
            "{} are not served as {}; they are not read",
            kind.resource(),
            kind.version()
        ),
        hint: "serve that version in the CustomResourceDefinition".into(),
    }
}
