//! Starting, finding and removing a testbed.

use std::{
    fs,
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
};

use crate::{
    Image, NodePrograms, TestNode, TestbedError,
    config::{self, PAUSE_IMAGE, rack_v4, rack_v6},
    control::{self, API_PORT},
    error::Context,
    namespaces::{await_id, await_value, enter, kill, run, start},
};

/// The options of a testbed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of the testbed, with logs and credentials. It must not exist.
    pub folder: PathBuf,
    /// The number of nodes.
    pub nodes: u8,
    /// Images that all nodes import before they run pods.
    pub images: Vec<PathBuf>,
}

/// A running testbed. Without a watchdog it outlives this value.
#[derive(Debug)]
pub struct Testbed {
    folder: PathBuf,
    rack: u32,
    /// The API server.
    server: Option<u32>,
    nodes: Vec<TestNode>,
    programs: NodePrograms,
    _watchdog: Option<Watchdog>,
}

/// A shell that removes the testbed when this process ends, also by a crash.
#[derive(Debug)]
struct Watchdog {
    shell: Child,
    hold: Option<ChildStdin>,
}

impl Testbed {
    /// Starts a testbed that exists until [`remove`].
    pub fn up(programs: &NodePrograms, options: &Options) -> Result<Self, TestbedError> {
        prepare(&options.folder)?;
        Testbed::start(programs, options, None)
    }

    /// Starts a testbed that ends with this value or this process.
    pub fn scoped(programs: &NodePrograms, options: &Options) -> Result<Self, TestbedError> {
        prepare(&options.folder)?;
        let script = format!("read -r _\n{DOWN}");
        let shell = Command::new("sh")
            .args(["-c", &script, "down"])
            .arg(&options.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A signal to the group of this process must not end the watchdog.
            .process_group(0)
            .spawn();
        let mut shell = shell.context(|| "cannot run sh".into())?;
        let watchdog = Watchdog { hold: shell.stdin.take(), shell };
        Testbed::start(programs, options, Some(watchdog))
    }

    fn start(
        programs: &NodePrograms,
        options: &Options,
        watchdog: Option<Watchdog>,
    ) -> Result<Self, TestbedError> {
        let Options { folder, nodes, images } = options;
        fs::write(folder.join("programs"), programs.mounts())?;
        let token = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        let token = token.trim();
        fs::write(folder.join("tokens"), format!("{token},admin,admin,system:masters\n"))?;
        let rack = start_rack(folder)?;
        control::start_store(folder, rack, programs)?;
        let server = control::start_server(folder, rack, programs)?;
        let pause = folder.join("pause.tar");
        pause_image()?.write(&pause)?;

        control::await_certificate(folder)?;
        let url = format!("https://{}:{API_PORT}", rack_v4(1));
        let ca = folder.join("certificates/apiserver.crt");
        let kubeconfig = config::kubeconfig(&url, None, &ca, token);
        fs::write(folder.join("kubeconfig"), &kubeconfig)?;
        let of_node = config::kubeconfig(&url, None, Path::new("/etc/kubernetes/ca.crt"), token);
        let mut started: Vec<TestNode> =
            (1..=*nodes).map(|number| TestNode::new(folder, rack, number)).collect();
        let archives: Vec<&PathBuf> = std::iter::once(&pause).chain(images).collect();
        let outcomes: Vec<Result<(), TestbedError>> = thread::scope(|scope| {
            let threads: Vec<_> = started
                .iter_mut()
                .map(|node| {
                    let (archives, of_node, ca) = (&archives, &of_node, &ca);
                    scope.spawn(move || {
                        node.write_credentials(of_node, ca)?;
                        node.start_runtime(programs, *nodes)?;
                        archives.iter().try_for_each(|archive| node.import(archive))
                    })
                })
                .collect();
            let failed = || TestbedError::new("a thread panicked");
            threads.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(failed()))).collect()
        });
        outcomes.into_iter().collect::<Result<(), _>>()?;
        let testbed = Testbed {
            folder: folder.clone(),
            rack,
            server: Some(server),
            nodes: started,
            programs: programs.clone(),
            _watchdog: watchdog,
        };
        control::await_server(|| testbed.kubectl())?;
        control::start_controllers(folder, rack, programs)?;
        for node in &testbed.nodes {
            node.start_kubelet(programs)?;
        }
        testbed.await_nodes()?;
        Ok(testbed)
    }

    /// The folder with logs and credentials.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The kubeconfig of the administrator, for programs in the network of the rack.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// The address of the API server in the network of the rack.
    pub fn api_address(&self) -> (std::net::Ipv4Addr, u16) {
        (rack_v4(1), API_PORT)
    }

    /// A kubeconfig for programs that reach the API server at another address.
    pub fn outside_kubeconfig(&self, address: SocketAddr) -> Result<String, TestbedError> {
        let tokens = fs::read_to_string(self.folder.join("tokens"))?;
        let token = tokens.split(',').next().unwrap_or_default();
        let ca = self.folder.join("certificates/apiserver.crt");
        let name = Some("kubernetes.default.svc");
        Ok(config::kubeconfig(&format!("https://{address}"), name, &ca, token))
    }

    /// The nodes.
    pub fn nodes(&self) -> &[TestNode] {
        &self.nodes
    }

    /// A program in the network of the rack, with the credentials of the administrator.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = enter(self.rack, &["--net"], program);
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// A program that ends with the testbed, in the network of the rack.
    pub fn service(&self, program: &Path) -> Command {
        control::in_rack(self.rack, program)
    }

    /// kubectl as administrator.
    pub fn kubectl(&self) -> Command {
        self.command("kubectl")
    }

    /// Waits until every node is ready.
    pub fn await_nodes(&self) -> Result<(), TestbedError> {
        let names: Vec<String> =
            self.nodes.iter().map(|node| format!("node/{}", node.name())).collect();
        await_value("the nodes", || {
            let wait = ["wait", "--for=condition=Ready", "--timeout=30s"];
            run(self.kubectl().args(wait).args(&names)).ok()
        })?;
        // Pods need the account of their namespace.
        await_value("the account of namespace default", || {
            run(self.kubectl().args(["get", "serviceaccount", "default"])).ok()
        })?;
        Ok(())
    }

    /// Imports the images of an archive on every node.
    pub fn import(&self, archive: &Path) -> Result<(), TestbedError> {
        self.nodes.iter().try_for_each(|node| node.import(archive))
    }

    /// Kills all processes of a node, as a power failure does. Its network is gone, its disk remains.
    pub fn kill_node(&mut self, index: usize) -> Result<(), TestbedError> {
        self.nodes[index].kill()
    }

    /// Starts a node again.
    pub fn start_node(&mut self, index: usize) -> Result<(), TestbedError> {
        let count = self.nodes.len() as u8;
        let node = &mut self.nodes[index];
        node.start_runtime(&self.programs, count)?;
        node.start_kubelet(&self.programs)
    }

    /// Kills the API server.
    pub fn stop_server(&mut self) -> Result<(), TestbedError> {
        self.server.take().map_or(Ok(()), kill)
    }

    /// Starts the API server again and waits until it is ready.
    pub fn start_server(&mut self) -> Result<(), TestbedError> {
        self.stop_server()?;
        self.server = Some(control::start_server(&self.folder, self.rack, &self.programs)?);
        control::await_server(|| self.kubectl())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.hold = None;
        _ = self.shell.wait();
    }
}

const RACK_INIT: &str = include_str!("rack-init.sh");
const NODE_INIT: &str = include_str!("node-init.sh");
const DOWN: &str = include_str!("down.sh");

/// Removes the testbed of a folder, whether it was started completely or not.
pub fn remove(folder: &Path) -> Result<(), TestbedError> {
    run(Command::new("sh").args(["-c", DOWN, "down"]).arg(folder)).map(|_| ())
}

fn prepare(folder: &Path) -> Result<(), TestbedError> {
    let parent = folder.parent().unwrap_or(folder);
    fs::create_dir_all(parent).context(|| format!("cannot create {}", parent.display()))?;
    fs::create_dir(folder).context(|| format!("cannot create {}", folder.display()))?;
    fs::write(folder.join("rack-init.sh"), RACK_INIT)?;
    fs::write(folder.join("node-init.sh"), NODE_INIT)?;
    Ok(())
}

/// Starts the rack. Returns the id of its first process.
fn start_rack(folder: &Path) -> Result<u32, TestbedError> {
    let mut rack = Command::new("unshare");
    rack.args(["--pid", "--net", "--mount", "--ipc", "--fork", "--kill-child", "sh"]);
    rack.arg(folder.join("rack-init.sh")).arg(folder);
    rack.arg(format!("{}/24", rack_v4(1))).arg(format!("{}/64", rack_v6(1)));
    let log = folder.join("rack.log");
    let launcher = start(rack, &log)?;
    fs::write(folder.join("launcher"), launcher.to_string())?;
    await_id(&folder.join("rack"), &log)
}

/// The image of pod sandboxes: a program that sleeps.
fn pause_image() -> Result<Image, TestbedError> {
    let mut image = Image {
        name: PAUSE_IMAGE.into(),
        entrypoint: vec!["/bin/sleep".into(), "infinity".into()],
        user: "65535:65535".into(),
        ..Image::default()
    };
    image.add_program("/bin/sleep", Path::new("/bin/sleep"))?;
    Ok(image)
}
