use std::marker::PhantomData;

use tokio::sync::mpsc;

use super::{Closed, Follower, ObjectSink, Problem, RetryPolicy, WatchSpec};
use crate::{ApiClient, Item, Resource, Revision, WireObject};

/// An event about the objects of one kind.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectEvent<T> {
    /// A complete list.
    Listed {
        /// The API version of the objects.
        version: &'static str,
        /// All objects.
        items: Vec<Item<T>>,
    },
    /// An object was created or changed.
    Put(Item<T>),
    /// An object was deleted.
    Removed(Revision),
    /// The follower works again.
    Available,
    /// The follower cannot reach or read the objects, for this reason. It retries.
    Unavailable(String),
}

/// Follows the objects of a kind, until the receiver of `out` is dropped.
///
/// `read` converts each object as soon as it is parsed. `wrap` turns an event into the message type
/// of the channel.
pub async fn follow<R, T, M>(
    client: ApiClient,
    spec: WatchSpec,
    policy: RetryPolicy,
    read: fn(R) -> T,
    wrap: fn(ObjectEvent<T>) -> M,
    out: mpsc::Sender<M>,
) where
    R: WireObject,
    T: Send,
    M: Send,
{
    let sink = Collector { read, wrap, out, listed: Vec::new(), raw: PhantomData };
    Follower::new(client, spec, policy, None, sink).run().await;
}

/// Collects the pages of a list to one event.
struct Collector<R, T, M> {
    read: fn(R) -> T,
    wrap: fn(ObjectEvent<T>) -> M,
    out: mpsc::Sender<M>,
    listed: Vec<Item<T>>,
    raw: PhantomData<fn(R)>,
}

impl<R, T, M> Collector<R, T, M> {
    async fn send(&mut self, event: ObjectEvent<T>) -> Result<(), Closed> {
        self.out.send((self.wrap)(event)).await.map_err(|_| Closed)
    }
}

impl<R: WireObject, T: Send, M: Send> ObjectSink for Collector<R, T, M> {
    type Raw = R;
    type Item = Item<T>;

    fn convert(&mut self, object: R) -> Item<T> {
        Item::from_object(object, self.read)
    }

    /// The follower is their only source, and knows.
    fn can_have_objects(&self) -> bool {
        false
    }

    fn begin_list(&mut self) {
        self.listed.clear();
    }

    async fn page(&mut self, items: Vec<Item<T>>) -> Result<(), Closed> {
        self.listed.extend(items);
        Ok(())
    }

    async fn complete_list(&mut self, version: &'static str) -> Result<(), Closed> {
        let mut items = std::mem::take(&mut self.listed);
        // The API server's cache has no order, and what a limit leaves out must not depend on chance.
        items.sort_by(|one, other| one.revision.id.cmp(&other.revision.id));
        self.send(ObjectEvent::Listed { version, items }).await
    }

    async fn keep_list(&mut self) -> Result<(), Closed> {
        Ok(())
    }

    async fn put(&mut self, item: Item<T>) -> Result<(), Closed> {
        self.send(ObjectEvent::Put(item)).await
    }

    async fn remove(&mut self, object: R) -> Result<(), Closed> {
        let revision = object.revision();
        // A list as events can contain objects that are deleted meanwhile.
        self.listed.retain(|item| item.revision.id != revision.id);
        self.send(ObjectEvent::Removed(revision)).await
    }

    fn distrust(&mut self) {}

    async fn reverted(&mut self) -> Result<(), Closed> {
        Ok(())
    }

    async fn version_unknown(&mut self, _: Option<Resource>) -> Result<(), Closed> {
        Ok(())
    }

    async fn report(&mut self, problem: Option<Problem>) -> Result<(), Closed> {
        let event = match problem {
            None => ObjectEvent::Available,
            Some(Problem { message, hint, .. }) => {
                ObjectEvent::Unavailable(format!("{message}; {hint}"))
            }
        };
        self.send(event).await
    }
}
