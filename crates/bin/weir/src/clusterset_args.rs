//! How the controller `clusterset` is to be, as typed.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use clap::Args;
use ipnet::IpNet;
use weir_clusterset::Merging;
use weir_controllers::clusterset::Settings;
use weir_kube::Access;
use weir_model::Name;

use crate::{failure::Failure, source};

/// The longest times that make sense, in seconds.
const YEAR: u64 = 365 * 24 * 3600;

/// How the controller `clusterset` is to be.
#[derive(Args)]
#[command(next_help_heading = "Controller clusterset")]
pub(crate) struct ClusterSetArgs {
    /// The id of this cluster, which no other of the set has: a DNS label
    #[arg(long, value_name = "ID")]
    cluster_id: Option<String>,
    /// A network that the pods of this cluster are in; addresses outside of them are refused by the others [repeatable]
    #[arg(long, value_name = "CIDR", value_parser = network)]
    pod_cidr: Vec<IpNet>,
    /// A network that the pods of another cluster may be in, whatever that says; once one is given, clusters without any are not believed [repeatable]
    #[arg(long, value_name = "ID=CIDR", value_parser = member_cidr)]
    member_cidr: Vec<(Name, IpNet)>,
    /// How many pods of another cluster are taken
    #[arg(long, value_name = "COUNT", default_value = "50000", value_parser = clap::value_parser!(u32).range(1..))]
    member_pods: u32,
    /// How many namespaces of another cluster are taken
    #[arg(long, value_name = "COUNT", default_value = "10000", value_parser = clap::value_parser!(u32).range(1..))]
    member_namespaces: u32,
    /// The kubeconfig of the broker
    #[arg(long, value_name = "PATH")]
    broker_kubeconfig: Option<PathBuf>,
    /// The context of that kubeconfig
    #[arg(long, value_name = "NAME", requires = "broker_kubeconfig")]
    broker_context: Option<String>,
    /// The address of the broker's API server, without a kubeconfig
    #[arg(
        long,
        value_name = "URL",
        requires = "broker_token_file",
        conflicts_with = "broker_kubeconfig"
    )]
    broker_url: Option<String>,
    /// The file with the token for it
    #[arg(long, value_name = "PATH", requires = "broker_url")]
    broker_token_file: Option<PathBuf>,
    /// The file with the certificates to trust there [default: those of the machine]
    #[arg(long, value_name = "PATH", requires = "broker_url")]
    broker_ca_file: Option<PathBuf>,
    /// The namespace of the set on the broker
    #[arg(long, value_name = "NAME", default_value = "submariner-k8s-broker")]
    broker_namespace: String,
    /// How often this cluster gives a sign of life
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=YEAR))]
    cluster_renewal: u64,
    /// After how long without a sign of life a cluster is gone, and its addresses with it
    #[arg(long, value_name = "SECONDS", default_value = "86400", value_parser = clap::value_parser!(u64).range(3..=YEAR))]
    cluster_expiry: u64,
    /// How many peers a NetworkPolicy may have
    #[arg(long, value_name = "COUNT", default_value = "500", value_parser = clap::value_parser!(u16).range(10..=5000))]
    shard_size: u16,
    /// Write networks where all of their addresses are allowed
    #[arg(long)]
    merge_cidrs: bool,
}

impl ClusterSetArgs {
    /// The same, as meant.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        let missing = |what: &str, hint: &str| {
            Failure::new(format!("controller clusterset needs {what}"), hint.to_owned())
        };
        let id = self
            .cluster_id
            .as_deref()
            .ok_or_else(|| missing("the id of this cluster", "give it with `--cluster-id ID`"))?;
        if !crate::clusters::is_label(id) {
            let hint = "use up to 63 of a-z, 0-9 and `-`, which is neither first nor last";
            return Err(Failure::new(format!("{id:?} is no id of a cluster"), hint).into());
        }
        if self.pod_cidr.is_empty() {
            let hint =
                "give them with `--pod-cidr CIDR`: others believe no address outside of them";
            return Err(missing("the networks of this cluster's pods", hint).into());
        }
        if let Some((itself, _)) = self.member_cidr.iter().find(|(member, _)| **member == *id) {
            let hint =
                "--member-cidr is for the other clusters; its own networks are in --pod-cidr";
            return Err(Failure::new(format!("{itself} is this cluster itself"), hint).into());
        }
        let broker = match (&self.broker_kubeconfig, &self.broker_url, &self.broker_token_file) {
            (Some(path), _, _) => Access::new(Some(path), self.broker_context.as_deref()),
            (None, Some(url), Some(_)) if !url.starts_with("https://") => {
                let hint = "give a URL that begins with `https://`: the token would be sent for anybody to read";
                return Err(Failure::new(format!("{url} is no address of a broker"), hint).into());
            }
            (None, Some(url), Some(token)) => {
                Access::direct(url, token, self.broker_ca_file.as_deref())
            }
            _ => {
                let hint = "give it with `--broker-kubeconfig PATH`, or `--broker-url URL --broker-token-file PATH --broker-ca-file PATH`";
                return Err(missing("the broker", hint).into());
            }
        };
        let (renewal, expiry) =
            (Duration::from_secs(self.cluster_renewal), Duration::from_secs(self.cluster_expiry));
        if expiry < renewal * 3 {
            let hint = "let --cluster-expiry be at least three times --cluster-renewal";
            return Err(Failure::new("clusters would be gone before they are late", hint).into());
        }
        self.check_files()?;
        Ok(Settings {
            cluster: id.into(),
            networks: self.pod_cidr.clone(),
            broker,
            namespace: self.broker_namespace.clone(),
            renewal,
            expiry,
            accepted: self.accepted(),
            pods: self.member_pods as usize,
            namespaces: self.member_namespaces as usize,
            shard: self.shard_size.into(),
            merging: if self.merge_cidrs { Merging::Exact } else { Merging::None },
        })
    }

    /// Fails for files that are not there, or that hold nothing of the kind: they were never right.
    fn check_files(&self) -> anyhow::Result<()> {
        for (path, what, mark) in [
            (&self.broker_token_file, "a token", ""),
            (&self.broker_ca_file, "certificates in PEM", "-----BEGIN CERTIFICATE-----"),
        ] {
            let Some(path) = path else { continue };
            let text = source::read(path)?;
            let text = String::from_utf8_lossy(&text);
            if text.trim().is_empty() || !text.contains(mark) {
                let what = format!("{} does not hold {what}", path.display());
                return Err(Failure::new(what, "write what the broker gave you into it").into());
            }
        }
        Ok(())
    }

    /// The networks that are accepted, by cluster.
    fn accepted(&self) -> BTreeMap<Name, Vec<IpNet>> {
        let mut accepted: BTreeMap<Name, Vec<IpNet>> = BTreeMap::new();
        for (cluster, network) in &self.member_cidr {
            accepted.entry(cluster.clone()).or_default().push(*network);
        }
        accepted
    }
}

/// Reads a network that pods are in.
fn network(text: &str) -> Result<IpNet, String> {
    match text.parse::<IpNet>() {
        Ok(all) if all.prefix_len() == 0 => {
            Err(format!("{all} is everywhere, and no other cluster believes one that is"))
        }
        Ok(network) => Ok(network),
        Err(_) => Err("expected a network, as in 10.1.0.0/16".into()),
    }
}

/// Reads `ID=CIDR`.
fn member_cidr(text: &str) -> Result<(Name, IpNet), String> {
    let (id, network) = text.split_once('=').ok_or("write it as ID=CIDR, like west=10.2.0.0/16")?;
    if !crate::clusters::is_label(id) {
        return Err(format!("{id:?} is no id of a cluster"));
    }
    let network = network.parse::<IpNet>().map_err(|_| format!("{network:?} is no network"))?;
    Ok((id.into(), network.trunc()))
}
