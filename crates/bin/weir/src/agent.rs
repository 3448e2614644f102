use std::{
    env,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use weir_agent::{AgentError, Options, Source, Sysctls};
use weir_datapath::{Datapath, Drops, Established, Mode};
use weir_kube::{Access, RetryPolicy};

use crate::{
    datapath::DatapathKind,
    exit::Exit,
    failure::Failure,
    listen::{self, Http},
    log::LogArgs,
    opflex, platform,
};

/// Where `weir drops` asks, unless told otherwise.
pub(crate) const ADDRESS: &str = "127.0.0.1:9640";

/// Enforce the policies on this node
///
/// Watches a cluster, or a folder of manifests, and keeps the rules of this network namespace equal to what it says about the pods of
/// the node. Nothing is written before everything was read once; while the API server is away, and as long as a file is broken,
/// what was in force stays. Rules that others change are put back within seconds. SIGHUP reads everything again and compares it with the kernel; SIGTERM ends the agent, and the
/// rules stay in force. This needs root, or CAP_NET_ADMIN.
///
/// With `--datapath opflex` it keeps the files of opflex-agent equal to what the controller `hpp` has written about this node, and needs no right but to
/// read the cluster and write to the folder.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir agent --source kube --node node-1 --kubeconfig /etc/weir/kubeconfig\n  NODE_NAME=node-1 weir agent --source kube     # in a pod, as its service account\n  weir agent --source /etc/weir/manifests --node node-1\n  weir agent --source /etc/weir/manifests --node node-1 --audit --log-format json\n  weir agent --cleanup\n  weir agent --datapath opflex --source kube --node node-1 --aci-prefix demo\n\nHTTP: /healthz /readyz /metrics /status /drops"
)]
pub(crate) struct Agent {
    /// Where pods, namespaces, nodes and policies come from: a cluster, or a folder of manifests
    #[arg(long, value_name = "kube|DIR", required_unless_present = "cleanup")]
    source: Option<PathBuf>,
    /// The kubeconfig to reach the cluster with [default: KUBECONFIG, or ~/.kube/config, or the service account of the pod]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The datapath: nftables, iptables or opflex on Linux, hcn on Windows
    #[arg(long, value_name = "NAME", value_enum, default_value_t = platform::DEFAULT, hide_possible_values = true)]
    datapath: DatapathKind,
    /// The node whose pods the rules are for
    #[arg(long, value_name = "NAME", env = "NODE_NAME", hide_env_values = true, required_unless_present = "cleanup", value_parser = NonEmptyStringValueParser::new())]
    node: Option<String>,
    /// Tell what would be dropped, and drop nothing
    #[arg(long)]
    audit: bool,
    /// Apply once and exit: 1 if something is not as it should be
    #[arg(long, conflicts_with = "cleanup")]
    once: bool,
    /// Remove everything of weir's and exit
    #[arg(long)]
    cleanup: bool,
    /// What happens to established connections that are forbidden now
    #[arg(long, value_enum, default_value = "cut")]
    established: Fate,
    /// Where to listen for HTTP, or `off`
    #[arg(long, value_name = "ADDRESS", default_value = ADDRESS, value_parser = listen::http)]
    http: Http,
    /// Where to serve /metrics and nothing else, beside --http, or `off`
    #[arg(long, value_name = "ADDRESS", default_value = "off", value_parser = listen::http)]
    metrics: Http,
    /// Where the CNI plugin asks whether a pod's rules are in force; without it nobody is listened to
    #[arg(long, value_name = "PATH", conflicts_with_all = ["once", "cleanup"])]
    cni_socket: Option<PathBuf>,
    #[command(flatten)]
    log: LogArgs,
    /// Set net.bridge.bridge-nf-call-iptables and -ip6tables if there are bridges
    #[arg(long)]
    manage_sysctls: bool,
    #[command(flatten)]
    aci: opflex::NodeOptions,
}

/// What happens to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fate {
    /// They go on
    Keep,
    /// They are ended
    Cut,
}

impl Agent {
    pub(crate) fn run(&self) -> anyhow::Result<Exit> {
        match self.datapath.backend().agent {
            Some(run) => run(self),
            None => Err(self.no_datapath().into()),
        }
    }

    /// The error for a datapath that does not run on this system.
    fn no_datapath(&self) -> Failure {
        let runs = |kind: &&DatapathKind| kind.backend().agent.is_some();
        let kinds = DatapathKind::value_variants().iter().filter(runs);
        let flags: Vec<String> = kinds.map(|kind| format!("`--datapath {kind}`")).collect();
        let what = format!("the agent cannot run `{}` on {}", self.datapath, env::consts::OS);
        Failure::new(what, format!("use {}", flags.join(" or ")))
    }

    /// Runs the agent, applies the rules once, or removes them.
    pub(crate) fn run_datapath(
        &self,
        options: &Options,
        datapath: impl Datapath,
        drops: Option<Box<dyn Drops + Send>>,
    ) -> anyhow::Result<Exit> {
        if self.cleanup {
            weir_agent::cleanup(datapath).map_err(failed)?;
            tracing::info!("removed everything of weir's");
            return Ok(Exit::Yes);
        }
        if self.once {
            let reasons = weir_agent::once(options, datapath).map_err(failed)?;
            reasons.iter().for_each(|reason| tracing::warn!("{reason}"));
            return Ok(Exit::when(reasons.is_empty()));
        }
        weir_agent::run(options, datapath, drops).map_err(failed)?;
        Ok(Exit::Yes)
    }

    /// Keeps the files of opflex-agent up to date.
    pub(crate) fn run_opflex(&self) -> anyhow::Result<Exit> {
        let opflex::NodeOptions { aci, aci_space, netpol_dir } = &self.aci;
        let failed = |error: weir_opflex::OpflexError| {
            let hint = error.hint();
            Failure::new(error, hint)
        };
        if self.audit || self.cni_socket.is_some() {
            let what = "--audit and --cni-socket are about packets, and opflex-agent has those";
            return Err(Failure::new(what, "leave them out, or use another datapath").into());
        }
        self.log.start();
        if self.cleanup {
            let removed = weir_opflex::cleanup(netpol_dir).map_err(failed)?;
            removed.iter().for_each(|name| tracing::info!("removed {name}"));
            tracing::info!("removed {} files from {}", removed.len(), netpol_dir.display());
            return Ok(Exit::Yes);
        }
        let Source::Kube(access) = self.source()? else {
            let what = "opflex is told by objects of a cluster, and this is a folder";
            return Err(Failure::new(what, "use `--source kube`").into());
        };
        let options = weir_opflex::Options {
            access,
            namespace: aci.hpp_namespace.clone(),
            node: self.node.clone().unwrap_or_default(),
            prefix: aci.aci_prefix.clone(),
            space: aci_space.clone().unwrap_or_else(|| aci.aci_prefix.clone()),
            folder: netpol_dir.clone(),
            http: self.http.0,
            retry_policy: RetryPolicy::default(),
        };
        let mode = if self.once {
            weir_opflex::RunMode::Once
        } else {
            weir_opflex::RunMode::UntilStopped
        };
        let reasons = weir_opflex::run(&options, mode).map_err(failed)?;
        Ok(Exit::when(!self.once || reasons.is_empty()))
    }

    /// The options of the agent, with the log started.
    pub(crate) fn options(&self) -> Result<Options, Failure> {
        let options = Options {
            source: self.source()?,
            node: self.node.as_deref().unwrap_or_default().into(),
            datapath: self.datapath.backend().name,
            mode: if self.audit { Mode::Audit } else { Mode::Enforce },
            established: match self.established {
                Fate::Keep => Established::Keep,
                Fate::Cut => Established::Cut,
            },
            http: self.http.0,
            metrics: self.metrics.0,
            cni: self.cni_socket.clone(),
            sysctls: if self.manage_sysctls { Sysctls::Manage } else { Sysctls::Report },
            version: env!("CARGO_PKG_VERSION"),
        };
        self.log.start();
        Ok(options)
    }

    fn source(&self) -> Result<Source, Failure> {
        let source = self.source.as_deref().unwrap_or(Path::new(""));
        if source == Path::new("kube") {
            let access = Access::new(self.kubeconfig.as_deref(), self.context.as_deref());
            return Ok(Source::Kube(access));
        }
        if self.kubeconfig.is_some() || self.context.is_some() {
            let what = "--kubeconfig and --context are about a cluster, and this is a folder";
            let hint = "use `--source kube`; a folder of that name is `./kube`";
            return Err(Failure::new(what, hint));
        }
        Ok(Source::Folder(source.into()))
    }
}

fn failed(error: AgentError) -> Failure {
    let hint = error.hint();
    Failure::new(error, hint)
}
