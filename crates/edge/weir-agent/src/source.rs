use std::{error::Error, fmt, io, path::PathBuf};

use weir_kube::{
    Access, ClusterKinds, ClusterWatch, NodeReporter, PodClient, Recorder, RelayOptions,
    RetryPolicy,
};
use weir_model::Pod;
use weir_runtime::SourceEvent;

use crate::PodReader;

/// The component that Events name as their source.
const COMPONENT: &str = "weir-agent";

/// The source of the cluster state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder of manifests.
    Folder(PathBuf),
    /// The API server of a cluster, and the relays that spare it.
    Kube(Access, Option<RelayOptions>),
}

/// A source that is being watched, until this is dropped.
#[derive(Debug)]
pub(crate) enum SourceWatch {
    Folder(weir_source::FolderWatch),
    Kube(ClusterWatch),
}

impl Source {
    /// Watches the source and sends its events, the first with everything there is, until `send`
    /// returns `false`.
    pub(crate) fn watch(
        &self,
        send: impl FnMut(SourceEvent) -> bool + Send + 'static,
    ) -> io::Result<SourceWatch> {
        self.watch_with(RetryPolicy::default(), send)
    }

    /// The same for a process that ends when it has seen everything.
    pub(crate) fn watch_once(
        &self,
        send: impl FnMut(SourceEvent) -> bool + Send + 'static,
    ) -> io::Result<SourceWatch> {
        self.watch_with(RetryPolicy::default().for_one_list(), send)
    }

    fn watch_with(
        &self,
        policy: RetryPolicy,
        send: impl FnMut(SourceEvent) -> bool + Send + 'static,
    ) -> io::Result<SourceWatch> {
        match self {
            Source::Folder(path) => {
                weir_source::FolderWatch::start(path, send).map(SourceWatch::Folder)
            }
            Source::Kube(access, relays) => {
                let (access, relays) = (access.clone(), relays.clone());
                let kinds = ClusterKinds::Policies;
                ClusterWatch::start_with_relays(access, policy, kinds, relays, send)
                    .map(SourceWatch::Kube)
            }
        }
    }

    /// Reads single pods directly, for when the watch lags behind, if the source has another way to
    /// them.
    ///
    /// With relays there is none: a pod must not count before the policies that select it have
    /// arrived, and a relay sends both together.
    pub(crate) fn reader(&self) -> io::Result<Option<Box<dyn PodReader>>> {
        match self {
            Source::Folder(_) | Source::Kube(_, Some(_)) => Ok(None),
            Source::Kube(access, None) => Ok(Some(Box::new(PodClient::new(access.clone())?))),
        }
    }

    /// Where to write Events about the source's objects, if it is a cluster.
    pub(crate) fn events(&self, node: &str) -> io::Result<Option<Recorder>> {
        match self {
            Source::Folder(_) => Ok(None),
            Source::Kube(access, _) => Recorder::start(access.clone(), COMPONENT, node).map(Some),
        }
    }

    /// Where to report what this node enforces, if the source is a cluster.
    pub(crate) fn node_reports(&self, namespace: &str) -> io::Result<Option<NodeReporter>> {
        match self {
            Source::Folder(_) => Ok(None),
            Source::Kube(access, _) => NodeReporter::start(access.clone(), namespace).map(Some),
        }
    }

    /// What to do if the source cannot be read completely.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Source::Folder(_) => {
                "correct the files, or name another folder with `--source`; the installed rules stay in force meanwhile"
            }
            Source::Kube(..) => {
                "check --kubeconfig and --context, or the pod's service account and its permissions; the installed rules stay in force meanwhile"
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Folder(path) => path.display().fmt(f),
            Source::Kube(..) => f.write_str("the cluster"),
        }
    }
}

impl SourceWatch {
    /// Reads everything again.
    pub(crate) fn reload(&self) {
        match self {
            SourceWatch::Folder(watch) => watch.reload(),
            SourceWatch::Kube(watch) => watch.reload(),
        }
    }
}

impl PodReader for PodClient {
    fn read_pod(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Pod>, Box<dyn Error + Send + Sync>> {
        Ok(self.get(namespace, name)?)
    }
}
