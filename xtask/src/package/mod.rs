//! `cargo xtask package`: the chart is the one place where packaging is written down; what can be had without Helm is rendered from it.
//!
//! ```text
//!  weir crds ──► charts/weir ──helm template──► deploy/*.yaml
//! ```

#[cfg(test)]
mod chart;
#[cfg(test)]
mod images;
#[cfg(test)]
mod live;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod rights;

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{
    shell::{self, root},
    tools::HELM,
};

/// Where the chart is.
const CHART: &str = "charts/weir";
/// The namespace of everything that is rendered. It must allow what agents need of their nodes, where a cluster restricts pods.
const NAMESPACE: &str = "weir-system";

/// A file of deploy/, as the chart gives it.
struct Manifest {
    file: &'static str,
    release: &'static str,
    /// Values that are not the default.
    values: &'static [&'static str],
    what: &'static str,
}

const MANIFESTS: &[Manifest] = &[
    Manifest {
        file: "agent.yaml",
        release: "weir",
        values: &[],
        what: "the agent on every Linux node, with nftables",
    },
    Manifest {
        file: "agent-cni.yaml",
        release: "weir",
        values: &["agent.cni.enabled=true"],
        what: "the agent on every Linux node, with nftables, and the CNI plugin",
    },
    Manifest {
        file: "agent-iptables.yaml",
        release: "weir",
        values: &["agent.datapath=iptables"],
        what: "the agent on every Linux node, with iptables and ipset",
    },
    Manifest {
        file: "agent-opflex.yaml",
        release: "weir",
        values: &["agent.datapath=opflex"],
        what: "the agent on every Linux node, for Cisco's opflex-agent",
    },
    Manifest {
        file: "cleanup.yaml",
        release: "weir",
        values: &["cleanup.enabled=true"],
        what: "removes everything of weir's from the nodes, after agents with nftables",
    },
    Manifest {
        file: "cleanup-iptables.yaml",
        release: "weir",
        values: &["cleanup.enabled=true", "agent.datapath=iptables"],
        what: "removes everything of weir's from the nodes, after agents with iptables",
    },
    Manifest {
        file: "cleanup-opflex.yaml",
        release: "weir",
        values: &["cleanup.enabled=true", "agent.datapath=opflex"],
        what: "removes everything of weir's from the nodes, after agents for opflex-agent",
    },
    Manifest {
        file: "windows.yaml",
        release: "weir",
        values: &["agent.enabled=false", "windows.enabled=true"],
        what: "the agent on every Windows node",
    },
    Manifest {
        file: "windows-cleanup.yaml",
        release: "weir",
        values: &["agent.enabled=false", "windows.enabled=true", "cleanup.enabled=true"],
        what: "removes everything of weir's from Windows nodes",
    },
    // These have one name and one lease: a cluster has one of them. For several controllers, or other values, there is the chart.
    Manifest {
        file: "controller-clusterset.yaml",
        release: "weir",
        values: &[
            "agent.enabled=false",
            "controller.enable={clusterset}",
            "controller.clusterset.clusterId=this-cluster",
            "controller.clusterset.podCidrs={10.244.0.0/16}",
            "controller.clusterset.brokerUrl=https://broker.example:6443",
        ],
        what: "the controller clusterset; the id, the networks, the broker and the Secret weir-broker are yours to set",
    },
    Manifest {
        file: "controller-hpp.yaml",
        release: "weir",
        values: &["agent.enabled=false", "controller.enable={hpp}"],
        what: "the controller hpp, for Cisco ACI",
    },
    Manifest {
        file: "controller-memcached.yaml",
        release: "weir",
        values: &["agent.enabled=false", "controller.enable={memcached}"],
        what: "the controller memcached",
    },
];

/// The controllers whose CustomResourceDefinitions the chart has.
const CONTROLLERS: [&str; 3] = ["clusterset", "hpp", "memcached"];

/// Where the chart has them.
fn definitions(controller: &str) -> PathBuf {
    root().join(CHART).join("files/crds").join(format!("{controller}.yaml"))
}

impl Manifest {
    fn path(&self) -> PathBuf {
        root().join("deploy").join(self.file)
    }

    /// What the file should be.
    fn text(&self) -> Result<String> {
        let Manifest { file, what, release, values } = self;
        let rendered = render(release, values).with_context(|| format!("cannot make {file}"))?;
        Ok(format!(
            "# {file}: {what}. Generated from {CHART} by `cargo xtask package`.\n\
             # The image is one that you build: docs/guides/install.md.\n\
             apiVersion: v1\n\
             kind: Namespace\n\
             metadata:\n  \
               name: {NAMESPACE}\n  \
               labels:\n    \
                 pod-security.kubernetes.io/enforce: privileged\n\
             {rendered}"
        ))
    }
}

/// Renders the chart.
fn render(release: &str, values: &[&str]) -> Result<String> {
    let mut helm = HELM.command()?;
    helm.args(["template", release, CHART, "--namespace", NAMESPACE]);
    values.iter().for_each(|value| {
        helm.args(["--set", value]);
    });
    let output = helm.output().context("cannot run helm")?;
    if !output.status.success() {
        bail!("helm: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Writes every file that is not as it should be.
pub(crate) fn run() -> Result<()> {
    crate::tools::run()?;
    for controller in CONTROLLERS {
        let mut weir = shell::command("cargo", &["run", "--quiet", "--package", "weir", "--"]);
        let output = weir.args(["crds", "--only", controller]).output()?;
        if !output.status.success() {
            bail!("weir: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        fs::write(definitions(controller), output.stdout)?;
    }
    for manifest in MANIFESTS {
        let (path, text) = (manifest.path(), manifest.text()?);
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        fs::create_dir_all(root().join("deploy"))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote deploy/{}", manifest.file);
    }
    Ok(())
}
