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

/// A file of deploy/. What outlives the rest is in files of its own, so that nobody deletes or replaces it by the way.
struct Manifest {
    file: &'static str,
    from: Origin,
    what: &'static str,
}

/// Where a file comes from.
enum Origin {
    /// The namespace that all others are in.
    Namespace,
    /// The definitions that a controller needs, where nobody else has installed them.
    Definitions(&'static str),
    /// A release of the chart, with values that are not the default. It has neither the namespace nor definitions.
    Release(&'static str, &'static [&'static str]),
}

const MANIFESTS: &[Manifest] = &[
    Manifest {
        file: "namespace.yaml",
        from: Origin::Namespace,
        what: "the namespace of everything else here; to delete it is to delete everything in it",
    },
    Manifest {
        file: "crds-clusterset.yaml",
        from: Origin::Definitions("clusterset"),
        what: "the kinds of the controller clusterset",
    },
    Manifest {
        file: "crds-hpp.yaml",
        from: Origin::Definitions("hpp"),
        what: "the kinds of the controller hpp, where Cisco's own installation has not installed them",
    },
    Manifest {
        file: "crds-memcached.yaml",
        from: Origin::Definitions("memcached"),
        what: "the kind of the controller memcached, where its operator has not installed it",
    },
    Manifest {
        file: "agent.yaml",
        from: Origin::Release("weir", &[]),
        what: "the agent on every Linux node, with nftables",
    },
    Manifest {
        file: "agent-cni.yaml",
        from: Origin::Release("weir", &["agent.cni.enabled=true"]),
        what: "the agent on every Linux node, with nftables, and the CNI plugin",
    },
    Manifest {
        file: "agent-iptables.yaml",
        from: Origin::Release("weir", &["agent.datapath=iptables"]),
        what: "the agent on every Linux node, with iptables and ipset",
    },
    Manifest {
        file: "agent-opflex.yaml",
        from: Origin::Release("weir", &["agent.datapath=opflex"]),
        what: "the agent on every Linux node, for Cisco's opflex-agent",
    },
    Manifest {
        file: "cleanup.yaml",
        from: Origin::Release("weir", &["cleanup.enabled=true"]),
        what: "removes everything of weir's from the nodes, after agents with nftables",
    },
    Manifest {
        file: "cleanup-iptables.yaml",
        from: Origin::Release("weir", &["cleanup.enabled=true", "agent.datapath=iptables"]),
        what: "removes everything of weir's from the nodes, after agents with iptables",
    },
    Manifest {
        file: "cleanup-opflex.yaml",
        from: Origin::Release("weir", &["cleanup.enabled=true", "agent.datapath=opflex"]),
        what: "removes everything of weir's from the nodes, after agents for opflex-agent",
    },
    Manifest {
        file: "windows.yaml",
        from: Origin::Release("weir", &["agent.enabled=false", "windows.enabled=true"]),
        what: "the agent on every Windows node",
    },
    Manifest {
        file: "windows-cleanup.yaml",
        from: Origin::Release(
            "weir",
            &["agent.enabled=false", "windows.enabled=true", "cleanup.enabled=true"],
        ),
        what: "removes everything of weir's from Windows nodes",
    },
    // Each has names and a lease of its own, so that a cluster may have all of them.
    Manifest {
        file: "controller-clusterset.yaml",
        from: Origin::Release(
            "weir-clusterset",
            &[
                "agent.enabled=false",
                "crds.install=false",
                "controller.enable={clusterset}",
                "controller.clusterset.clusterId=this-cluster",
                "controller.clusterset.podCidrs={10.244.0.0/16}",
                "controller.clusterset.brokerUrl=https://broker.example:6443",
            ],
        ),
        what: "the controller clusterset; the id, the networks, the broker and the Secret weir-broker are yours to set",
    },
    Manifest {
        file: "controller-hpp.yaml",
        from: Origin::Release(
            "weir-hpp",
            &["agent.enabled=false", "crds.install=false", "controller.enable={hpp}"],
        ),
        what: "the controller hpp, for Cisco ACI",
    },
    Manifest {
        file: "controller-memcached.yaml",
        from: Origin::Release(
            "weir-memcached",
            &["agent.enabled=false", "crds.install=false", "controller.enable={memcached}"],
        ),
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
        let Manifest { file, what, from } = self;
        let made = match from {
            Origin::Namespace => format!(
                "apiVersion: v1\n\
                 kind: Namespace\n\
                 metadata:\n  \
                   name: {NAMESPACE}\n  \
                   labels:\n    \
                     pod-security.kubernetes.io/enforce: privileged\n"
            ),
            Origin::Definitions(controller) => {
                let path = definitions(controller);
                fs::read_to_string(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?
            }
            Origin::Release(release, values) => {
                let rendered = render(release, values);
                let rendered = rendered.with_context(|| format!("cannot make {file}"))?;
                format!("# The image is one that you build: docs/guides/install.md.\n{rendered}")
            }
        };
        Ok(format!("# {file}: {what}. Generated from {CHART} by `cargo xtask package`.\n{made}"))
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
