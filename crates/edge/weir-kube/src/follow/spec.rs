use std::time::Duration;

use crate::Resource;

/// The objects to follow.
#[derive(Clone, Debug)]
pub struct WatchSpec {
    /// The kind.
    pub resource: Resource,
    /// The namespace; all namespaces if empty.
    pub namespace: String,
    /// A label selector in kubectl's syntax; all objects if empty.
    pub labels: String,
    /// A field selector in kubectl's syntax; all objects if empty.
    pub fields: String,
    /// The reaction if the API server does not serve the kind.
    pub on_missing: OnMissing,
}

/// The reaction to a kind that the API server does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnMissing {
    /// Report the failure and retry.
    Fail,
    /// Report that the kind is not installed, with this hint, and retry.
    FailWithHint(String),
    /// Treat the kind as one without objects, after checking that its CustomResourceDefinition does
    /// not exist, and poll until it is installed.
    TreatAsEmpty,
}

impl WatchSpec {
    /// All objects of a kind that every cluster has.
    pub fn all(resource: Resource) -> Self {
        let all = String::new;
        let on_missing = OnMissing::Fail;
        WatchSpec { resource, namespace: all(), labels: all(), fields: all(), on_missing }
    }
}

/// Page size, retry waits and timeouts of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The number of objects on a page of a list.
    pub page_size: u32,
    /// The wait after the first failure. Each further failure doubles it.
    pub first_retry: Duration,
    /// The longest wait after a failure.
    pub longest_retry: Duration,
    /// The time between two checks whether an optional kind has been installed.
    pub absence_poll: Duration,
    /// The time that a kind must be missing before it counts as not installed, if the follower is
    /// not allowed to read its definition.
    pub absence_grace: Duration,
    /// The longest time without an event or bookmark on a watch.
    pub watch_silence: Duration,
    /// The time between two comparisons of everything that is known with a new list. It is longer
    /// for long lists, and shortened by up to half at random.
    pub comparison_interval: Duration,
    /// The longest random wait before the first list, for each thousand objects of it, if the API
    /// server is busy.
    pub start_spread: Duration,
}

impl RetryPolicy {
    /// The policy of a command that ends after its first lists: it does not make way for others.
    #[must_use]
    pub fn for_one_list(self) -> Self {
        RetryPolicy { start_spread: Duration::ZERO, ..self }
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            page_size: 500,
            first_retry: Duration::from_millis(500),
            longest_retry: Duration::from_secs(30),
            absence_poll: Duration::from_secs(30),
            absence_grace: Duration::from_secs(60),
            // The API server sends a bookmark every minute.
            watch_silence: Duration::from_secs(90),
            comparison_interval: Duration::from_secs(30 * 60),
            start_spread: Duration::from_millis(20),
        }
    }
}
