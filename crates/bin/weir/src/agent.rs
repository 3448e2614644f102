use std::{
    env,
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use ipnet::IpNet;
use weir_agent::{
    AgentError, AgentOptions, FlowExport, FlowLog, MachineReports, OtlpCollector, Source, Sysctls,
};
use weir_datapath::{Datapath, Established, Mode, Rejection};
use weir_flows::FlowLimits;
use weir_kube::{Access, ApiError, RetryPolicy};
use weir_model::{Block, Direction, Verdict};

use crate::{
    budget::BudgetArgs,
    datapath::DatapathKind,
    exit::Exit,
    failure::Failure,
    listen::{self, Http},
    log::LogArgs,
    opflex, platform,
    relay::RelayArgs,
};

/// The default address of the agent, for `weir drops` too.
pub(crate) const ADDRESS: &str = "127.0.0.1:9640";

/// Enforce the policies on this node
///
/// Watches a cluster or a folder of manifests and installs the rules for the pods of this node. The
/// agent writes nothing before its first complete read of the source. While the API server is
/// unreachable or a manifest is invalid, the last known good rules stay in force. The agent restores
/// rules that another program has changed. When it stops, the rules stay in force.
///
/// On Linux, the agent writes to the packet filter of its network namespace and needs root or
/// CAP_NET_ADMIN. SIGHUP makes it read everything again and compare it with the kernel. SIGTERM
/// stops it.
///
/// On Windows, the agent writes ACLs to the endpoints of HNS and must run as SYSTEM or as an
/// administrator. Ctrl-C stops it.
///
/// With `--datapath opflex` the agent keeps the files of opflex-agent equal to the objects that the
/// controller `hpp` has written for this node. It then needs only to read the cluster and to write
/// to the folder.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir agent --source kube --node node-1 --kubeconfig /etc/weir/kubeconfig\n  NODE_NAME=node-1 weir agent --source kube     # in a pod, as its service account\n  weir agent --source /etc/weir/manifests --node node-1\n  weir agent --source /etc/weir/manifests --node node-1 --audit --log-format json\n  weir agent --cleanup\n  weir agent --datapath opflex --source kube --node node-1 --aci-prefix demo\n\nHTTP: /healthz /readyz /container /metrics /status /drops /flows /policies /names"
)]
pub(crate) struct AgentCommand {
    /// The source of pods, namespaces, nodes and policies: a cluster (kube) or a folder of
    /// manifests
    #[arg(long, value_name = "kube|DIR", required_unless_present = "cleanup")]
    source: Option<PathBuf>,
    /// The kubeconfig of the cluster [default: KUBECONFIG, ~/.kube/config, or the service account
    /// of the pod]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    #[command(flatten)]
    relay: RelayArgs,
    /// The datapath: nftables, iptables, ebpf (experimental) or opflex on Linux, hcn on Windows
    #[arg(long, value_name = "NAME", value_enum, default_value_t = platform::DEFAULT, hide_possible_values = true)]
    datapath: DatapathKind,
    /// The node whose pods to install rules for
    #[arg(long, value_name = "NAME", env = "NODE_NAME", hide_env_values = true, required_unless_present = "cleanup", value_parser = NonEmptyStringValueParser::new())]
    node: Option<String>,
    /// Report the packets that the rules would drop, but drop nothing
    #[arg(long)]
    audit: bool,
    /// Apply the rules once and exit; the exit status is 1 if a manifest is invalid, the rules of a
    /// pod are rejected, or the source does not contain the node
    #[arg(long, conflicts_with = "cleanup")]
    once: bool,
    /// Remove all rules that weir has installed on this node, and exit. With `--datapath opflex`,
    /// remove only its files
    #[arg(long)]
    cleanup: bool,
    /// The treatment of established connections that a change of policy denies
    #[arg(long, value_enum, default_value = "cut")]
    established: EstablishedArg,
    /// Whether pods that the CNI plugin reported may send packets with a source address that is not
    /// theirs
    #[arg(long, value_enum, default_value = "deny")]
    spoofing: GuardArg,
    /// Whether pods may send packets for the tunnels of this node: VXLAN, Geneve, IPIP, SIT and GRE
    #[arg(long, value_enum, default_value = "deny")]
    encapsulation: GuardArg,
    /// What happens to packets that policies deny; `reject` answers with a TCP reset or an ICMP
    /// error, to pods of this node and to the networks of `--reject-to`
    #[arg(long, value_enum, default_value = "drop")]
    denied: DeniedArg,
    /// A network of the cluster whose senders get the answers of `--denied`, such as the network of
    /// all pods; repeatable
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    reject_to: Vec<IpNet>,
    /// A resolver whose DNS answers count for rules about domain names: an address or a network.
    /// The pods `k8s-app=kube-dns` in kube-system, and resolvers on the node itself, always count;
    /// repeatable
    #[arg(long = "resolver", value_name = "ADDRESS", value_parser = resolver)]
    resolvers: Vec<Block>,
    /// Whether a last rule in FORWARD accepts the packets of this node's pods that policies allow;
    /// only with `--datapath iptables` [default: auto]
    #[arg(long, value_name = "WHEN", value_enum)]
    accept_forwarded: Option<AcceptForwardedArg>,
    /// Send packets between pods of this node from link to link, past the node's own network stack;
    /// only with `--datapath ebpf`, and only while nothing translates addresses of Services
    #[arg(long)]
    fast_lane: bool,
    /// The address to serve HTTP on, or `off`
    #[arg(long, value_name = "ADDRESS", default_value = ADDRESS, value_parser = listen::http)]
    http: Http,
    /// A second address that serves only /metrics, or `off`
    #[arg(long, value_name = "ADDRESS", default_value = "off", value_parser = listen::http)]
    metrics: Http,
    /// Whether the agent observes the connections of pods, for `weir flows`
    #[arg(long, value_name = "WHEN", value_enum, default_value = "on")]
    flows: FlowsArg,
    /// A file to which the agent appends each flow that changed, as a line of JSON, every 5 seconds;
    /// only its owner can read it
    #[arg(long, value_name = "PATH")]
    flow_log: Option<PathBuf>,
    /// The size at which the flow log is rotated, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    flow_log_size: u64,
    /// The number of older flow logs: PATH.1, PATH.2 and so on
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    flow_log_files: u32,
    /// An OpenTelemetry collector to which the agent sends each flow that changed, as a log record:
    /// OTLP over HTTP with JSON, without TLS [default: none]
    #[arg(long, value_name = "http://HOST:PORT", value_parser = OtlpCollector::parse_logs)]
    flow_otlp: Option<OtlpCollector>,
    /// An OpenTelemetry collector to which the agent sends its metrics every 15 seconds: OTLP over HTTP
    /// with JSON, without TLS [default: none]
    #[arg(long, value_name = "http://HOST:PORT", value_parser = OtlpCollector::parse_metrics)]
    metrics_otlp: Option<OtlpCollector>,
    /// The socket on which the CNI plugin waits for a pod's rules; with `--cleanup`, the socket to
    /// remove [default: none]
    #[arg(long, value_name = "PATH", conflicts_with = "once")]
    cni_socket: Option<PathBuf>,
    /// The namespace of a Lease in which the agent reports the policies that are in force on this
    /// node, for the controller `conditions`; only with `--source kube` [default: none]
    #[arg(long, value_name = "NAMESPACE", conflicts_with_all = ["once", "cleanup"])]
    report_to: Option<String>,
    #[command(flatten)]
    budget: BudgetArgs,
    #[command(flatten)]
    log: LogArgs,
    /// Set net.bridge.bridge-nf-call-iptables and -ip6tables if the node has bridges
    #[arg(long)]
    manage_sysctls: bool,
    #[command(flatten)]
    aci: opflex::NodeOptions,
}

/// Whether connections are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FlowsArg {
    /// Observe them
    On,
    /// Do not
    Off,
}

/// The treatment of established connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EstablishedArg {
    /// Let them continue
    Keep,
    /// Terminate them
    Cut,
}

/// The treatment of packets that policies cannot relax.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GuardArg {
    /// Drop and report them
    Deny,
    /// Let them pass
    Allow,
}

impl From<GuardArg> for Verdict {
    fn from(treatment: GuardArg) -> Self {
        match treatment {
            GuardArg::Deny => Verdict::Deny,
            GuardArg::Allow => Verdict::Allow,
        }
    }
}

/// What happens to packets that policies deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DeniedArg {
    /// They are dropped without an answer
    Drop,
    /// Senders in the cluster get an answer
    Reject,
    /// Only pods of this node that must not send them get an answer
    RejectEgress,
    /// Only senders of packets that a pod must not receive get an answer
    RejectIngress,
}

/// Whether a last rule in FORWARD accepts packets of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AcceptForwardedArg {
    /// While the policy of FORWARD is DROP
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Parses an address or a network.
fn resolver(text: &str) -> Result<Block, String> {
    let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let network = network.map_err(|_| "expected an address or a network, as in 10.0.0.2/32")?;
    Ok(Block::new(network, []))
}

impl AgentCommand {
    pub(crate) fn run(&self) -> anyhow::Result<Exit> {
        if self.accept_forwarded.is_some() && self.datapath != DatapathKind::Iptables {
            let what =
                format!("--accept-forwarded is not supported with `--datapath {}`", self.datapath);
            let hint = "leave it out: only `--datapath iptables` has it";
            return Err(Failure::new(what, hint).into());
        }
        if self.fast_lane && self.datapath != DatapathKind::Ebpf {
            let what = format!("--fast-lane is not supported with `--datapath {}`", self.datapath);
            return Err(Failure::new(what, "leave it out, or use `--datapath ebpf`").into());
        }
        self.check_denied()?;
        if !self.resolvers.is_empty() && !self.supports_names() {
            let what = format!("--resolver is not supported with `--datapath {}`", self.datapath);
            let hint = "leave it out, or use `--datapath nftables`, `iptables` or `ebpf`: only these support domain names";
            return Err(Failure::new(what, hint).into());
        }
        match self.datapath.profile().agent {
            Some(run) => run(self),
            None => Err(self.no_datapath().into()),
        }
    }

    /// Fails if the datapath cannot answer denied packets.
    fn check_denied(&self) -> Result<(), Failure> {
        let answers = [DatapathKind::Nftables, DatapathKind::Iptables, DatapathKind::Ebpf];
        if self.denied == DeniedArg::Drop {
            if self.reject_to.is_empty() {
                return Ok(());
            }
            let what = "--reject-to needs `--denied reject` or `--denied reject-ingress`";
            return Err(Failure::new(what, "add `--denied reject`, or leave out --reject-to"));
        }
        if !answers.contains(&self.datapath) {
            let what = format!("`--datapath {}` cannot answer denied packets", self.datapath);
            let hint = "leave out --denied, or use `--datapath nftables`, `iptables` or `ebpf`";
            return Err(Failure::new(what, hint));
        }
        Ok(())
    }

    /// Whether the datapath supports rules about domain names.
    fn supports_names(&self) -> bool {
        use DatapathKind::{Ebpf, Iptables, Nftables};
        matches!(self.datapath, Nftables | Iptables | Ebpf)
    }

    /// The error for a datapath that does not run on this system.
    fn no_datapath(&self) -> Failure {
        let runs = |kind: &&DatapathKind| kind.profile().agent.is_some();
        let kinds = DatapathKind::value_variants().iter().filter(runs);
        let flags: Vec<String> = kinds.map(|kind| format!("`--datapath {kind}`")).collect();
        let what = format!("the agent cannot run `{}` on {}", self.datapath, env::consts::OS);
        Failure::new(what, format!("use {}", flags.join(" or ")))
    }

    /// Runs the agent, applies the rules once, or removes them.
    pub(crate) fn run_datapath(
        &self,
        options: &AgentOptions,
        datapath: impl Datapath,
        reports: MachineReports,
    ) -> anyhow::Result<Exit> {
        if self.cleanup {
            let surroundings = options.surroundings.as_deref();
            weir_agent::cleanup(datapath, surroundings, self.cni_socket.as_deref())
                .map_err(failed)?;
            tracing::info!("removed all rules of weir");
            return Ok(Exit::Yes);
        }
        if self.once {
            let reasons = weir_agent::once(options, datapath).map_err(failed)?;
            for reason in &reasons {
                tracing::warn!("{reason}");
            }
            return Ok(Exit::when(reasons.is_empty()));
        }
        weir_agent::run(options, datapath, reports).map_err(failed)?;
        Ok(Exit::Yes)
    }

    /// Keeps the files of opflex-agent up to date.
    pub(crate) fn run_opflex(&self) -> anyhow::Result<Exit> {
        let opflex::NodeOptions { aci, files, netpol_dir, hpp_http } = &self.aci;
        let failed = |error: weir_opflex::OpflexError| {
            let hint = error.hint();
            Failure::new(error, hint)
        };
        if self.audit || self.cni_socket.is_some() {
            let what = "--audit and --cni-socket are not supported with `--datapath opflex`";
            return Err(Failure::new(what, "leave them out, or use another datapath").into());
        }
        self.log.start();
        if self.cleanup {
            let removed = weir_opflex::cleanup(netpol_dir).map_err(failed)?;
            for name in &removed {
                tracing::info!("removed {name}");
            }
            tracing::info!("removed {} files from {}", removed.len(), netpol_dir.display());
            return Ok(Exit::Yes);
        }
        let Source::Kube(access, None) = self.source()? else {
            let what = "`--datapath opflex` needs `--source kube` without relays";
            let hint = "use `--source kube`: the agent reads HostprotPols from the API server";
            return Err(Failure::new(what, hint).into());
        };
        let options = weir_opflex::OpflexOptions {
            access,
            namespace: aci.hpp_namespace.clone(),
            node: self.node.clone().unwrap_or_default(),
            prefix: aci.aci_prefix.clone(),
            space: files.space(&aci.aci_prefix).into(),
            folder: netpol_dir.clone(),
            group_names: files.group_names,
            http: self.http.0,
            metrics: self.metrics.0,
            hpp_http: hpp_http.0,
            retry_policy: RetryPolicy::default(),
        };
        let mode =
            if self.once { weir_opflex::RunMode::Once } else { weir_opflex::RunMode::UntilStopped };
        let reasons = weir_opflex::run(&options, mode).map_err(failed)?;
        Ok(Exit::when(!self.once || reasons.is_empty()))
    }

    /// Whether a last rule in FORWARD accepts packets of pods.
    #[cfg(target_os = "linux")]
    pub(crate) fn accept_forwarded(&self) -> weir_iptables::AcceptForwarded {
        match self.accept_forwarded {
            None | Some(AcceptForwardedArg::Auto) => weir_iptables::AcceptForwarded::Auto,
            Some(AcceptForwardedArg::Always) => weir_iptables::AcceptForwarded::Always,
            Some(AcceptForwardedArg::Never) => weir_iptables::AcceptForwarded::Never,
        }
    }

    /// Whether it removes all rules and exits.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_cleanup(&self) -> bool {
        self.cleanup
    }

    /// Whether packets between pods of the node skip its network stack.
    #[cfg(target_os = "linux")]
    pub(crate) fn has_fast_lane(&self) -> bool {
        self.fast_lane && !self.cleanup
    }

    /// Which senders of denied packets get an answer.
    pub(crate) fn rejection(&self) -> Rejection {
        let directions = match self.denied {
            DeniedArg::Drop => Vec::new(),
            DeniedArg::Reject => Direction::BOTH.into(),
            DeniedArg::RejectEgress => vec![Direction::Egress],
            DeniedArg::RejectIngress => vec![Direction::Ingress],
        };
        Rejection { directions, networks: self.reject_to.clone() }
    }

    /// The treatment of established connections that a change denies.
    pub(crate) fn established(&self) -> Established {
        match self.established {
            EstablishedArg::Keep => Established::Keep,
            EstablishedArg::Cut => Established::Cut,
        }
    }

    /// The options of the agent, with the log started.
    pub(crate) fn options(&self) -> Result<AgentOptions, Failure> {
        let options = AgentOptions {
            source: self.source()?,
            node: self.node.as_deref().unwrap_or_default().into(),
            machine_addresses: platform::MACHINE_ADDRESSES,
            surroundings: None,
            datapath: self.datapath.profile().name,
            mode: if self.audit { Mode::Audit } else { Mode::Enforce },
            rejection: self.rejection(),
            established: self.established(),
            http: self.http.0,
            metrics: self.metrics.0,
            cni: self.cni_socket.clone(),
            report_to: self.report_to.clone(),
            spoofing: self.spoofing.into(),
            encapsulation: self.encapsulation.into(),
            resolvers: self.supports_names().then(|| self.resolvers.clone()),
            flows: (self.flows == FlowsArg::On).then(FlowLimits::default),
            flow_export: FlowExport {
                log: self.flow_log.clone().map(|path| FlowLog {
                    path,
                    max_bytes: self.flow_log_size << 20,
                    older_files: self.flow_log_files,
                }),
                collector: self.flow_otlp.clone(),
            },
            metrics_collector: self.metrics_otlp.clone(),
            budget: self.budget.into(),
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
            // Fail now if a kubeconfig is unusable. Later, an unreadable file may be one that is
            // being replaced.
            if let Err(error @ (ApiError::Kubeconfig { .. } | ApiError::NoKubeconfig)) =
                access.check()
            {
                let hint = error.hint();
                return Err(Failure::new(error, hint));
            }
            let relays = self.relay.options(self.node.as_deref().unwrap_or_default());
            return Ok(Source::Kube(access, relays));
        }
        if self.relay.is_used() {
            let what = "--relay needs `--source kube`, but the source is a folder";
            return Err(Failure::new(what, "leave out --relay, or use `--source kube`"));
        }
        if self.kubeconfig.is_some() || self.context.is_some() {
            let what =
                "--kubeconfig and --context need `--source kube`, but the source is a folder";
            let hint = "use `--source kube` for a cluster; write `./kube` for a folder named kube";
            return Err(Failure::new(what, hint));
        }
        if source.is_file() {
            let what = format!("--source {} is a file; expected a folder", source.display());
            return Err(Failure::new(what, "name the folder that contains the file"));
        }
        Ok(Source::Folder(source.into()))
    }
}

fn failed(error: AgentError) -> Failure {
    let hint = error.hint();
    Failure::new(error, hint)
}
