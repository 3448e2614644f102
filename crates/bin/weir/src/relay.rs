use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, builder::NonEmptyStringValueParser};
use weir_kube::{Access, RelayOptions, RelayTimes, RetryPolicy};
use weir_relay::{CertificateFiles, RelayProcess};

use crate::{
    exit::Exit,
    failure::Failure,
    listen::{self, Http},
    log::LogArgs,
};

/// The token of an agent for relays, as the chart mounts it.
const TOKEN: &str = "/var/run/secrets/weir-relay/token";

/// Follow the API server for hundreds of agents
///
/// A relay follows the API server once, and sends each agent the objects that rules of its node can
/// name, reduced to the fields that agents read. It keeps nothing, so any number of relays can run,
/// and an agent uses any of them (`weir agent --relay`).
///
/// Agents show a token of their service account for the audience `weir-relay`. The relay asks the API
/// server whether it is valid. SIGTERM stops the relay; its agents go on with another one, or with the
/// API server.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir relay --tls-cert tls.crt --tls-key tls.key\n  weir relay --tls-cert tls.crt --tls-key tls.key --agent-account network/weir-agent\n\nHTTP: /healthz /readyz /metrics"
)]
pub(crate) struct RelayCommand {
    /// The certificate to serve agents with, as PEM; read again when it changes
    #[arg(long, value_name = "PATH")]
    tls_cert: PathBuf,
    /// The key of the certificate, as PEM
    #[arg(long, value_name = "PATH")]
    tls_key: PathBuf,
    /// The service account of the agents
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "weir-system/weir-agent", value_parser = account)]
    agent_account: String,
    /// The address to serve agents on
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9643")]
    listen: SocketAddr,
    /// The address to serve HTTP on, or `off`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9642", value_parser = listen::http)]
    http: Http,
    /// The kubeconfig of the cluster [default: KUBECONFIG, ~/.kube/config, or the service account
    /// of the pod]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    #[command(flatten)]
    log: LogArgs,
}

fn account(text: &str) -> Result<String, String> {
    let is_part = |part: &str| !part.is_empty() && !part.contains([':', '/']);
    match text.split_once('/') {
        Some((namespace, name)) if is_part(namespace) && is_part(name) => Ok(text.into()),
        _ => Err("expected a namespace and a name, as in weir-system/weir-agent".into()),
    }
}

impl RelayCommand {
    pub(crate) fn run(&self) -> anyhow::Result<Exit> {
        self.log.start();
        let options = RelayProcess {
            access: Access::new(self.kubeconfig.as_deref(), self.context.as_deref()),
            retry_policy: RetryPolicy::default(),
            listen: self.listen,
            certificate: CertificateFiles {
                certificate: self.tls_cert.clone(),
                key: self.tls_key.clone(),
            },
            agent_account: self.agent_account.clone(),
            http: self.http.0,
        };
        weir_relay::run(&options).map_err(|error| {
            let hint = error.hint();
            Failure::new(error, hint)
        })?;
        Ok(Exit::Yes)
    }
}

/// The relays of an agent.
#[derive(Args)]
pub(crate) struct RelayArgs {
    /// A relay that follows the cluster for this agent, with `--source kube`; repeatable. While none
    /// works, the agent follows the API server itself [default: none]
    #[arg(long = "relay", value_name = "https://HOST:PORT", value_parser = url)]
    relays: Vec<String>,
    /// The certificate authority of the relays, as PEM [default: those of the system]
    #[arg(long, value_name = "PATH", requires = "relays")]
    relay_ca: Option<PathBuf>,
    /// The token that the agent shows to relays: of its service account, for the audience weir-relay
    #[arg(long, value_name = "PATH", default_value = TOKEN, value_parser = NonEmptyStringValueParser::new())]
    relay_token: String,
}

fn url(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").map(|rest| rest.trim_end_matches('/'));
    match host {
        Some(host) if !host.is_empty() && !host.contains(['/', '?', '#', '@']) => {
            Ok(format!("https://{host}"))
        }
        _ => Err("expected https:// and a host, as in https://weir-relay.weir-system:9643".into()),
    }
}

impl RelayArgs {
    pub(crate) fn is_used(&self) -> bool {
        !self.relays.is_empty()
    }

    /// The relays, if there are any.
    pub(crate) fn options(&self, node: &str) -> Option<RelayOptions> {
        let relays = self.relays.iter().map(|url| {
            let access = Access::direct(url, self.relay_token.as_ref(), self.relay_ca.as_deref());
            (url.clone(), access)
        });
        let relays: Vec<(String, Access)> = relays.collect();
        let times = RelayTimes::default();
        (!relays.is_empty()).then(|| RelayOptions { node: node.into(), relays, times })
    }
}
