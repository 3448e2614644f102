//! The manifests of deploy/, with the settings of an installation.

use anyhow::Context;
use serde_json::{Value, json};
use weir_kube::{AdminClient, ApiError};

use super::{InstallDatapath, SettingsArgs};
use crate::failure::Failure;

/// The names of the DaemonSets.
pub(crate) const AGENT: &str = "weir-agent";
pub(crate) const CLEANUP: &str = "weir-cleanup";
/// The namespace in the manifests.
const NAMESPACE: &str = "weir-system";
/// The repository in the manifests.
const REPOSITORY: &str = "localhost/weir";
/// Marks the namespace that `weir install` created, so that `weir uninstall` removes no other.
const CREATED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "weir");

/// Helm renders these files from the chart; a test of xtask compares them with it.
const NFTABLES: &str = include_str!("../../../../../deploy/agent.yaml");
const NFTABLES_CNI: &str = include_str!("../../../../../deploy/agent-cni.yaml");
const IPTABLES: &str = include_str!("../../../../../deploy/agent-iptables.yaml");
const IPTABLES_CNI: &str = include_str!("../../../../../deploy/agent-iptables-cni.yaml");
const CLEANUP_NFTABLES: &str = include_str!("../../../../../deploy/cleanup.yaml");
const CLEANUP_IPTABLES: &str = include_str!("../../../../../deploy/cleanup-iptables.yaml");

/// The settings of the agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) image: String,
    pub(crate) datapath: InstallDatapath,
    pub(crate) audit: bool,
    pub(crate) cni: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let datapath = InstallDatapath::Nftables;
        // As in the chart.
        Settings { image: image_of(REPOSITORY, datapath), datapath, audit: false, cni: true }
    }
}

impl Settings {
    /// These settings, changed by arguments. Another datapath has another image.
    pub(super) fn with(mut self, arguments: &SettingsArgs) -> Self {
        if let Some(datapath) = arguments.datapath {
            self.datapath = datapath;
        }
        self.image = match &arguments.image {
            Some(image) => image.clone(),
            None => image_of(repository(&self.image), self.datapath),
        };
        self.audit = arguments.audit.unwrap_or(self.audit);
        self.cni = arguments.cni.unwrap_or(self.cni);
        self
    }
}

/// The image of this version, as the chart names it.
fn image_of(repository: &str, datapath: InstallDatapath) -> String {
    let suffix = match datapath {
        InstallDatapath::Nftables => "",
        InstallDatapath::Iptables => "-iptables",
    };
    format!("{repository}:{}{suffix}", env!("CARGO_PKG_VERSION"))
}

/// The name of an image without its tag and digest.
fn repository(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    match image.rsplit_once(':') {
        // A port of a registry contains no tag.
        Some((name, tag)) if !tag.contains('/') => name,
        _ => image,
    }
}

/// The namespace of the agents.
pub(crate) fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {
                "pod-security.kubernetes.io/enforce": "privileged",
                (CREATED_BY.0): CREATED_BY.1,
            },
        },
    })
}

/// The objects of the agents, in the order in which to apply them.
pub(crate) fn agent(namespace: &str, settings: &Settings) -> anyhow::Result<Vec<Value>> {
    let text = match (settings.datapath, settings.cni) {
        (InstallDatapath::Nftables, false) => NFTABLES,
        (InstallDatapath::Nftables, true) => NFTABLES_CNI,
        (InstallDatapath::Iptables, false) => IPTABLES,
        (InstallDatapath::Iptables, true) => IPTABLES_CNI,
    };
    let mut objects = vec![self::namespace(namespace)];
    objects.extend(parse(text, namespace, &settings.image)?);
    for object in objects.iter_mut().filter(|object| object["kind"] == "DaemonSet") {
        let containers = &mut object["spec"]["template"]["spec"]["containers"];
        let agent = containers.as_array_mut().and_then(|all| all.first_mut());
        let arguments = agent.and_then(|agent| agent["args"].as_array_mut());
        let arguments = arguments.context("the agent has arguments")?;
        if settings.audit {
            arguments.push("--audit".into());
        }
    }
    Ok(objects)
}

/// The objects of the cleanup.
pub(crate) fn cleanup(namespace: &str, settings: &Settings) -> anyhow::Result<Vec<Value>> {
    let text = match settings.datapath {
        InstallDatapath::Nftables => CLEANUP_NFTABLES,
        InstallDatapath::Iptables => CLEANUP_IPTABLES,
    };
    parse(text, namespace, &settings.image)
}

/// The documents of a file, with a namespace and an image.
fn parse(text: &str, namespace: &str, image: &str) -> anyhow::Result<Vec<Value>> {
    let documents = text.split("\n---\n").skip(1);
    let parse = |document: &str| {
        let mut object: Value = serde_saphyr::from_str(document).context("a manifest of weir")?;
        replace(&mut object, namespace, image);
        Ok(object)
    };
    documents.map(parse).collect()
}

/// Replaces the namespace and the image of weir everywhere in an object.
fn replace(value: &mut Value, namespace: &str, image: &str) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value.as_str()) {
                    ("namespace", Some(NAMESPACE)) => *value = namespace.into(),
                    ("image", Some(name)) if repository(name) == REPOSITORY => {
                        *value = image.into();
                    }
                    _ => replace(value, namespace, image),
                }
            }
        }
        Value::Array(list) => {
            list.iter_mut().for_each(|value| replace(value, namespace, image));
        }
        _ => (),
    }
}

/// The agents of a namespace.
pub(crate) struct Installed {
    daemon_set: Value,
}

impl Installed {
    /// Finds the agents.
    pub(crate) fn find(client: &AdminClient, namespace: &str) -> Result<Option<Self>, ApiError> {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{AGENT}");
        Ok(client.get(&path)?.map(|daemon_set| Installed { daemon_set }))
    }

    /// The settings of the agents.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        let containers = self.daemon_set["spec"]["template"]["spec"]["containers"].as_array();
        let containers = containers.context("the DaemonSet has containers")?;
        let named = |name| containers.iter().find(move |container| container["name"] == name);
        let agent = named("agent").context("the DaemonSet has a container `agent`")?;
        let arguments: Vec<&str> =
            agent["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let datapath = arguments.iter().find_map(|one| one.strip_prefix("--datapath="));
        let datapath = match datapath {
            None | Some("nftables") => InstallDatapath::Nftables,
            Some("iptables") => InstallDatapath::Iptables,
            Some(other) => {
                let what = format!("the agents use the datapath {other}");
                return Err(Failure::new(what, "use the chart, with `helm upgrade`").into());
            }
        };
        Ok(Settings {
            image: agent["image"].as_str().unwrap_or_default().to_owned(),
            datapath,
            audit: arguments.contains(&"--audit"),
            cni: named("cni").is_some(),
        })
    }
}

/// Whether `weir install` created a namespace.
pub(crate) fn is_ours(namespace: &Value) -> bool {
    namespace["metadata"]["labels"][CREATED_BY.0] == CREATED_BY.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_settings() -> Vec<Settings> {
        let mut all = Vec::new();
        for datapath in [InstallDatapath::Nftables, InstallDatapath::Iptables] {
            for (audit, cni) in [(false, false), (true, false), (false, true), (true, true)] {
                all.push(Settings { image: "r.example:5000/w:1".into(), datapath, audit, cni });
            }
        }
        all
    }

    #[test]
    fn the_settings_of_an_installation_are_read_back() {
        for settings in all_settings() {
            let objects = agent("elsewhere", &settings).unwrap();
            let text = Value::from(objects.clone()).to_string();
            assert!(!text.contains(NAMESPACE) && !text.contains(REPOSITORY), "{text}");
            let mut sets = objects.into_iter().filter(|object| object["kind"] == "DaemonSet");
            let installed = Installed { daemon_set: sets.next().unwrap() };
            assert_eq!(installed.settings().unwrap(), settings);
        }
    }

    #[test]
    fn the_cleanup_uses_the_image_of_the_agents() {
        for settings in all_settings() {
            let objects = cleanup("elsewhere", &settings).unwrap();
            assert_eq!(objects.len(), 1);
            let containers = &objects[0]["spec"]["template"]["spec"]["initContainers"];
            let containers = containers.as_array().unwrap();
            assert!(containers.iter().all(|one| one["image"] == "r.example:5000/w:1"));
            assert_eq!(objects[0]["metadata"]["name"], CLEANUP);
        }
    }

    #[test]
    fn an_upgrade_keeps_the_repository_and_uses_the_tag_of_this_version() {
        let version = env!("CARGO_PKG_VERSION");
        let arguments =
            |datapath| SettingsArgs { image: None, datapath, audit: Some(false), cni: None };
        let old =
            Settings { image: "r.example:5000/w:0.0.1".into(), audit: true, ..Settings::default() };
        let new = old.clone().with(&arguments(None));
        assert_eq!(new.image, format!("r.example:5000/w:{version}"));
        assert!(!new.audit);
        let new = old.with(&arguments(Some(InstallDatapath::Iptables)));
        assert_eq!(new.image, format!("r.example:5000/w:{version}-iptables"));
        assert_eq!(repository("r.example:5000/w@sha256:00"), "r.example:5000/w");
        assert_eq!(repository("r.example:5000/w"), "r.example:5000/w");
    }
}
