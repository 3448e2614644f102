//! The flags of the controller `clusterset`.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use clap::Args;
use ipnet::IpNet;
use weir_clusterset::{Merging, NetworkLimits};
use weir_controllers::clusterset::{ClusterSetSettings, Departure};
use weir_kube::Access;
use weir_model::{Name, Selector};

use crate::{failure::Failure, label_selector, source};

/// The upper limit of intervals, in seconds.
const YEAR: u64 = 365 * 24 * 3600;

/// The flags of the controller `clusterset`.
#[derive(Args)]
#[command(next_help_heading = "Controller clusterset")]
pub(crate) struct ClusterSetArgs {
    /// The id of this cluster, unique in the ClusterSet: a DNS label
    #[arg(long, value_name = "ID")]
    cluster_id: Option<String>,
    /// A network of this cluster's pods; other clusters reject pod IPs outside of these networks
    /// [repeatable]
    #[arg(long, value_name = "CIDR", value_parser = network)]
    pod_cidr: Vec<IpNet>,
    /// Trust pod IPs of cluster ID only inside CIDR; once given, clusters without an entry are
    /// ignored [repeatable]
    #[arg(long, value_name = "ID=CIDR", value_parser = member_cidr)]
    member_cidr: Vec<(Name, IpNet)>,
    /// The most IPv4 addresses that the pod networks of another cluster may have: those of a
    /// network with this prefix
    #[arg(long, value_name = "BITS", default_value = "8", value_parser = clap::value_parser!(u8).range(..=32))]
    member_prefix_v4: u8,
    /// The same for IPv6
    #[arg(long, value_name = "BITS", default_value = "16", value_parser = clap::value_parser!(u8).range(..=128))]
    member_prefix_v6: u8,
    /// Publish only pods of namespaces with these labels, in the syntax of `kubectl -l`; empty for
    /// all namespaces
    #[arg(long, value_name = "SELECTOR", default_value = "kubernetes.io/metadata.name notin (kube-system)", value_parser = label_selector::parse)]
    publish_namespaces: Selector,
    /// The maximum number of pods to accept from another cluster
    #[arg(long, value_name = "COUNT", default_value = "50000", value_parser = clap::value_parser!(u32).range(1..))]
    member_pods: u32,
    /// The maximum number of namespaces to accept from another cluster
    #[arg(long, value_name = "COUNT", default_value = "10000", value_parser = clap::value_parser!(u32).range(1..))]
    member_namespaces: u32,
    /// The kubeconfig of the broker
    #[arg(long, value_name = "PATH")]
    broker_kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig of the broker
    #[arg(long, value_name = "NAME", requires = "broker_kubeconfig")]
    broker_context: Option<String>,
    /// The URL of the broker's API server, instead of a kubeconfig
    #[arg(
        long,
        value_name = "URL",
        requires = "broker_token_file",
        conflicts_with = "broker_kubeconfig"
    )]
    broker_url: Option<String>,
    /// The file with the token for the broker
    #[arg(long, value_name = "PATH", requires = "broker_url")]
    broker_token_file: Option<PathBuf>,
    /// The file with the CA certificates of the broker, as PEM [default: those of the machine]
    #[arg(long, value_name = "PATH", requires = "broker_url")]
    broker_ca_file: Option<PathBuf>,
    /// The namespace of the ClusterSet on the broker
    #[arg(long, value_name = "NAME", default_value = "submariner-k8s-broker")]
    broker_namespace: String,
    /// The interval at which this cluster renews its heartbeat
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=YEAR))]
    cluster_renewal: u64,
    /// The time without a heartbeat after which a cluster and its addresses are removed
    #[arg(long, value_name = "SECONDS", default_value = "86400", value_parser = clap::value_parser!(u64).range(3..=YEAR))]
    cluster_expiry: u64,
    /// The maximum number of peers in one NetworkPolicy
    #[arg(long, value_name = "COUNT", default_value = "500", value_parser = clap::value_parser!(u16).range(10..=5000))]
    shard_size: u16,
    /// Write a CIDR instead of single addresses where all of its addresses are allowed
    #[arg(long)]
    merge_cidrs: bool,
}

impl ClusterSetArgs {
    /// Checks the flags and converts them to settings.
    pub(crate) fn settings(&self) -> anyhow::Result<ClusterSetSettings> {
        let id = self.id()?;
        if self.pod_cidr.is_empty() {
            let hint =
                "set them with `--pod-cidr CIDR`: other clusters reject addresses outside of them";
            return Err(missing("the networks of this cluster's pods", hint).into());
        }
        let network_limits = NetworkLimits {
            ipv4_prefix: self.member_prefix_v4,
            ipv6_prefix: self.member_prefix_v6,
        };
        if let Err(error) = network_limits.check(&self.pod_cidr) {
            let hint = "other clusters would reject this one; declare smaller networks, or set \
                        --member-prefix-v4 or --member-prefix-v6 in all clusters";
            return Err(Failure::new(format!("--pod-cidr: {error}"), hint).into());
        }
        if let Some((itself, _)) = self.member_cidr.iter().find(|(member, _)| **member == *id) {
            let hint =
                "use --member-cidr for other clusters; --pod-cidr sets the networks of this one";
            return Err(
                Failure::new(format!("--member-cidr names this cluster, {itself}"), hint).into()
            );
        }
        let broker = self.broker()?;
        let (renewal, expiry) =
            (Duration::from_secs(self.cluster_renewal), Duration::from_secs(self.cluster_expiry));
        if expiry < renewal * 3 {
            let what = "--cluster-expiry must be at least 3 × --cluster-renewal";
            let hint = "raise --cluster-expiry, or lower --cluster-renewal";
            return Err(Failure::new(what, hint).into());
        }
        self.check_files()?;
        Ok(ClusterSetSettings {
            cluster: id.into(),
            networks: self.pod_cidr.clone(),
            broker,
            namespace: self.broker_namespace.clone(),
            renewal,
            expiry,
            accepted: self.accepted(),
            network_limits,
            publishable: self.publish_namespaces.clone(),
            pods: self.member_pods as usize,
            namespaces: self.member_namespaces as usize,
            shard: self.shard_size.into(),
            merging: if self.merge_cidrs { Merging::Exact } else { Merging::None },
        })
    }

    /// The id of this cluster.
    fn id(&self) -> Result<&str, Failure> {
        let id = self
            .cluster_id
            .as_deref()
            .ok_or_else(|| missing("the id of this cluster", "set it with `--cluster-id ID`"))?;
        if !crate::clusters::is_label(id) {
            let hint = "use up to 63 characters of a-z, 0-9 and `-`, and no `-` at either end";
            return Err(Failure::new(format!("{id:?} is not a valid cluster id"), hint));
        }
        Ok(id)
    }

    /// The API server of the broker.
    fn broker(&self) -> Result<Access, Failure> {
        match (&self.broker_kubeconfig, &self.broker_url, &self.broker_token_file) {
            (Some(path), _, _) => Ok(Access::new(Some(path), self.broker_context.as_deref())),
            (None, Some(url), Some(_)) if !url.starts_with("https://") => {
                let hint = "give a URL that starts with `https://`: without TLS the token would be readable on the network";
                Err(Failure::new(format!("{url} is not an HTTPS URL"), hint))
            }
            (None, Some(url), Some(token)) => {
                Ok(Access::direct(url, token, self.broker_ca_file.as_deref()))
            }
            _ => {
                let hint = "set it with `--broker-kubeconfig PATH`, or `--broker-url URL --broker-token-file PATH --broker-ca-file PATH`";
                Err(missing("the broker", hint))
            }
        }
    }

    /// Checks the flags for leaving the set.
    pub(crate) fn departure(&self, access: Access) -> anyhow::Result<Departure> {
        let (cluster, broker) = (self.id()?.to_owned(), self.broker()?);
        self.check_files()?;
        Ok(Departure { cluster, access, broker, namespace: self.broker_namespace.clone() })
    }

    /// Fails for a token or CA file that is missing, empty or of the wrong kind.
    fn check_files(&self) -> anyhow::Result<()> {
        for (path, what, mark) in [
            (&self.broker_token_file, "a token", ""),
            (&self.broker_ca_file, "certificates in PEM", "-----BEGIN CERTIFICATE-----"),
        ] {
            let Some(path) = path else { continue };
            let text = source::read_file(path)?;
            let text = String::from_utf8_lossy(&text);
            if text.trim().is_empty() || !text.contains(mark) {
                let what = format!("{} does not contain {what}", path.display());
                return Err(Failure::new(what, "write the data from the broker into it").into());
            }
        }
        Ok(())
    }

    /// The accepted networks, by cluster.
    fn accepted(&self) -> BTreeMap<Name, Vec<IpNet>> {
        let mut accepted: BTreeMap<Name, Vec<IpNet>> = BTreeMap::new();
        for (cluster, network) in &self.member_cidr {
            accepted.entry(cluster.clone()).or_default().push(*network);
        }
        accepted
    }
}

/// The error for a missing setting.
fn missing(what: &str, hint: &str) -> Failure {
    Failure::new(format!("controller clusterset needs {what}"), hint.to_owned())
}

/// Parses a network of pods.
fn network(text: &str) -> Result<IpNet, String> {
    text.parse::<IpNet>().map_err(|_| "expected a network such as 10.1.0.0/16".into())
}

/// Parses `ID=CIDR`.
fn member_cidr(text: &str) -> Result<(Name, IpNet), String> {
    let (id, network) = text.split_once('=').ok_or("expected ID=CIDR, such as west=10.2.0.0/16")?;
    if !crate::clusters::is_label(id) {
        return Err(format!("{id:?} is not a valid cluster id"));
    }
    let network = network.parse::<IpNet>().map_err(|_| format!("{network:?} is not a network"))?;
    Ok((id.into(), network.trunc()))
}
