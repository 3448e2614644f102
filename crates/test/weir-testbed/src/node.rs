//! A node: containerd, kubelet and kube-proxy in namespaces of their own.

use std::{
    fs,
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    TestbedError,
    cgroups::Cgroups,
    config::{self, pod_networks, rack_v4, rack_v6},
    error::Context,
    namespaces::{await_id, await_value, enter, kill, run, start},
    programs::NodePrograms,
};

/// The search path on a node.
const PATH: &str = "/opt/weir:/usr/sbin:/usr/bin:/sbin:/bin";
/// The options of nsenter for all namespaces of a node.
const ALL: [&str; 6] = ["--pid", "--net", "--mount", "--uts", "--ipc", "--cgroup"];

/// A node of a testbed.
#[derive(Debug)]
pub struct TestNode {
    name: String,
    number: u8,
    folder: PathBuf,
    rack: u32,
    /// The first process, while the node runs.
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    id: u32,
    cgroups: Cgroups,
}

impl TestNode {
    /// A node that does not run yet. Nodes are numbered from 1.
    pub(crate) fn new(folder: &Path, rack: u32, number: u8) -> Self {
        TestNode {
            name: format!("n{number}"),
            number,
            folder: folder.to_path_buf(),
            rack,
            running: None,
        }
    }

    /// The name of the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its addresses.
    pub fn addresses(&self) -> (Ipv4Addr, Ipv6Addr) {
        (rack_v4(10 + self.number), rack_v6(10 + self.number))
    }

    /// Starts containerd, and with it the network of the node. `nodes` is the number of all nodes.
    pub(crate) fn start_runtime(
        &mut self,
        programs: &NodePrograms,
        nodes: u8,
    ) -> Result<(), TestbedError> {
        self.write_files(programs)?;
        let own = self.folder.join(&self.name);
        let id_file = own.join("id");
        _ = fs::remove_file(&id_file);
        let testbed = self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let cgroups = Cgroups::create(&testbed, &self.name)?;
        let mut init = enter(self.rack, &["--pid", "--mount"], "unshare");
        init.args(["--pid", "--net", "--mount", "--uts", "--ipc", "--fork", "--kill-child", "sh"]);
        init.arg(self.folder.join("node-init.sh")).arg(&self.folder).arg(&self.name);
        let log = own.join("init.log");
        start(cgroups.launch(&init), &log)?;
        let id = await_id(&id_file, &log)?;
        self.running = Some(Running { id, cgroups });
        self.connect(id, nodes)?;
        self.spawn("containerd", &["--config=/etc/containerd/config.toml".into()])?;
        await_value("containerd", || {
            let mut check = self.command("ctr").ok()?;
            run(check.arg("version")).ok()
        })?;
        Ok(())
    }

    /// Starts the kubelet and kube-proxy.
    pub(crate) fn start_kubelet(&self, programs: &NodePrograms) -> Result<(), TestbedError> {
        let (address, _) = self.addresses();
        let flags = config::kubelet_flags(programs.minor, &self.name, address);
        self.spawn("kubelet", &flags)?;
        self.spawn("kube-proxy", &["--config=/etc/kubernetes/kube-proxy".into()])
    }

    /// Kills all processes of the node. Its network and its mounts are gone with them; its disk remains.
    pub fn kill(&mut self) -> Result<(), TestbedError> {
        self.running.take().map_or(Ok(()), |running| kill(running.id))
    }

    /// A command on the node: in all of its namespaces and in its cgroups.
    pub fn command(&self, program: &str) -> Result<Command, TestbedError> {
        let stopped = || TestbedError::new(format!("node {} does not run", self.name));
        let Running { id, cgroups } = self.running.as_ref().ok_or_else(stopped)?;
        let mut command = enter(*id, &ALL, "env");
        command.arg(format!("PATH={PATH}")).arg(program);
        Ok(cgroups.join(&command))
    }

    /// Runs a program on the node and returns its output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String, TestbedError> {
        run(self.command(program)?.args(arguments))
    }

    /// Imports the images of an archive.
    pub fn import(&self, archive: &Path) -> Result<(), TestbedError> {
        // The node cannot see the archive, so it reads standard input.
        let file = fs::File::open(archive);
        let file = file.context(|| format!("cannot read {}", archive.display()))?;
        let mut import = self.command("ctr")?;
        import.args(["--namespace=k8s.io", "images", "import", "-"]).stdin(file);
        let output = import.output().context(|| "cannot run ctr".into())?;
        if output.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(TestbedError::new(format!("cannot import {}: {why}", archive.display())))
    }

    fn spawn(&self, program: &str, arguments: &[String]) -> Result<(), TestbedError> {
        let mut command = self.command(program)?;
        command.args(arguments);
        start(command, &self.folder.join(&self.name).join(format!("{program}.log"))).map(|_| ())
    }

    fn write_files(&self, programs: &NodePrograms) -> Result<(), TestbedError> {
        let files = self.folder.join(&self.name).join("files");
        let mut all = vec![
            ("etc/containerd/config.toml", config::containerd()),
            ("etc/kubernetes/kubelet", config::kubelet(programs.minor)),
            (
                "etc/kubernetes/kube-proxy",
                config::kube_proxy(
                    programs.minor,
                    &self.name,
                    config::proxy_mode(programs.minor, self.number),
                ),
            ),
        ];
        // Programs on the node change this file, and a restart must keep the change.
        let cni = files.join("etc/cni");
        if cni.exists() {
            fs::remove_dir_all(&cni).context(|| format!("cannot remove {}", cni.display()))?;
        } else {
            all.push(("etc/cni/net.d/10-pods.conflist", config::cni(self.number)));
        }
        for (name, text) in all {
            let path = files.join(name);
            let parent = path.parent().unwrap_or(&files);
            fs::create_dir_all(parent)
                .and_then(|()| fs::write(&path, text))
                .context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Writes the credentials of the kubelet and kube-proxy.
    pub(crate) fn write_credentials(
        &self,
        kubeconfig: &str,
        ca: &Path,
    ) -> Result<(), TestbedError> {
        let folder = self.folder.join(&self.name).join("files/etc/kubernetes");
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join("kubeconfig"), kubeconfig))
            .and_then(|()| fs::copy(ca, folder.join("ca.crt")).map(|_| ()))
            .context(|| format!("cannot write {}", folder.display()))
    }

    /// Connects the node with the rack and adds the routes to the pods of the other nodes.
    fn connect(&self, id: u32, nodes: u8) -> Result<(), TestbedError> {
        let name = &self.name;
        let (v4, v6) = self.addresses();
        let rack = |words: String| {
            // It looks process ids up in the /proc of this process.
            run(enter(self.rack, &["--net"], "ip").args(words.split(' ')))
        };
        // The last life of the node may have left its end for a moment.
        _ = rack(format!("link delete {name}"));
        rack(format!("link add {name} type veth peer name eth0 netns {id}"))?;
        rack(format!("link set {name} master rack up"))?;
        let node = |words: String| self.run("ip", &words.split(' ').collect::<Vec<_>>());
        node(format!("address add {v4}/24 dev eth0"))?;
        node(format!("address add {v6}/64 dev eth0 nodad"))?;
        node("link set eth0 up".into())?;
        node(format!("route add default via {}", rack_v4(1)))?;
        node(format!("route add default via {}", rack_v6(1)))?;
        for [network, via] in routes(self.number) {
            rack(format!("route replace {network} via {via}"))?;
        }
        for other in (1..=nodes).filter(|other| *other != self.number) {
            for [network, via] in routes(other) {
                node(format!("route replace {network} via {via}"))?;
            }
        }
        Ok(())
    }
}

/// The routes to the pods of a node: network and gateway.
fn routes(number: u8) -> [[String; 2]; 2] {
    let [v4, v6] = pod_networks(number);
    [[v4, rack_v4(10 + number).to_string()], [v6, rack_v6(10 + number).to_string()]]
}
