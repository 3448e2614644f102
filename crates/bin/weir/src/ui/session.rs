//! Answers the requests of the page with the functions of the other commands.

use std::{
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

use serde_json::{Value, json};
use weir_kube::{ApiError, ClusterKinds};
use weir_view::{
    explain::Clusters,
    page::{Page, PageData, PageError, PageOptions, PageRequest},
};

use super::{
    Purpose, UiInput,
    drops::DropLog,
    flows::FlowLog,
    live::{self, LiveAgents},
};
use crate::{
    failure::Failure,
    lint_config::{self, LintConfig},
    present::progress::Progress,
};

/// The page about one input.
pub(super) struct Session {
    input: UiInput,
    page: RwLock<Arc<Page>>,
    flows: Option<FlowLog>,
    drops: Option<DropLog>,
}

impl Session {
    /// Reads the input.
    pub(super) fn load(input: UiInput, purpose: Purpose) -> anyhow::Result<Self> {
        let page = RwLock::new(Arc::new(read(&input)?));
        if input.live {
            let (flows, drops) = (FlowLog::live(), DropLog::default());
            let agents = match &input.agent {
                Some(address) => LiveAgents::One(address.clone()),
                None => LiveAgents::Cluster(input.source.access(), input.agent_namespace.clone()),
            };
            live::start(agents, &flows, &drops);
            return Ok(Session { input, page, flows: Some(flows), drops: Some(drops) });
        }
        let flows = input.flows.as_deref().map(|path| FlowLog::open(path, purpose)).transpose()?;
        Ok(Session { input, page, flows, drops: None })
    }

    /// The current page. It stays valid while the input is read again.
    pub(super) fn page(&self) -> Arc<Page> {
        Arc::clone(&self.page.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn overview(&self, page: &Page) -> Value {
        page.overview(self.flows.as_ref().map(|flows| flows.used(page)).as_ref())
    }

    fn try_answer(&self, request: &PageRequest) -> anyhow::Result<Value> {
        let page = self.page();
        match request {
            PageRequest::Overview => Ok(self.overview(&page)),
            PageRequest::Flows { after } => Ok(match &self.flows {
                Some(log) => log.changes(&page, *after),
                None => json!({"available": false}),
            }),
            PageRequest::Drops { after } => Ok(match &self.drops {
                Some(log) => log.changes(*after),
                None => json!({"available": false}),
            }),
            PageRequest::Reload => {
                let new = Arc::new(read(&self.input)?);
                *self.page.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&new);
                Ok(self.overview(&new))
            }
            other => match page.answer(other) {
                Some(answer) => Ok(answer?),
                None => Ok(Value::Null),
            },
        }
    }
}

impl PageData for Session {
    fn answer(&self, request: &PageRequest) -> Result<Value, PageError> {
        self.try_answer(request).map_err(|error| match error.downcast_ref::<Failure>() {
            Some(failure) => PageError::from(failure),
            None => PageError { error: format!("{error:#}"), hint: String::new() },
        })
    }
}

/// Reads and compiles the input.
fn read(input: &UiInput) -> anyhow::Result<Page> {
    let UiInput { source, clusters, ingress, flows, .. } = input;
    let config = LintConfig::find(None, source.paths())?;
    let loaded = source.load_clusters(clusters, ClusterKinds::DestinationsAndRoutes);
    let loaded = loaded.map_err(|error| match flows {
        Some(_) => beside_recording(error),
        None => error,
    })?;
    let options = PageOptions {
        title: title(input),
        namespace: source.namespace().map(str::to_owned),
        pod_cidrs: source.pod_network.cidrs().0.to_vec(),
        ingress_controllers: ingress.controllers().0.to_vec(),
        clusters: if clusters.is_empty() { Clusters::One } else { Clusters::Several },
        ignore: config.ignore,
        today: lint_config::today(),
    };
    let mut progress = Progress::new("evaluating connections");
    Ok(Page::new(loaded, options, |done, all| progress.report(done, all))?)
}

/// Adds to the hint about an unreachable cluster that a recording is not enough.
fn beside_recording(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<Failure>() {
        Ok(failure) if failure.is::<ApiError>() => {
            let hint = format!(
                "{}; a recording has no policies, so --flows needs manifests (-f) or a cluster",
                failure.hint()
            );
            Failure::new(failure, hint).into()
        }
        Ok(failure) => failure.into(),
        Err(error) => error,
    }
}

/// The input, as a user would name it.
fn title(input: &UiInput) -> String {
    if !input.clusters.is_empty() {
        return "ClusterSet".to_owned();
    }
    match input.source.paths() {
        [] => "current cluster".to_owned(),
        paths => paths.iter().map(|path| shown(path)).collect::<Vec<_>>().join(", "),
    }
}

fn shown(path: &Path) -> String {
    match path.to_string_lossy() {
        text if text == "-" => "standard input".to_owned(),
        text => text.into_owned(),
    }
}
