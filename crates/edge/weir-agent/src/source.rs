use std::{error::Error, fmt, io, path::PathBuf};

use weir_kube::{Access, Events, Pods, RetryPolicy};
use weir_model::Pod;
use weir_runtime::SourceEvent;

use crate::PodReader;

/// Who speaks in Events.
const COMPONENT: &str = "weir-agent";

/// Where the world comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder of manifests.
    Folder(PathBuf),
    /// The API server of a cluster.
    Kube(Access),
}

/// A source that is being watched, until this is dropped.
#[derive(Debug)]
pub(crate) enum Watch {
    Folder(weir_source::Watch),
    Kube(weir_kube::Watch),
}

impl Source {
    /// Watches it and tells what is new, beginning with all there is, until `tell` returns `false`.
    pub(crate) fn watch(
        &self,
        tell: impl FnMut(SourceEvent) -> bool + Send + 'static,
    ) -> io::Result<Watch> {
        match self {
            Source::Folder(path) => weir_source::Watch::start(path, tell).map(Watch::Folder),
            Source::Kube(access) => {
                weir_kube::Watch::start(access.clone(), RetryPolicy::default(), tell)
                    .map(Watch::Kube)
            }
        }
    }

    /// Who reads pods that the watch does not have yet, if there is another way to them.
    pub(crate) fn reader(&self) -> io::Result<Option<Box<dyn PodReader>>> {
        match self {
            Source::Folder(_) => Ok(None),
            Source::Kube(access) => Ok(Some(Box::new(Pods::new(access.clone())?))),
        }
    }

    /// Where to say something about its objects, if they can be told.
    pub(crate) fn events(&self, node: &str) -> io::Result<Option<Events>> {
        match self {
            Source::Folder(_) => Ok(None),
            Source::Kube(access) => Events::start(access.clone(), COMPONENT, node).map(Some),
        }
    }

    /// What to do if it cannot be read completely.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Source::Folder(_) => {
                "repair the files, or name another folder with `--source`; what is installed stays in force meanwhile"
            }
            Source::Kube(_) => {
                "check --kubeconfig and --context, or the pod's service account and its rights; what is installed stays in force meanwhile"
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Folder(path) => path.display().fmt(f),
            Source::Kube(_) => f.write_str("the cluster"),
        }
    }
}

impl Watch {
    /// Reads everything again.
    pub(crate) fn reload(&self) {
        match self {
            Watch::Folder(watch) => watch.reload(),
            Watch::Kube(watch) => watch.reload(),
        }
    }
}

impl PodReader for Pods {
    fn read(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Pod>, Box<dyn Error + Send + Sync>> {
        Ok(self.get(namespace, name)?)
    }
}
