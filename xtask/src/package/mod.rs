//! `cargo xtask package`: generates the manifests in deploy/ from the chart, for users without Helm.
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
mod powershell;
#[cfg(test)]
mod rights;

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{
    shell::{self, root},
    tools::HELM,
};

/// The folder of the chart.
const CHART: &str = "charts/weir";
/// The namespace of the agents. Its Pod Security level must admit the host network.
const NAMESPACE: &str = "weir-system";
/// The namespace of the controllers, which need no privileges.
const CONTROLLER_NAMESPACE: &str = "weir-controllers";

/// A file of deploy/. The namespace and the definitions have separate files, so that deleting an agent
/// or a controller does not delete them.
struct Manifest {
    file: &'static str,
    from: Origin,
    what: &'static str,
}

/// The source of a file.
enum Origin {
    /// The namespaces of all other files.
    Namespaces,
    /// The definitions that a controller needs, for clusters that lack them.
    Definitions(&'static str),
    /// A release of the chart with these values. It contains neither a namespace nor definitions.
    Release(&'static str, &'static [&'static str]),
}

const MANIFESTS: &[Manifest] = &[
    Manifest {
        file: "namespace.yaml",
        from: Origin::Namespaces,
        what: "the namespaces of all other files; deleting one deletes everything in it",
    },
    Manifest {
        file: "crds-clusterset.yaml",
        from: Origin::Definitions("clusterset"),
        what: "the definitions of the clusterset controller",
    },
    Manifest {
        file: "crds-hpp.yaml",
        from: Origin::Definitions("hpp"),
        what: "the definitions of the hpp controller, unless Cisco's installer has created them",
    },
    Manifest {
        file: "crds-memcached.yaml",
        from: Origin::Definitions("memcached"),
        what: "the definition of the memcached controller, unless the Memcached operator has created it",
    },
    Manifest {
        file: "agent.yaml",
        from: Origin::Release("weir", &["agent.cni.enabled=false"]),
        what: "the agent on every Linux node, with nftables",
    },
    Manifest {
        file: "agent-cni.yaml",
        from: Origin::Release("weir", &[]),
        what: "the agent on every Linux node, with nftables and the CNI plugin",
    },
    Manifest {
        file: "agent-iptables.yaml",
        from: Origin::Release("weir", &["agent.datapath=iptables", "agent.cni.enabled=false"]),
        what: "the agent on every Linux node, with iptables and ipset",
    },
    Manifest {
        file: "agent-iptables-cni.yaml",
        from: Origin::Release("weir", &["agent.datapath=iptables"]),
        what: "the agent on every Linux node, with iptables, ipset and the CNI plugin",
    },
    Manifest {
        file: "agent-opflex.yaml",
        from: Origin::Release("weir", &["agent.datapath=opflex"]),
        what: "the agent on every Linux node, for Cisco's opflex-agent",
    },
    Manifest {
        file: "relay.yaml",
        from: Origin::Release("weir", &["agent.enabled=false", "relay.replicas=2"]),
        what: "two relays; create the Secret weir-relay-tls, and give the agents --relay: docs/guides/relay.md",
    },
    Manifest {
        file: "cleanup.yaml",
        from: Origin::Release("weir", &["cleanup.enabled=true"]),
        what: "removes weir from Linux nodes whose agents used nftables",
    },
    Manifest {
        file: "cleanup-iptables.yaml",
        from: Origin::Release("weir", &["cleanup.enabled=true", "agent.datapath=iptables"]),
        what: "removes weir from Linux nodes whose agents used iptables",
    },
    Manifest {
        file: "cleanup-opflex.yaml",
        from: Origin::Release("weir", &["cleanup.enabled=true", "agent.datapath=opflex"]),
        what: "removes weir from Linux nodes whose agents used opflex",
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
        what: "removes weir from Windows nodes",
    },
    // Each has its own names and lease, so that a cluster can run all of them.
    Manifest {
        file: "controller-clusterset.yaml",
        from: Origin::Release(
            "weir-clusterset",
            &[
                "agent.enabled=false",
                "crds.install=false",
                "controller.enable={clusterset}",
                "controller.createNamespace=false",
                "controller.clusterset.clusterId=this-cluster",
                "controller.clusterset.podCidrs={10.244.0.0/16}",
                "controller.clusterset.brokerUrl=https://broker.example:6443",
            ],
        ),
        what: "the clusterset controller; edit the cluster id, pod CIDRs and broker URL, and create the Secret weir-broker",
    },
    Manifest {
        file: "controller-conditions.yaml",
        from: Origin::Release(
            "weir-conditions",
            &[
                "agent.enabled=false",
                "crds.install=false",
                "controller.enable={conditions}",
                "controller.createNamespace=false",
            ],
        ),
        what: "the conditions controller; the agents need --report-to and the right to write Leases, which the chart gives them",
    },
    Manifest {
        file: "controller-hpp.yaml",
        from: Origin::Release(
            "weir-hpp",
            &[
                "agent.enabled=false",
                "crds.install=false",
                "controller.enable={hpp}",
                "controller.createNamespace=false",
            ],
        ),
        what: "the hpp controller, for Cisco ACI",
    },
    Manifest {
        file: "controller-memcached.yaml",
        from: Origin::Release(
            "weir-memcached",
            &[
                "agent.enabled=false",
                "crds.install=false",
                "controller.enable={memcached}",
                "controller.createNamespace=false",
            ],
        ),
        what: "the memcached controller",
    },
];

/// The controllers with CustomResourceDefinitions in the chart.
const CONTROLLERS: [&str; 3] = ["clusterset", "hpp", "memcached"];

/// The chart's file with the definitions of a controller.
fn definitions(controller: &str) -> PathBuf {
    root().join(CHART).join("files/crds").join(format!("{controller}.yaml"))
}

impl Manifest {
    fn path(&self) -> PathBuf {
        root().join("deploy").join(self.file)
    }

    /// Generates the content of the file.
    fn generate(&self) -> Result<String> {
        let Manifest { file, what, from } = self;
        let content = match from {
            Origin::Namespaces => {
                let levels = [(NAMESPACE, "privileged"), (CONTROLLER_NAMESPACE, "restricted")];
                levels.map(|(name, level)| namespace(name, level)).join("---\n")
            }
            Origin::Definitions(controller) => {
                let path = definitions(controller);
                fs::read_to_string(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?
            }
            Origin::Release(release, values) => {
                let rendered = render(release, values);
                let rendered = rendered.with_context(|| format!("cannot generate {file}"))?;
                format!("# Build the image first: docs/guides/install.md.\n{rendered}")
            }
        };
        Ok(format!("# {file}: {what}. Generated from {CHART} by `cargo xtask package`.\n{content}"))
    }
}

/// A namespace with its Pod Security level.
fn namespace(name: &str, level: &str) -> String {
    format!(
        "apiVersion: v1\n\
         kind: Namespace\n\
         metadata:\n  \
           name: {name}\n  \
           labels:\n    \
             pod-security.kubernetes.io/enforce: {level}\n"
    )
}

/// Renders the chart with `helm template`.
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

/// Writes the files that are missing or stale.
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
        let (path, text) = (manifest.path(), manifest.generate()?);
        if fs::read_to_string(&path).is_ok_and(|current| current == text) {
            continue;
        }
        fs::create_dir_all(root().join("deploy"))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote deploy/{}", manifest.file);
    }
    Ok(())
}
