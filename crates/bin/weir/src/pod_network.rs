//! The networks of the pods, on the command line.

use clap::Args;
use ipnet::IpNet;
pub(crate) use weir_view::pod_cidrs::PodCidrs;

/// The networks of the pods.
#[derive(Args, Clone)]
pub(crate) struct PodNetworkArgs {
    /// The network of the pods. Pods without an address get a synthetic one in it [one for each IP
    /// family] [default: 10.128.0.0/9]
    #[arg(long = "pod-cidr", value_name = "CIDR", value_parser = network)]
    pod_networks: Vec<IpNet>,
}

impl PodNetworkArgs {
    /// The given networks.
    pub(crate) fn cidrs(&self) -> PodCidrs<'_> {
        PodCidrs(&self.pod_networks)
    }
}

fn network(text: &str) -> Result<IpNet, String> {
    let network: IpNet =
        text.parse().map_err(|_| "expected a network such as 10.244.0.0/16".to_owned())?;
    if network != network.trunc() {
        return Err(format!("it has host bits set; did you mean {}?", network.trunc()));
    }
    Ok(network)
}
