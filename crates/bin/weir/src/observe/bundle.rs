use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Write},
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};
use weir_engine::Locality;
use weir_kube::{Access, ApiError, ClusterKinds};

use super::agents::{AgentsArgs, ClusterAgents};
use crate::{
    exit::Exit,
    failure::Failure,
    present::{self, plain::Plain, program::Listing},
    source,
};

/// Collect diagnostics for a bug report in a tar file
///
/// Collects the versions, the state of all nodes and agents, findings, the settings of the agents, recent
/// drops and flows, the uses of policies, the rules that each node should have, and the logs of weir's
/// pods. It leaves out Secrets, annotations and the values of environment variables. The file contains names and addresses of pods: look at it before you pass it
/// on. A part that cannot be read does not end the command; the file `errors.txt` lists it.
///
/// This needs `create` on pods/exec, `get` on pods/log, and `list` on pods, nodes, namespaces and
/// policies.
#[derive(Args)]
#[command(after_help = "Examples:\n  weir bundle\n  weir bundle --file weir.tar --context prod")]
pub(crate) struct BundleCommand {
    /// The file to write [default: weir-bundle-SECONDS.tar]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// The number of lines of each log
    #[arg(long, value_name = "NUMBER", default_value_t = 5000)]
    log_lines: u32,
    #[command(flatten)]
    agents: AgentsArgs,
}

/// The commands that run in the pods of agents, and the files for their output.
const COMMANDS: [(&str, &[&str]); 5] = [
    ("status.json", &["status", "--output=json"]),
    ("drops.jsonl", &["drops", "--output=json", "--lines"]),
    ("flows.jsonl", &["flows", "--output=json"]),
    ("policies.json", &["flows", "--uses", "--output=json"]),
    ("version.json", &["version", "--output=json"]),
];

/// Selects the objects of weir, which the chart and `weir install` label. Other programs can run in the
/// same namespace.
const SELECTOR: &str = "labelSelector=app.kubernetes.io%2Fname%3Dweir";

/// The most bytes of one file. The rest is left out.
const MAX_FILE_BYTES: usize = 32 << 20;

impl BundleCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let cluster = self.agents.cluster()?;
        let mut bundle = Bundle::default();
        bundle.add("version.txt", format!("weir {}\n", env!("CARGO_PKG_VERSION")));
        bundle.add_json("server.json", cluster.client.get("/version"));
        let nodes = cluster
            .client
            .list("/api/v1/nodes")
            .map(|nodes| json!(nodes.iter().map(node_facts).collect::<Vec<_>>()));
        bundle.add_json("nodes.json", nodes.map(Some));
        let namespace = &cluster.namespace;
        let sets = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets?{SELECTOR}");
        let sets = cluster
            .client
            .list(&sets)
            .map(|list| json!(list.into_iter().map(redacted).collect::<Vec<_>>()));
        bundle.add_json("daemonsets.json", sets.map(Some));
        let pods = cluster.client.list(&format!("/api/v1/namespaces/{namespace}/pods?{SELECTOR}"));
        let containers: Vec<(String, String)> =
            pods.iter().flatten().flat_map(containers).collect();
        let pods = pods.map(|list| json!(list.into_iter().map(redacted).collect::<Vec<_>>()));
        bundle.add_json("pods.json", pods.map(Some));
        for (file, words) in COMMANDS {
            bundle.collect(&cluster, file, words)?;
        }
        bundle.add_rules(&self.agents.access());
        for (pod, container) in containers {
            let file = format!("logs/{pod}/{container}.log");
            let path = format!(
                "/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&tailLines={}",
                self.log_lines
            );
            match cluster.client.text(&path) {
                Ok(log) => bundle.add(&file, log),
                Err(error) => bundle.failed(&file, &error),
            }
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let name = format!("weir-bundle-{seconds}");
        let path = self.file.clone().unwrap_or_else(|| format!("{name}.tar").into());
        let count = bundle.write(&path, &name, seconds)?;
        writeln!(out, "wrote {count} files to {}", Plain(path.display()))?;
        for error in &bundle.errors {
            anstream::eprintln!("left out {}", Plain(error));
        }
        Ok(Exit::when(bundle.errors.is_empty()))
    }
}

/// The files of a bundle.
#[derive(Default)]
struct Bundle {
    files: BTreeMap<String, Vec<u8>>,
    errors: Vec<String>,
}

impl Bundle {
    fn add(&mut self, name: &str, content: impl Into<Vec<u8>>) {
        let file = self.files.entry(name.to_owned()).or_default();
        file.extend(content.into());
        file.truncate(MAX_FILE_BYTES);
    }

    fn add_json(&mut self, name: &str, value: Result<Option<Value>, ApiError>) {
        match value {
            Ok(value) => self.add(name, format!("{:#}\n", value.unwrap_or_default())),
            Err(error) => self.failed(name, &error),
        }
    }

    fn failed(&mut self, name: &str, error: &dyn std::error::Error) {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        self.errors.push(format!("{name}: {error}{cause}"));
    }

    /// Adds the rules that each node should have, compiled from the objects of the cluster.
    fn add_rules(&mut self, access: &Access) {
        let loaded = source::load_cluster(access, ClusterKinds::Policies, "give one");
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                self.errors.push(format!("rules: {error:#}"));
                return;
            }
        };
        let world = loaded.without_synthetic();
        for node in world.nodes.keys() {
            let program = weir_engine::compile(&world, Locality::Node(node.clone()));
            let mut text = Vec::new();
            match present::program::write(&mut text, &Listing::new(&program, None)) {
                Ok(()) => {
                    let plain = anstream::adapter::strip_bytes(&text).into_vec();
                    self.add(&format!("rules/{node}.txt"), plain);
                }
                Err(error) => self.failed("rules", &error),
            }
        }
    }

    /// Adds the output of a command of each agent.
    fn collect(
        &mut self,
        cluster: &ClusterAgents,
        file: &str,
        words: &[&str],
    ) -> anyhow::Result<()> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let collected = cluster.collect(&words, |line| {
            self.add(&format!("agents/{}/{file}", line.node), line.line + "\n");
            Ok(())
        })?;
        for (node, lines) in collected.remarks {
            let text: String = lines.iter().map(|line| format!("{file}: {line}\n")).collect();
            self.add(&format!("agents/{node}/messages.txt"), text);
        }
        for away in collected.away {
            self.errors.push(format!("agents/{}/{file}: {}", away.node, away.reason));
        }
        Ok(())
    }

    /// Writes the tar file. Returns the number of files in it.
    fn write(&mut self, path: &PathBuf, folder: &str, seconds: u64) -> anyhow::Result<usize> {
        self.add(
            "errors.txt",
            self.errors.iter().map(|error| format!("{error}\n")).collect::<String>(),
        );
        let what = || format!("cannot write {}", path.display());
        let mut options = File::options();
        // An existing file keeps its mode, so it is not reused.
        options.create_new(true).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let hint = "remove it, or give another file with --file";
                let what = format!("{} already exists", path.display());
                return Err(Failure::new(what, hint).into());
            }
            opened => opened.with_context(what)?,
        };
        let mut tar = tar::Builder::new(BufWriter::new(file));
        for (name, content) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(seconds);
            let path = format!("{folder}/{}", safe_path(name));
            tar.append_data(&mut header, path, &content[..]).with_context(what)?;
        }
        tar.into_inner().and_then(|mut file| file.flush()).with_context(what)?;
        Ok(self.files.len())
    }
}

/// A path without steps to other folders: names of nodes come from the cluster.
fn safe_path(name: &str) -> String {
    let parts = name.split('/').filter(|part| !matches!(*part, "" | "." | ".."));
    parts.collect::<Vec<_>>().join("/")
}

/// The containers of a pod that have started, with the name of the pod.
fn containers(pod: &Value) -> Vec<(String, String)> {
    let name = |value: &Value| {
        let name = value["name"].as_str()?;
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        name.bytes().all(is_allowed).then(|| name.to_owned())
    };
    let Some(pod_name) = name(&pod["metadata"]) else { return Vec::new() };
    let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let has_log = |status: &&Value| {
        status["state"]["waiting"].is_null() || status["restartCount"].as_u64() > Some(0)
    };
    statuses.filter(has_log).filter_map(|one| Some((pod_name.clone(), name(one)?))).collect()
}

/// The facts about a node that matter to weir.
fn node_facts(node: &Value) -> Value {
    let info = &node["status"]["nodeInfo"];
    json!({
        "name": node["metadata"]["name"],
        "kernel": info["kernelVersion"],
        "os": info["osImage"],
        "runtime": info["containerRuntimeVersion"],
        "kubelet": info["kubeletVersion"],
        "architecture": info["architecture"],
        "taints": node["spec"]["taints"],
        "conditions": node["status"]["conditions"],
    })
}

/// An object without the values of environment variables, and without annotations, which can contain an
/// applied manifest with these values. Templates of pods have annotations too.
fn redacted(mut object: Value) -> Value {
    redact(&mut object);
    object
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("annotations");
            fields.remove("managedFields");
            for (name, field) in fields.iter_mut() {
                if name == "env" {
                    let variables = field.as_array_mut().into_iter().flatten();
                    variables
                        .filter(|one| one.get("value").is_some())
                        .for_each(|one| one["value"] = "left out".into());
                }
                redact(field);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_variables_and_annotations_are_left_out() {
        let pod = json!({
            "metadata": {"name": "a", "annotations": {"last-applied": "TOKEN=secret"}},
            "spec": {"initContainers": [{"env": [{"name": "TOKEN", "value": "secret"}]}],
                "containers": [{"args": ["agent"], "env": [{"name": "TOKEN", "value": "secret"},
                    {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}]},
        });
        let text = redacted(pod).to_string();
        assert!(!text.contains("secret") && text.contains("spec.nodeName"), "{text}");
        assert!(text.contains("TOKEN"), "{text}");
        let metadata = json!({"labels": {"app": "weir"}, "annotations": {"key": "secret"},
            "managedFields": [{"manager": "secret"}]});
        let set = json!({"metadata": metadata, "spec": {"template": {"metadata": metadata}}});
        let kept = json!({"labels": {"app": "weir"}});
        assert_eq!(
            redacted(set),
            json!({"metadata": kept, "spec": {"template": {"metadata": kept}}})
        );
    }

    #[test]
    fn an_existing_file_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.tar");
        std::fs::write(&path, "other").unwrap();
        let error = Bundle::default().write(&path, "b", 1).unwrap_err();
        assert!(error.to_string().ends_with("b.tar already exists"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "other");
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        assert_eq!(safe_path("agents/../../etc/passwd"), "agents/etc/passwd");
        let status = json!({"containerStatuses": [{"name": "agent"}, {"name": "x&y"}]});
        let pod = |name: &str| json!({"metadata": {"name": name}, "status": status});
        assert_eq!(containers(&pod("a?x=/b")), []);
        assert_eq!(containers(&pod("a")), [("a".to_owned(), "agent".to_owned())]);
    }

    #[test]
    fn a_bundle_is_a_tar_file_with_its_errors() {
        let mut bundle = Bundle::default();
        bundle.add("version.txt", "weir 1\n");
        bundle.failed("nodes.json", &ApiError::Unauthorized);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.tar");
        assert_eq!(bundle.write(&path, "b", 1).unwrap(), 2);
        #[cfg(unix)]
        {
            let mode = path.metadata().map(|file| std::os::unix::fs::MetadataExt::mode(&file));
            assert_eq!(mode.unwrap() & 0o777, 0o600);
        }
        let mut tar = tar::Archive::new(File::open(path).unwrap());
        let names: Vec<String> = tar
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(names, ["b/errors.txt", "b/version.txt"]);
    }
}
