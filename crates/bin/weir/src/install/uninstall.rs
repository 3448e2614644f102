use std::io::Write;

use clap::Args;
use serde_json::Value;
use weir_kube::AdminClient;

use super::{
    TargetArgs, WaitArgs, explain,
    manifests::{self, AGENT, CLEANUP, Installed, Settings},
    not_installed, rollout,
};
use crate::{exit::Exit, failure::Failure};

/// Remove the agents, their rules and the CNI plugin from a cluster
///
/// Deletes the agents, runs a cleanup on every Linux node, and then deletes everything that `weir
/// install` created. A node that is down is cleaned up when it returns, so the command waits for it.
/// If the time is over, the cleanup stays: run the command again.
#[derive(Args)]
#[command(after_help = "Example:\n  weir uninstall")]
pub(crate) struct UninstallCommand {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

impl UninstallCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let client = self.target.client()?;
        let namespace = &self.target.namespace;
        let settings = match Installed::find(&client, namespace).map_err(explain)? {
            Some(installed) => installed.settings()?,
            None => interrupted(&client, namespace)?,
        };
        let objects = manifests::agent(namespace, &settings)?;
        let (agents, others): (Vec<Value>, Vec<Value>) =
            objects.into_iter().partition(|object| object["kind"] == "DaemonSet");
        let timeout = self.wait.timeout();
        for object in &agents {
            client.delete(object).map_err(explain)?;
        }
        if !rollout::wait_until_gone(&client, namespace, AGENT, timeout).map_err(explain)? {
            return Err(waiting("the agents to stop").into());
        }
        writeln!(out, "deleted {AGENT}")?;
        out.flush()?;
        let cleanup = manifests::cleanup(namespace, &settings)?;
        for object in &cleanup {
            client.apply(object).map_err(explain)?;
        }
        if !rollout::wait(&client, namespace, CLEANUP, timeout).map_err(explain)? {
            return Err(waiting("the cleanup of all nodes").into());
        }
        writeln!(out, "removed the rules and the CNI plugin from all Linux nodes")?;
        for object in cleanup.iter().chain(others.iter().rev()) {
            if object["kind"] == "Namespace" && !is_removable(&client, namespace)? {
                writeln!(out, "kept namespace {namespace}, which `weir install` did not create")?;
                continue;
            }
            client.delete(object).map_err(explain)?;
        }
        writeln!(out, "deleted everything that `weir install` created")?;
        Ok(Exit::Yes)
    }
}

/// The settings of an uninstallation that did not finish.
fn interrupted(client: &AdminClient, namespace: &str) -> anyhow::Result<Settings> {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{CLEANUP}");
    let set = client.get(&path).map_err(explain)?.ok_or_else(|| not_installed(namespace))?;
    let containers = &set["spec"]["template"]["spec"]["initContainers"];
    let rules = containers.as_array().into_iter().flatten().find(|one| one["name"] == "rules");
    let rules = rules.ok_or_else(|| not_installed(namespace))?;
    let is_iptables = rules["args"].to_string().contains("--datapath=iptables");
    let mut settings = Settings::default();
    if is_iptables {
        settings.datapath = super::InstallDatapath::Iptables;
    }
    settings.image = rules["image"].as_str().unwrap_or_default().to_owned();
    Ok(settings)
}

/// Whether `weir install` created the namespace.
fn is_removable(client: &AdminClient, namespace: &str) -> anyhow::Result<bool> {
    let found = client.get(&format!("/api/v1/namespaces/{namespace}")).map_err(explain)?;
    Ok(found.is_some_and(|found| manifests::is_ours(&found)))
}

fn waiting(what: &str) -> Failure {
    let hint = "look at the pods of the namespace, then run the command again";
    Failure::new(format!("timed out waiting for {what}"), hint)
}
