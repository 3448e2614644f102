use std::future::{Future, ready};

use crate::{Resource, WireObject};

/// The receiver of the events is gone.
pub(crate) struct Closed;

/// Why a kind cannot be followed at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) message: String,
    pub(crate) hint: String,
    /// Whether the cause affects all kinds alike: connection or credentials.
    pub(crate) is_about_access: bool,
}

/// Receives what a follower reads.
pub(crate) trait ObjectSink {
    /// The form in which objects are parsed.
    type Raw: WireObject;
    /// What the sink keeps of an object.
    type Item: Send;

    /// Converts an object while its page is being parsed. The page can still turn out to be
    /// invalid, so that this must not change what the sink knows.
    fn convert(&mut self, object: Self::Raw) -> Self::Item;

    /// Whether the sink, or a receiver of its events, can have objects of the kind, from whichever
    /// source.
    fn can_have_objects(&self) -> bool;

    /// A list begins. It replaces a list that was not completed.
    fn begin_list(&mut self);
    /// The objects of one page.
    fn page(&mut self, items: Vec<Self::Item>) -> impl Future<Output = Result<(), Closed>> + Send;
    /// The list is complete: all other objects are gone. `reached` follows.
    fn complete_list(
        &mut self,
        version: &'static str,
    ) -> impl Future<Output = Result<(), Closed>> + Send;
    /// There is no list, and all known objects stay.
    fn keep_list(&mut self) -> impl Future<Output = Result<(), Closed>> + Send;

    /// An object was created or changed.
    fn put(&mut self, item: Self::Item) -> impl Future<Output = Result<(), Closed>> + Send;
    /// An object was deleted.
    fn remove(&mut self, object: Self::Raw) -> impl Future<Output = Result<(), Closed>> + Send;

    /// All changes up to a resourceVersion were passed on. A bookmark says so without a change. The
    /// list of a kind that is not installed has no version.
    fn reached(
        &mut self,
        _position: &str,
        _is_bookmark: bool,
    ) -> impl Future<Output = Result<(), Closed>> + Send {
        ready(Ok(()))
    }

    /// Treat every object of the next list as changed.
    fn distrust(&mut self);
    /// The versions went back: the next list counts, and nothing that was seen before.
    fn reverted(&mut self) -> impl Future<Output = Result<(), Closed>> + Send;
    /// The kind's definition serves only versions that weir does not understand; `None` if the kind
    /// is served.
    fn version_unknown(
        &mut self,
        resource: Option<Resource>,
    ) -> impl Future<Output = Result<(), Closed>> + Send;
    /// The problem changed; `None` if there is none any more.
    fn report(
        &mut self,
        problem: Option<Problem>,
    ) -> impl Future<Output = Result<(), Closed>> + Send;
}
