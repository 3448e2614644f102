//! A small container runtime: it starts plugins in order, as libcni does.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, Write},
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};
use weir_lab::Lab;

use crate::namespace::Namespace;

/// The plugin folder of Debian.
const PLUGINS: &str = "/usr/lib/cni";

/// A pod's sandbox.
pub(crate) struct Sandbox {
    /// The Kubernetes namespace of the pod, such as `shop`.
    pub(crate) group: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) node: String,
    pub(crate) container: String,
    pub(crate) namespace: Namespace,
    /// The port mappings for plugins with that capability.
    pub(crate) wishes: Value,
}

impl Sandbox {
    /// A sandbox of a pod in `shop`, on the node `n1`, with a port of the node.
    pub(crate) fn new(name: &str, uid: &str) -> Self {
        let mapping = json!([{"hostPort": 8080, "containerPort": 5432, "protocol": "udp"}]);
        Sandbox {
            group: "shop".into(),
            name: name.into(),
            uid: uid.into(),
            node: "n1".into(),
            container: format!("sandbox-{name}-{uid}"),
            namespace: Namespace::new(),
            wishes: json!({ "portMappings": mapping }),
        }
    }
}

/// A chain of plugins.
pub(crate) struct Runtime {
    pub(crate) list: Value,
    folder: PathBuf,
    /// The last result of every container.
    results: Mutex<BTreeMap<String, Value>>,
    /// The number of added pods.
    added: AtomicUsize,
}

/// The error of a plugin.
pub(crate) type Refusal = Value;

impl Runtime {
    /// A runtime with these plugins, followed by ours. Plugins that are not from Debian are in
    /// `folder`.
    pub(crate) fn new(folder: &Path, mut plugins: Vec<Value>, ours: Value) -> Self {
        let own = folder.join("bin/weir-cni");
        fs::create_dir_all(own.parent().unwrap()).unwrap();
        if !own.exists() {
            std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &own).unwrap();
        }
        assert!(
            Path::new(PLUGINS).join("bridge").exists(),
            "there are no plugins in {PLUGINS}: install containernetworking-plugins"
        );
        plugins.push(ours);
        let list = json!({"cniVersion": "1.0.0", "name": "test", "plugins": plugins});
        Runtime {
            list,
            folder: folder.into(),
            results: Mutex::default(),
            added: AtomicUsize::new(0),
        }
    }

    /// Adds a pod. If a plugin fails, the runtime removes it again.
    pub(crate) fn add(&self, lab: &Lab, sandbox: &Sandbox) -> Result<Value, Refusal> {
        let mut result = None;
        for plugin in self.plugins() {
            match self.start(lab, "ADD", &plugin, sandbox, result.as_ref()) {
                Ok(new) => result = Some(serde_json::from_str(&new).unwrap()),
                Err(refusal) => {
                    self.del(lab, sandbox).unwrap();
                    return Err(refusal);
                }
            }
        }
        let result: Value = result.unwrap();
        self.results.lock().unwrap().insert(sandbox.container.clone(), result.clone());
        self.added.fetch_add(1, Ordering::Relaxed);
        Ok(result)
    }

    /// The number of added pods.
    #[allow(dead_code, reason = "some tests count by themselves")]
    pub(crate) fn count(&self) -> usize {
        self.added.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self, lab: &Lab, sandbox: &Sandbox) -> Result<(), Refusal> {
        let result = self.results.lock().unwrap().get(&sandbox.container).cloned();
        for plugin in self.plugins() {
            self.start(lab, "CHECK", &plugin, sandbox, result.as_ref())?;
        }
        Ok(())
    }

    pub(crate) fn del(&self, lab: &Lab, sandbox: &Sandbox) -> Result<(), Refusal> {
        let result = self.results.lock().unwrap().remove(&sandbox.container);
        for plugin in self.plugins().into_iter().rev() {
            self.start(lab, "DEL", &plugin, sandbox, result.as_ref())?;
        }
        Ok(())
    }

    /// Starts only our plugin, with additional configuration.
    pub(crate) fn ours(
        &self,
        lab: &Lab,
        verb: &str,
        sandbox: &Sandbox,
        more: &[(&str, Value)],
    ) -> Result<String, Refusal> {
        let mut plugin = self.plugins().pop().unwrap();
        more.iter().for_each(|(key, value)| plugin[*key] = value.clone());
        self.start(lab, verb, &plugin, sandbox, None)
    }

    fn plugins(&self) -> Vec<Value> {
        self.list["plugins"].as_array().unwrap().clone()
    }

    fn start(
        &self,
        lab: &Lab,
        verb: &str,
        plugin: &Value,
        sandbox: &Sandbox,
        result: Option<&Value>,
    ) -> Result<String, Refusal> {
        let mut config = plugin.clone();
        for key in ["cniVersion", "name"] {
            if config[key].is_null() {
                config[key] = self.list[key].clone();
            }
        }
        for (capability, wish) in sandbox.wishes.as_object().unwrap() {
            if plugin["capabilities"][capability] == true {
                config["runtimeConfig"][capability] = wish.clone();
            }
        }
        if let Some(result) = result {
            config["prevResult"] = result.clone();
        }
        let name = plugin["type"].as_str().unwrap();
        let own = self.folder.join("bin").join(name);
        let program = if own.exists() { own } else { Path::new(PLUGINS).join(name) };
        let Sandbox { group, name, uid, node, container, namespace, .. } = sandbox;
        let pod = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={group};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={container};K8S_POD_UID={uid}"
        );
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", container)
            .env("CNI_NETNS", namespace.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_ARGS", pod)
            .env("CNI_PATH", PLUGINS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = lab.on_node(node, || {
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        });
        let output = output.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        match output.status.code() {
            Some(0) => Ok(text),
            Some(1) => Err(serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text:?}"))),
            _ => panic!("{:?}: {text} {}", output.status, String::from_utf8_lossy(&output.stderr)),
        }
    }
}

/// The addresses in a result.
pub(crate) fn addresses(result: &Value) -> Vec<IpAddr> {
    let ips = result["ips"].as_array().unwrap().iter();
    let address = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().parse();
    ips.map(|ip| address(ip).unwrap()).collect()
}

/// Runs this program as the CNI plugin, when a runtime starts it.
pub(crate) fn run_plugin() -> ExitCode {
    ExitCode::from(weir_cni::run(weir_cni::Call {
        arguments: Vec::new(),
        variable: &|name| env::var(name).ok(),
        input: &mut io::stdin(),
        output: &mut io::stdout(),
        messages: &mut io::stderr(),
    }))
}
