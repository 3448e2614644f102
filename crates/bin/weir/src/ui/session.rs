//! Answers the requests of the page with the functions of the other commands.

use std::{
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

use serde_json::{Value, json};
use weir_web::{PageData, PageError, PageRequest};

use super::{
    UiInput,
    drops::DropLog,
    explain,
    flows::FlowLog,
    live::{self, LiveAgents},
    overview, policies,
    snapshot::Snapshot,
    what_if,
};
use crate::failure::Failure;

/// The page about one input.
pub(super) struct Session {
    input: UiInput,
    snapshot: RwLock<Arc<Snapshot>>,
    flows: Option<FlowLog>,
    drops: Option<DropLog>,
}

impl Session {
    /// Reads the input.
    pub(super) fn load(input: UiInput) -> anyhow::Result<Self> {
        let snapshot = RwLock::new(Arc::new(Snapshot::load(&input)?));
        if input.live {
            let (flows, drops) = (FlowLog::live(), DropLog::default());
            let agents = match &input.agent {
                Some(address) => LiveAgents::One(address.clone()),
                None => LiveAgents::Cluster(input.source.access(), input.agent_namespace.clone()),
            };
            live::start(agents, &flows, &drops);
            return Ok(Session { input, snapshot, flows: Some(flows), drops: Some(drops) });
        }
        let flows = input.flows.as_deref().map(FlowLog::open).transpose()?;
        Ok(Session { input, snapshot, flows, drops: None })
    }

    /// The current snapshot. It stays valid while the input is read again.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The input, as a user would name it.
    fn title(&self) -> String {
        let paths = self.input.source.paths();
        if !self.input.clusters.is_empty() {
            return "ClusterSet".to_owned();
        }
        match paths {
            [] => "current cluster".to_owned(),
            paths => paths.iter().map(|path| shown(path)).collect::<Vec<_>>().join(", "),
        }
    }

    fn overview(&self, snapshot: &Snapshot) -> Value {
        let used = self.flows.as_ref().map(|flows| flows.used(snapshot));
        overview::overview(snapshot, &self.title(), used.as_ref())
    }

    fn try_answer(&self, request: &PageRequest) -> anyhow::Result<Value> {
        let snapshot = self.snapshot();
        let snapshot = snapshot.as_ref();
        match request {
            PageRequest::Overview => Ok(self.overview(snapshot)),
            PageRequest::Cells { from, to } => Ok(overview::cells(snapshot, *from, *to)),
            PageRequest::End { end } => Ok(overview::end(snapshot, *end)),
            PageRequest::Explain { from, to, port } => {
                explain::explain(snapshot, &self.input, [from, to], port)
            }
            PageRequest::Policies => Ok(policies::list(snapshot)),
            PageRequest::Policy { id } => policies::one(snapshot, id),
            PageRequest::WhatIf { text, remove } => {
                what_if::what_if(snapshot, &self.input, text, remove)
            }
            PageRequest::Flows { after } => Ok(match &self.flows {
                Some(log) => log.changes(snapshot, *after),
                None => json!({"available": false}),
            }),
            PageRequest::Drops { after } => Ok(match &self.drops {
                Some(log) => log.changes(*after),
                None => json!({"available": false}),
            }),
            PageRequest::Reload => {
                let new = Arc::new(Snapshot::load(&self.input)?);
                *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&new);
                Ok(self.overview(&new))
            }
        }
    }
}

impl PageData for Session {
    fn answer(&self, request: &PageRequest) -> Result<Value, PageError> {
        self.try_answer(request).map_err(|error| {
            let mut causes: Vec<String> = error.chain().map(ToString::to_string).collect();
            causes.dedup_by(|cause, error| error.ends_with(cause.as_str()));
            let hint = error.chain().find_map(|cause| cause.downcast_ref::<Failure>());
            let hint = hint.map(|failure| failure.hint().to_owned()).unwrap_or_default();
            PageError { error: causes.join(": "), hint }
        })
    }
}

fn shown(path: &Path) -> String {
    match path.to_string_lossy() {
        text if text == "-" => "standard input".to_owned(),
        text => text.into_owned(),
    }
}
