//! Answers the requests of the page with the functions of the other commands.

use std::{
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

use serde_json::{Value, json};
use weir_flows::RecordEnd;
use weir_kube::ClusterKinds;
use weir_view::{
    explain::Clusters,
    page::{Page, PageData, PageError, PageOptions, PageRequest},
};

use super::{
    Purpose, UiInput,
    drops::DropLog,
    flows::{self, FlowLog},
    live::{self, LiveAgents},
    recorded::RecordedGraph,
};
use crate::{
    failure::Failure,
    lint_config::{self, LintConfig},
    present::progress::Progress,
};

/// The page about one input.
pub(super) struct Session {
    input: UiInput,
    content: RwLock<Arc<Content>>,
    flows: Option<FlowLog>,
    drops: Option<DropLog>,
}

/// What the page shows.
pub(super) enum Content {
    /// Policies and their effect.
    Policies(Box<Page>),
    /// A recording without manifests.
    Recording(RecordedGraph),
}

impl Content {
    /// The requests whose answers a static page contains.
    pub(super) fn requests(&self) -> Vec<PageRequest> {
        match self {
            Content::Policies(page) => page.requests(),
            Content::Recording(graph) => graph.requests(),
        }
    }

    /// The row of an end of a flow.
    fn row(&self, end: &RecordEnd) -> Option<usize> {
        match self {
            Content::Policies(page) => flows::row(page, end),
            Content::Recording(graph) => graph.row(end),
        }
    }

    fn overview(&self, flows: Option<&FlowLog>) -> Value {
        match self {
            Content::Policies(page) => page.overview(flows.map(|flows| flows.used(page)).as_ref()),
            Content::Recording(graph) => graph.overview(),
        }
    }

    fn answer(&self, request: &PageRequest) -> anyhow::Result<Value> {
        match self {
            Content::Policies(page) => Ok(page.answer(request).transpose()?.unwrap_or_default()),
            Content::Recording(graph) => Ok(graph.answer(request)?),
        }
    }
}

impl Session {
    /// Reads the input.
    pub(super) fn load(input: UiInput, purpose: Purpose) -> anyhow::Result<Self> {
        if input.live {
            let content = RwLock::new(Arc::new(read(&input, None)?));
            let (flows, drops) = (FlowLog::live(), DropLog::default());
            let agents = match &input.agent {
                Some(address) => LiveAgents::One(address.clone()),
                None => LiveAgents::Cluster(input.source.access(), input.agent_namespace.clone()),
            };
            live::start(agents, &flows, &drops);
            return Ok(Session { input, content, flows: Some(flows), drops: Some(drops) });
        }
        let flows = input.flows.as_deref().map(|path| FlowLog::open(path, purpose)).transpose()?;
        let content = RwLock::new(Arc::new(read(&input, flows.as_ref())?));
        Ok(Session { input, content, flows, drops: None })
    }

    /// The current content. It stays valid while the input is read again.
    pub(super) fn content(&self) -> Arc<Content> {
        Arc::clone(&self.content.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the input again.
    fn reload(&self) -> anyhow::Result<Arc<Content>> {
        let new = Arc::new(read(&self.input, self.flows.as_ref())?);
        *self.content.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&new);
        Ok(new)
    }

    fn try_answer(&self, request: &PageRequest) -> anyhow::Result<Value> {
        let content = self.content();
        match request {
            // A page that is opened shows the flows that arrived until then.
            PageRequest::Overview if matches!(*content, Content::Recording(_)) => {
                Ok(self.reload()?.overview(self.flows.as_ref()))
            }
            PageRequest::Overview => Ok(content.overview(self.flows.as_ref())),
            PageRequest::Flows { after } => Ok(match &self.flows {
                Some(log) => log.changes(|end| content.row(end), *after),
                None => json!({"available": false}),
            }),
            PageRequest::Drops { after } => Ok(match &self.drops {
                Some(log) => log.changes(*after),
                None => json!({"available": false}),
            }),
            PageRequest::Reload => Ok(self.reload()?.overview(self.flows.as_ref())),
            other => content.answer(other),
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

/// Reads and compiles the input. A recording without manifests and without a cluster needs neither.
fn read(input: &UiInput, recording: Option<&FlowLog>) -> anyhow::Result<Content> {
    let UiInput { source, clusters, ingress, .. } = input;
    if let Some(flows) = recording
        && !source.is_given()
        && clusters.is_empty()
    {
        let path = input.flows.as_deref().unwrap_or(Path::new(""));
        return Ok(Content::Recording(flows.graph(shown(path), source.namespace())));
    }
    let config = LintConfig::find(None, source.paths())?;
    let loaded = source.load_clusters(clusters, ClusterKinds::DestinationsAndRoutes)?;
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
    let page = Page::new(loaded, options, |done, all| progress.report(done, all))?;
    Ok(Content::Policies(Box::new(page)))
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
