//! The answers that the web page draws.

mod explain;
mod exported;
mod overview;
mod policies;
mod request;
mod snapshot;
mod what_if;

use std::collections::BTreeSet;

use ipnet::IpNet;
use jiff::civil::Date;
use serde_json::Value;

pub use request::{PageData, PageError, PageRequest};
use snapshot::Snapshot;

use crate::{explain::Clusters, failure::Failure, loaded::Loaded, suppression::IgnoreEntry};

/// The options of a page.
#[derive(Debug)]
pub struct PageOptions {
    /// The input, as a user would name it.
    pub title: String,
    /// The only namespace to show, which is also that of names without one.
    pub namespace: Option<String>,
    /// The networks of the pods; none for the usual ones.
    pub pod_cidrs: Vec<IpNet>,
    /// The pods of ingress controllers; none to find them by their labels.
    pub ingress_controllers: Vec<String>,
    /// The clusters in the world.
    pub clusters: Clusters,
    /// The findings to ignore.
    pub ignore: Vec<IgnoreEntry>,
    /// The current day, on which entries of `ignore` can have expired.
    pub today: Date,
}

/// The page about one input.
pub struct Page {
    options: PageOptions,
    snapshot: Snapshot,
}

impl Page {
    /// Compiles the input, and evaluates all connections. `progress` gets the evaluated rows and
    /// their number.
    pub fn new(
        loaded: Loaded,
        options: PageOptions,
        progress: impl FnMut(usize, usize),
    ) -> Result<Self, Failure> {
        let snapshot = Snapshot::new(loaded, &options, progress)?;
        Ok(Page { options, snapshot })
    }

    /// The row of a workload or of a pod, by its name.
    pub fn row(&self, name: &str) -> Option<usize> {
        self.snapshot.rows.get(name).copied()
    }

    /// The row of all that is outside the cluster.
    pub fn outside_row(&self) -> Option<usize> {
        self.snapshot.matrix.columns.checked_sub(1)
    }

    /// The overview. `used` has the pairs of workloads that were seen to connect, if flows were
    /// given.
    pub fn overview(&self, used: Option<&BTreeSet<(usize, usize)>>) -> Value {
        overview::overview(&self.snapshot, &self.options.title, used)
    }

    /// The answer to a request about the input itself. `None` for observed traffic, and for a
    /// request to read the input again.
    pub fn answer(&self, request: &PageRequest) -> Option<Result<Value, Failure>> {
        let Page { options, snapshot } = self;
        Some(match request {
            PageRequest::Overview => Ok(self.overview(None)),
            PageRequest::Cells { from, to } => Ok(overview::cells(snapshot, *from, *to)),
            PageRequest::End { end } => Ok(overview::end(snapshot, *end)),
            PageRequest::Explain { from, to, port } => {
                explain::explain(snapshot, options, [from, to], port)
            }
            PageRequest::Policies => Ok(policies::list(snapshot)),
            PageRequest::Policy { id } => policies::one(snapshot, id),
            PageRequest::WhatIf { text, remove } => {
                what_if::what_if(snapshot, options, text, remove)
            }
            PageRequest::Flows { .. } | PageRequest::Drops { .. } | PageRequest::Reload => {
                return None;
            }
        })
    }

    /// All requests that the page can make, as far as a static page can contain the answers.
    pub fn requests(&self) -> Vec<PageRequest> {
        exported::requests(&self.snapshot)
    }
}
