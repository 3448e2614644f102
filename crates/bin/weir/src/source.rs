//! The source of the world, the same for all read-only commands.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;
use weir_api::{Case, Manifests};
use weir_kube::{Access, ApiError, ClusterKinds};
use weir_model::Finding;
use weir_source::{LoadError, manifests::ManifestInput};
pub(crate) use weir_view::loaded::{Loaded, compile, is_about};

use crate::{
    clusters::ClustersArgs,
    failure::Failure,
    kustomize,
    names::NamesPage,
    pod_network::PodNetworkArgs,
    present::{
        self,
        progress::{Progress, Working},
    },
    test::without_tests,
    translation::Worlds,
};

/// The source of the world.
#[derive(Args, Clone)]
pub(crate) struct SourceArgs {
    /// Manifests: a file, a directory, or `-` for standard input [repeatable] [default: the current
    /// cluster]
    #[arg(short = 'f', long = "filename", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// A folder with a kustomization, rendered by `kubectl kustomize` or `kustomize build`
    /// [repeatable]
    #[arg(short = 'k', long = "kustomize", value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    kustomizations: Vec<PathBuf>,
    #[command(flatten)]
    live: LiveArgs,
    #[command(flatten)]
    pub(crate) pod_network: PodNetworkArgs,
    /// Restrict the output to a namespace. Manifests without a namespace belong to it, as with
    /// `kubectl apply -n`; objects of other namespaces keep theirs and still count as peers. In
    /// explain, also the namespace of pod names without one
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
}

/// The cluster to read.
#[derive(Args, Clone)]
pub(crate) struct LiveArgs {
    /// The kubeconfig of the cluster, if -f is absent
    #[arg(long, value_name = "PATH", conflicts_with = "files")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME", conflicts_with = "files")]
    context: Option<String>,
}

impl LiveArgs {
    /// Reads the cluster once. The error without a kubeconfig also suggests `instead`.
    pub(crate) fn load(&self, kinds: ClusterKinds, instead: &str) -> anyhow::Result<Loaded> {
        load_cluster(&self.access(), kinds, instead)
    }

    fn access(&self) -> Access {
        Access::new(self.kubeconfig.as_deref(), self.context.as_deref())
    }
}

/// Reads a cluster once. The error without a kubeconfig also suggests `instead`.
pub(crate) fn load_cluster(
    access: &Access,
    kinds: ClusterKinds,
    instead: &str,
) -> anyhow::Result<Loaded> {
    let mut progress = Progress::new("reading the cluster");
    let manifests =
        weir_kube::read_cluster(access, kinds, |step| progress.report(step.done, step.all));
    drop(progress);
    let manifests = manifests.map_err(|error| {
        let hint = match &error {
            ApiError::NoKubeconfig => format!("{instead}, or {}", error.hint()),
            _ => error.hint(),
        };
        Failure::new(error, hint)
    })?;
    Ok(Loaded::from(manifests))
}

/// Prints the relevant findings to standard error, and fails if an object is missing. Otherwise a
/// policy that could not be read would count as one that allows everything.
pub(crate) fn complete(loaded: Loaded) -> Result<Loaded, Failure> {
    present::findings::print_relevant(loaded.findings.iter().chain(&loaded.missing));
    if loaded.missing.is_empty() { Ok(loaded) } else { Err(incomplete()) }
}

/// The lint findings about the world.
pub(crate) fn lint(loaded: &Loaded) -> Vec<Finding> {
    let _working = Working::new("checking policies");
    loaded.lint()
}

/// The error for incomplete input.
pub(crate) fn incomplete() -> Failure {
    Failure::new(
        "part of the input is unreadable or contradictory, so an answer could be wrong",
        "fix the errors above; `weir lint` lists all findings",
    )
}

impl SourceArgs {
    /// Reads the world without Services.
    pub(crate) fn load(&self) -> anyhow::Result<Loaded> {
        self.load_kinds(ClusterKinds::Policies)
    }

    fn load_kinds(&self, kinds: ClusterKinds) -> anyhow::Result<Loaded> {
        let loaded = if self.reads_cluster() {
            self.live.load(kinds, "give manifests with -f PATH")?
        } else {
            let rendered = kustomize::render_all(&self.kustomizations)?;
            let paths = &self.files;
            load_manifests(ManifestInput {
                paths,
                rendered: &rendered,
                namespace: self.namespace(),
                pod_details: kinds.pod_details(),
            })?
        };
        let loaded = self.pod_network.cidrs().apply(loaded)?;
        if let Some(namespace) = self.namespace() {
            loaded.check_namespace(namespace)?;
        }
        Ok(loaded)
    }

    /// Reads these kinds, with the domain names of an agent. Fails as
    /// [`load_complete`](SourceArgs::load_complete) does.
    pub(crate) fn load_with_names(
        &self,
        kinds: ClusterKinds,
        names: &NamesPage,
    ) -> anyhow::Result<Loaded> {
        let mut loaded = self.load_kinds(kinds)?;
        loaded.world.domains = names.domains();
        loaded.findings.retain(|finding| finding.code != weir_api::UNRESOLVED_NAME);
        Ok(complete(loaded)?)
    }

    /// Reads the clusters if any were given, else these kinds as
    /// [`load_complete`](SourceArgs::load_complete) does.
    pub(crate) fn load_clusters(
        &self,
        clusters: &ClustersArgs,
        kinds: ClusterKinds,
    ) -> anyhow::Result<Loaded> {
        if clusters.is_empty() {
            return self.load_complete(kinds);
        }
        let loaded =
            self.pod_network.cidrs().apply(clusters.load(self.kubeconfig_of(clusters)?)?)?;
        if let Some(namespace) = self.namespace() {
            loaded.check_namespace(namespace)?;
        }
        Ok(complete(loaded)?)
    }

    /// Reads the clusters, together and each as its own world. Fails as
    /// [`load_clusters`](SourceArgs::load_clusters) does.
    pub(crate) fn load_separately(
        &self,
        clusters: &ClustersArgs,
    ) -> anyhow::Result<(Loaded, Worlds)> {
        let (loaded, worlds) = clusters.load_separately(self.kubeconfig_of(clusters)?)?;
        Ok((complete(loaded)?, worlds))
    }

    /// The kubeconfig for the contexts of clusters. Fails for another source beside the clusters.
    fn kubeconfig_of(&self, clusters: &ClustersArgs) -> Result<Option<&Path>, Failure> {
        let kubeconfig = self.live.kubeconfig.as_deref();
        let is_unused = kubeconfig.is_some() && !clusters.has_context();
        let has_manifests = !self.files.is_empty() || !self.kustomizations.is_empty();
        if !has_manifests && self.live.context.is_none() && !is_unused {
            return Ok(kubeconfig);
        }
        let what = "--cluster cannot be combined with -f, -k, --context, or an unused --kubeconfig";
        let hint = "give the source of each cluster: --cluster NAME=PATH or \
                    --cluster NAME=context:CONTEXT";
        Err(Failure::new(what, hint))
    }

    /// Reads the world, prints its relevant findings, and fails if an object is missing.
    pub(crate) fn load_complete(&self, kinds: ClusterKinds) -> anyhow::Result<Loaded> {
        Ok(complete(self.load_kinds(kinds)?)?)
    }

    /// Whether the world comes from a cluster.
    pub(crate) fn reads_cluster(&self) -> bool {
        self.files.is_empty() && self.kustomizations.is_empty()
    }

    /// Whether an argument names manifests or a cluster.
    pub(crate) fn is_given(&self) -> bool {
        !self.reads_cluster() || self.live.kubeconfig.is_some() || self.live.context.is_some()
    }

    /// The paths of the manifests; none for a cluster.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.files
    }

    /// The cluster that is read without manifests.
    pub(crate) fn access(&self) -> Access {
        self.live.access()
    }

    /// The namespace to restrict the output to.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }
}

/// Reads the world from files and directories.
pub(crate) fn load_paths(paths: &[PathBuf]) -> anyhow::Result<Loaded> {
    load_manifests(ManifestInput { paths, ..ManifestInput::default() })
}

/// Reads the world from manifests.
pub(crate) fn load_manifests(input: ManifestInput<'_>) -> anyhow::Result<Loaded> {
    let _working = Working::new("reading manifests");
    // Without a lock: `weir ui` can read a recording from standard input meanwhile.
    let manifests = input.load(&mut io::stdin()).map_err(failed)?;
    Ok(Loaded::from(manifests))
}

/// Reads a file, or standard input for `-`.
pub(crate) fn read_file(file: &Path) -> anyhow::Result<Vec<u8>> {
    if file.as_os_str() != "-" {
        return weir_source::read_file(file).map_err(failed);
    }
    let mut bytes = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|error| failed(LoadError::Stdin(error)))?;
    Ok(bytes)
}

/// The files that may contain policy tests.
pub(crate) fn case_files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            files.push(path.clone());
            continue;
        }
        match weir_source::case_files(std::slice::from_ref(path)) {
            Ok(found) => files.extend(found),
            Err(LoadError::Empty { path }) => return Err(without_tests(&[path]).into()),
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(files)
}

/// The manifests that a policy test refers to.
pub(crate) fn manifests_of(case: &Case) -> anyhow::Result<Manifests> {
    weir_source::manifests::read_case(case).map_err(failed)
}

/// A loading error, with its hint.
fn failed(error: LoadError) -> anyhow::Error {
    let hint = error.hint();
    Failure::new(error, hint).into()
}
