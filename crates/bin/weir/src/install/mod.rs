//! `weir install`, `upgrade` and `uninstall`: the chart's manifests, applied with the user's rights.
//!
//! ```text
//!  deploy/*.yaml (rendered from the chart) ─► Manifests ─► server-side apply ─► rollout ─► nodes
//! ```

mod breakage;
mod manifests;
mod node_check;
pub(crate) mod nodes;
mod preflight;
mod rollout;
mod uninstall;

use std::{io::Write, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use manifests::{AGENT, Installed, Settings};
use serde_json::Value;
use weir_kube::{Access, AdminClient, ApiError};

pub(crate) use self::uninstall::UninstallCommand;
use crate::{exit::Exit, failure::Failure};

/// The cluster, and the namespace of the agents.
#[derive(Args)]
pub(crate) struct TargetArgs {
    /// The kubeconfig of the cluster
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The namespace of the agents
    #[arg(short, long, value_name = "NAME", default_value = "weir-system")]
    pub(crate) namespace: String,
}

impl TargetArgs {
    /// The access to the cluster.
    pub(crate) fn access(&self) -> Access {
        Access::new(self.kubeconfig.as_deref(), self.context.as_deref())
    }

    /// Whether the arguments name a cluster.
    pub(crate) fn names_cluster(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    pub(crate) fn client(&self) -> anyhow::Result<AdminClient> {
        Ok(AdminClient::new(self.access())?)
    }
}

/// How long to wait for all nodes.
#[derive(Args)]
struct WaitArgs {
    /// The time to wait for all nodes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
}

impl WaitArgs {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// The datapaths that `weir install` can set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InstallDatapath {
    /// nftables
    Nftables,
    /// iptables and ipset in the layout of kube-router
    Iptables,
}

impl InstallDatapath {
    /// The value of `--datapath`.
    fn name(self) -> &'static str {
        match self {
            InstallDatapath::Nftables => "nftables",
            InstallDatapath::Iptables => "iptables",
        }
    }
}

/// Settings of the agents.
#[derive(Args)]
struct SettingsArgs {
    /// The image of the agents
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// The datapath
    #[arg(long, value_enum)]
    datapath: Option<InstallDatapath>,
    /// Report packets that policies deny, but drop none
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    audit: Option<bool>,
    /// Start pods only when their policies are in force, with the CNI plugin; on
    /// unless it is turned off
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    cni: Option<bool>,
}

/// Install the agents in a cluster
///
/// Applies the manifests that the chart renders, without Helm, with the rights of the kubeconfig.
/// First it runs `weir check` on every Linux node and prints missing features of the kernel, wrong
/// settings of bridges, and rules of other policy engines that still filter packets. With --audit it
/// also lists the connections that the policies of the cluster deny, and errors in policies. Then it
/// waits for all nodes and shows them as `kubectl weir status` does. Exit status 1 if a node is not
/// ready.
///
/// Use the chart for other settings, controllers, Windows nodes and opflex.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weir install --audit --image registry.example/weir:0.1.0\n  weir upgrade --audit=false"
)]
pub(crate) struct InstallCommand {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Upgrade the agents of a cluster to the version of this program
///
/// Keeps the settings of `weir install` unless an option changes them. Without --image it keeps the
/// repository of the image and uses the tag of this version. Rules stay in force while an agent is
/// replaced.
#[derive(Args)]
#[command(after_help = "Example:\n  weir upgrade --audit=false")]
pub(crate) struct UpgradeCommand {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

impl InstallCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let client = self.target.client()?;
        let namespace = &self.target.namespace;
        if Installed::find(&client, namespace).map_err(explain)?.is_some() {
            let what = format!("weir is installed in namespace {namespace} already");
            return Err(Failure::new(what, "use `weir upgrade`").into());
        }
        let settings = Settings::default().with(&self.settings);
        preflight::check(&client, out)?;
        if settings.audit {
            breakage::write(&self.target.access(), out)?;
        }
        out.flush()?;
        apply(&client, namespace, &manifests::namespace(namespace))?;
        node_check::run(&client, namespace, &settings, self.wait.timeout(), out)?;
        roll_out(&client, namespace, &settings, &self.wait, out)
    }
}

impl UpgradeCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let client = self.target.client()?;
        let namespace = &self.target.namespace;
        let installed = Installed::find(&client, namespace).map_err(explain)?;
        let installed = installed.ok_or_else(|| not_installed(namespace))?;
        let settings = installed.settings()?.with(&self.settings);
        preflight::check(&client, out)?;
        roll_out(&client, namespace, &settings, &self.wait, out)
    }
}

/// Applies the manifests, waits for all nodes and shows them.
fn roll_out(
    client: &AdminClient,
    namespace: &str,
    settings: &Settings,
    wait: &WaitArgs,
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    for object in manifests::agent(namespace, settings)? {
        apply(client, namespace, &object)?;
    }
    writeln!(out, "applied {AGENT} in namespace {namespace}, image {}", settings.image)?;
    out.flush()?;
    let is_complete = rollout::wait(client, namespace, AGENT, wait.timeout()).map_err(explain)?;
    let nodes = nodes::read(client, namespace).map_err(explain)?;
    nodes::write(out, &nodes)?;
    Ok(Exit::when(is_complete && nodes.iter().all(nodes::NodeState::is_ready)))
}

/// Applies an object. The namespace of other programs stays as it is, and `weir uninstall` keeps it.
fn apply(client: &AdminClient, namespace: &str, object: &Value) -> Result<(), Failure> {
    let is_foreign = object["kind"] == "Namespace" && {
        let found = client.get(&format!("/api/v1/namespaces/{namespace}")).map_err(explain)?;
        found.is_some_and(|found| !manifests::is_ours(&found))
    };
    if is_foreign { Ok(()) } else { client.apply(object).map_err(explain) }
}

/// The error if weir is not in the namespace.
fn not_installed(namespace: &str) -> Failure {
    let what = format!("weir is not installed in namespace {namespace}");
    Failure::new(what, "name its namespace with -n, or use `weir install`")
}

/// An error of the API server with a hint.
pub(crate) fn explain(error: ApiError) -> Failure {
    let hint = match &error {
        ApiError::Refused { code: 409, .. } => {
            "another program manages these fields: change weir with that program, for example \
             `helm upgrade`"
                .to_owned()
        }
        error => error.hint(),
    };
    Failure::new(error, hint)
}
