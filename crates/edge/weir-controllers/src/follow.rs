use std::time::{Duration, Instant};

use futures::{StreamExt, pin_mut};
use kube::{
    api::{ListParams, WatchParams},
    core::WatchEvent,
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use weir_kube::{ReadError, RetryPolicy};
use weir_runtime::{Backoff, jitter};

use weir_kube::{Object, ObjectId, Resource};

use crate::{Server, Told, crds, server::api};

/// How long a watch may take to open.
const OPENING: Duration = Duration::from_secs(15);
/// How long a watch goes on, at most. The API server ends it.
const WATCH_SECONDS: u32 = 290;

/// Which objects to follow.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Of which kind.
    pub resource: Resource,
    /// In which namespace; everywhere if it is empty.
    pub namespace: String,
    /// With which labels, as kubectl takes them; whichever if it is empty.
    pub labels: String,
    /// With which fields, as kubectl takes them; whichever if it is empty.
    pub fields: String,
    /// What to keep of an object. What is not looked at need not be remembered.
    pub keep: fn(Object) -> Object,
}

impl Watched {
    /// All objects of a kind, whole.
    pub fn all(resource: Resource) -> Self {
        let all = String::new;
        Watched { resource, namespace: all(), labels: all(), fields: all(), keep: |object| object }
    }
}

/// Lists objects, watches them, and begins again when that is needed, until nobody listens.
pub async fn follow<M>(
    server: Server,
    watched: Watched,
    pace: RetryPolicy,
    word: fn(Told) -> M,
    out: mpsc::Sender<M>,
) {
    let backoff = Backoff::new(pace.first_retry, pace.longest_retry);
    let mut follower = Follower { server, watched, pace, word, out, backoff, in_trouble: false };
    while follower.round().await.is_ok() {}
}

/// Nobody listens any more.
struct Unheard;

struct Follower<M> {
    server: Server,
    watched: Watched,
    pace: RetryPolicy,
    word: fn(Told) -> M,
    out: mpsc::Sender<M>,
    backoff: Backoff,
    in_trouble: bool,
}

impl<M> Follower<M> {
    /// A list, and watches from there on until the API server no longer knows what was before.
    async fn round(&mut self) -> Result<(), Unheard> {
        let (version, mut from, objects) = match self.list().await {
            Ok(listed) => listed,
            // The list took too long, and its rest is forgotten.
            Err(ReadError::Gone { .. }) => {
                sleep(self.backoff.next_delay()).await;
                return Ok(());
            }
            Err(error) => return self.wait_out(&error).await,
        };
        self.calm().await?;
        self.tell(Told::Listed(version, objects)).await?;
        loop {
            let start = Instant::now();
            let ended = self.watch(version, &mut from).await?;
            if start.elapsed() > Duration::from_secs(10) {
                self.backoff.reset();
            }
            match ended {
                Ok(()) if start.elapsed() > Duration::from_secs(1) => (),
                // A watch that ends at once is no way to go on quickly.
                Ok(()) => sleep(self.backoff.next_delay()).await,
                Err(ReadError::Gone { .. } | ReadError::Missing { .. }) => return Ok(()),
                Err(error @ ReadError::Garbled { .. }) => return self.wait_out(&error).await,
                Err(error) => self.wait_out(&error).await?,
            }
        }
    }

    /// All objects in the first version that is served, and where to watch from.
    async fn list(&self) -> Result<(&'static str, String, Vec<Object>), ReadError> {
        let mut missing = ReadError::Missing { resource: self.watched.resource.name() };
        for version in self.watched.resource.versions {
            match self.list_in(version).await {
                Err(error @ ReadError::Missing { .. }) => missing = error,
                Err(error) => return Err(error),
                Ok((from, objects)) => return Ok((version, from, objects)),
            }
        }
        Err(missing)
    }

    async fn list_in(&self, version: &'static str) -> Result<(String, Vec<Object>), ReadError> {
        let Watched { resource, namespace, labels, fields, .. } = &self.watched;
        let name = resource.name();
        let mut params = ListParams::default().limit(self.pace.page_size);
        if !labels.is_empty() {
            params = params.labels(labels);
        }
        if !fields.is_empty() {
            params = params.fields(fields);
        }
        let mut objects = Vec::new();
        loop {
            let place = ObjectId::new(namespace.clone(), "");
            let list = self.server.ask("list", &name, async |client| {
                api(client, resource, version, &place).list(&params).await
            });
            let list = list.await?;
            objects.extend(list.items.into_iter().map(|object| self.tidy(object, version)));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => {
                    let from = list.metadata.resource_version.unwrap_or_default();
                    return Ok((from, objects));
                }
            }
        }
    }

    /// Watches until the watch ends, and moves the version along.
    async fn watch(
        &mut self,
        version: &'static str,
        from: &mut String,
    ) -> Result<Result<(), ReadError>, Unheard> {
        let Watched { resource, namespace, labels, fields, .. } = self.watched.clone();
        let name = resource.name();
        let fail = |error| ReadError::from_kube(error, "watch", &name);
        let (client, count) = match self.server.client().await {
            Ok(made) => made,
            Err(error) => return Ok(Err(error)),
        };
        let api = api(client, &resource, version, &ObjectId::new(namespace, ""));
        let mut params = WatchParams::default().timeout(WATCH_SECONDS);
        if !labels.is_empty() {
            params = params.labels(&labels);
        }
        if !fields.is_empty() {
            params = params.fields(&fields);
        }
        let events = match timeout(OPENING, api.watch(&params, from)).await {
            Ok(Ok(events)) => events,
            Ok(Err(error)) => return Ok(Err(self.failed(fail(error), count))),
            Err(_) => {
                self.server.renew(count);
                return Ok(Ok(()));
            }
        };
        self.calm().await?;
        pin_mut!(events);
        loop {
            // There is a bookmark every minute; after a long silence perhaps nobody is at the other end.
            let Ok(event) = timeout(self.pace.watch_silence, events.next()).await else {
                self.server.renew(count);
                return Ok(Ok(()));
            };
            let told = match event {
                None => return Ok(Ok(())),
                Some(Err(error)) => return Ok(Err(self.failed(fail(error), count))),
                Some(Ok(WatchEvent::Error(status))) => {
                    return Ok(Err(fail(kube::Error::Api(status))));
                }
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    *from = bookmark.metadata.resource_version;
                    continue;
                }
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    Told::Put(self.tidy(object, version))
                }
                Some(Ok(WatchEvent::Deleted(object))) => Told::Gone(self.tidy(object, version)),
            };
            self.backoff.reset();
            let (Told::Put(object) | Told::Gone(object)) = &told else { continue };
            let to = object.metadata.resource_version.clone();
            self.tell(told).await?;
            // Only now, so that nothing is skipped.
            *from = to.unwrap_or_default();
        }
    }

    /// An object with its type, which the elements of a list need not have, and without what nobody reads.
    fn tidy(&self, object: Object, version: &str) -> Object {
        (self.watched.keep)(tidy(object, &self.watched.resource, version))
    }

    fn failed(&self, error: ReadError, count: u64) -> ReadError {
        if error.is_about_access() {
            self.server.renew(count);
        }
        error
    }

    /// Tells what is wrong, and waits.
    async fn wait_out(&mut self, error: &ReadError) -> Result<(), Unheard> {
        let name = self.watched.resource.name();
        let (trouble, wait) = match error {
            ReadError::Missing { .. } => {
                let text =
                    format!("{name} is not installed; {}", crds::hint(&self.watched.resource));
                (text, jitter(self.pace.absence_poll))
            }
            error => {
                let text = format!("{name} cannot be followed: {}; {}", error.text(), error.hint());
                (text, self.backoff.next_delay())
            }
        };
        self.in_trouble = true;
        self.tell(Told::Trouble(Some(trouble))).await?;
        sleep(wait).await;
        Ok(())
    }

    async fn calm(&mut self) -> Result<(), Unheard> {
        match std::mem::take(&mut self.in_trouble) {
            true => self.tell(Told::Trouble(None)).await,
            false => Ok(()),
        }
    }

    async fn tell(&mut self, told: Told) -> Result<(), Unheard> {
        self.out.send((self.word)(told)).await.map_err(|_| Unheard)
    }
}

/// An object with its type, and without the record of who wrote what.
pub(crate) fn tidy(mut object: Object, resource: &Resource, version: &str) -> Object {
    object.types = Some(resource.type_meta(version));
    object.metadata.managed_fields = None;
    object
}
