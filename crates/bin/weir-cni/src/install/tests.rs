use std::{
    collections::BTreeMap,
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::*;

const FLANNEL: &str = r#"{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
"#;

const CALICO: &str = r#"{
	"name": "k8s-pod-network", "cniVersion": "1.0.0",
	"plugins": [{"container_settings": {"allow_ip_forwarding": false}, "datastore_type": "kubernetes", "ipam": {"type": "calico-ipam"},
	"kubernetes": {"k8s_api_root": "https://10.96.0.1:443"}, "mtu": 1440, "type": "calico"},
	{"capabilities": {"bandwidth": true}, "type": "bandwidth"}, {"capabilities": {"portMappings": true}, "snat": true, "type": "portmap"}]}"#;

const CILIUM: &str = r#"
{
  "cniVersion": "0.3.1",
  "name": "cilium",
  "plugins": [
    {
       "type": "cilium-cni",
       "enable-debug": false,
       "log-file": "/var/run/cilium/cilium-cni.log"
    }
  ]
}"#;

/// A single plugin, as in many CNI tutorials.
const BRIDGE: &str = r#"{
    "cniVersion": "0.3.1", "name": "bridge", "type": "bridge", "bridge": "cnio0", "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.200.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}
}
"#;

/// The two folders of a node.
struct Node {
    disk: TempDir,
}

impl Node {
    fn new(files: &[(&str, &str)]) -> Self {
        let node = Node { disk: tempfile::tempdir().unwrap() };
        fs::create_dir(node.disk.path().join("net.d")).unwrap();
        fs::create_dir(node.disk.path().join("bin")).unwrap();
        files.iter().for_each(|(name, text)| fs::write(node.path(name), text).unwrap());
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.disk.path().join("net.d").join(name)
    }

    fn run(
        &self,
        act: fn(&[String], &mut dyn Write) -> Result<(), Failure>,
        more: &[&str],
    ) -> (Result<(), Failure>, String) {
        let folder = |name: &str| self.disk.path().join(name).to_str().unwrap().to_owned();
        let mut words =
            vec!["--conf-dir".to_owned(), folder("net.d"), format!("--bin-dir={}", folder("bin"))];
        words.extend(more.iter().map(|&word| word.to_owned()));
        let mut messages = Vec::new();
        let done = act(&words, &mut messages);
        (
            done,
            String::from_utf8(messages).unwrap().replace(self.disk.path().to_str().unwrap(), "DIR"),
        )
    }

    #[track_caller]
    fn install(&self, more: &[&str]) -> String {
        let (done, messages) = self.run(install, more);
        done.unwrap();
        messages
    }

    #[track_caller]
    fn uninstall(&self) -> String {
        let (done, messages) = self.run(uninstall, &[]);
        done.unwrap();
        messages
    }

    /// All files of the configuration.
    fn files(&self) -> BTreeMap<String, String> {
        let entries = fs::read_dir(self.disk.path().join("net.d")).unwrap().map(Result::unwrap);
        let text = |path: PathBuf| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        entries.map(|one| (one.file_name().into_string().unwrap(), text(one.path()))).collect()
    }

    fn plugins(&self, name: &str) -> Vec<String> {
        let list: Value =
            serde_json::from_str(&fs::read_to_string(self.path(name)).unwrap()).unwrap();
        let types = list["plugins"].as_array().unwrap().iter().map(|one| &one["type"]);
        types.map(|one| one.as_str().unwrap().to_owned()).collect()
    }

    fn program(&self) -> PathBuf {
        self.disk.path().join("bin/weir-cni")
    }
}

#[test]
fn a_list_gets_the_plugin_as_its_last_entry_and_is_restored() {
    for (name, text, plugins) in [
        ("10-flannel.conflist", FLANNEL, vec!["flannel", "portmap", "weir-cni"]),
        ("10-calico.conflist", CALICO, vec!["calico", "bandwidth", "portmap", "weir-cni"]),
        ("05-cilium.conflist", CILIUM, vec!["cilium-cni", "weir-cni"]),
    ] {
        let node = Node::new(&[(name, text), ("99-loopback.conf", "{\"type\": \"loopback\"}")]);
        let before = node.files();
        node.install(&["--timeout", "20", "--on-failure=allow"]);
        assert_eq!(node.plugins(name), plugins);
        let added: Value = serde_json::from_str(&node.files()[name]).unwrap();
        let added = added["plugins"].as_array().unwrap().last().unwrap().to_string();
        assert_eq!(added, r#"{"type":"weir-cni","timeout":20,"onFailure":"allow"}"#);
        let mode = fs::metadata(node.program()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        let installed = node.files();
        let messages = node.install(&["--timeout", "20", "--on-failure=allow"]);
        assert!(
            messages.contains("has the plugin") && messages.contains("the program is at"),
            "{messages}"
        );
        assert_eq!(node.files(), installed, "a second installation changes nothing");
        node.uninstall();
        assert_eq!(node.files(), before, "restored byte for byte");
        assert!(!node.program().exists());
        node.uninstall();
        assert_eq!(node.files(), before);
    }
}

#[test]
fn a_single_plugin_becomes_a_list_and_is_restored() {
    for name in ["10-bridge.conf", "10-bridge.json"] {
        let node = Node::new(&[(name, BRIDGE), ("99-loopback.conf", "{\"type\": \"loopback\"}")]);
        let before = node.files();
        node.install(&[]);
        assert_eq!(node.plugins("10-bridge.conflist"), ["bridge", "weir-cni"]);
        assert!(!node.path(name).exists());
        let list: Value = serde_json::from_str(&node.files()["10-bridge.conflist"]).unwrap();
        assert_eq!((&list["name"], &list["cniVersion"]), (&"bridge".into(), &"0.3.1".into()));
        assert!(
            list["plugins"][0].get("name").is_none() && list["plugins"][0]["bridge"] == "cnio0"
        );
        let installed = node.files();
        node.install(&[]);
        assert_eq!(node.files(), installed, "a second installation changes nothing");
        node.uninstall();
        assert_eq!(node.files(), before, "restored byte for byte");
    }
}

#[test]
fn changes_of_other_programs_are_kept() {
    let node = Node::new(&[("10-flannel.conflist", FLANNEL), ("20-bridge.conf", BRIDGE)]);
    node.install(&[]);
    let changed = node.files()["10-flannel.conflist"].replace("cbr0", "cbr1");
    fs::write(node.path("10-flannel.conflist"), changed).unwrap();
    node.uninstall();
    let files = node.files();
    assert!(files["10-flannel.conflist"].contains("cbr1"));
    assert_eq!(node.plugins("10-flannel.conflist"), ["flannel", "portmap"]);
    assert_eq!(files.len(), 2, "{files:?}");
    // A rewritten file loses the plugin until the next installation.
    node.install(&[]);
    fs::write(node.path("10-flannel.conflist"), FLANNEL).unwrap();
    node.install(&[]);
    assert_eq!(node.plugins("10-flannel.conflist"), ["flannel", "portmap", "weir-cni"]);
    node.uninstall();
    assert_eq!(node.files()["10-flannel.conflist"], FLANNEL);
}

#[test]
fn new_settings_replace_old_ones() {
    let node = Node::new(&[("10-calico.conflist", CALICO)]);
    node.install(&["--timeout", "5"]);
    node.install(&["--socket", "/run/other.sock"]);
    let list: Value = serde_json::from_str(&node.files()["10-calico.conflist"]).unwrap();
    let ours: Vec<String> =
        list["plugins"].as_array().unwrap()[3..].iter().map(Value::to_string).collect();
    assert_eq!(ours, [r#"{"type":"weir-cni","socket":"/run/other.sock"}"#]);
    node.uninstall();
    assert_eq!(node.files()["10-calico.conflist"], CALICO);
}

#[test]
fn an_invalid_file_is_not_changed() {
    let broken = [
        ("00-broken.conflist", "{\"name\": \"x\", \"plugins\": ["),
        ("01-empty.conflist", "{\"cniVersion\": \"1.0.0\", \"name\": \"x\", \"plugins\": []}"),
        ("02-nameless.conf", "{\"cniVersion\": \"1.0.0\", \"type\": \"bridge\"}"),
        ("03-text.conf", "hello"),
        (
            "04-weir.conflist",
            "{\"cniVersion\": \"1.0.0\", \"name\": \"x\", \"plugins\": [{\"type\": 5}]}",
        ),
    ];
    let mut files = broken.to_vec();
    files.push(("10-flannel.conflist", FLANNEL));
    let node = Node::new(&files);
    let before = node.files();
    let messages = node.install(&[]);
    assert_eq!(messages.matches("warning: ").count(), 5, "{messages}");
    for (name, text) in broken {
        assert_eq!(node.files()[name], text);
    }
    assert_eq!(node.plugins("10-flannel.conflist").last().unwrap(), "weir-cni");
    node.uninstall();
    assert_eq!(node.files(), before);
}

#[test]
fn without_a_configuration_install_fails_but_copies_the_program() {
    for files in [&[][..], &[("99-loopback.conf", "{\"name\": \"lo\", \"type\": \"loopback\"}")]] {
        let node = Node::new(files);
        let failure = node.run(install, &[]).0.unwrap_err();
        assert_eq!(failure.status, 1);
        assert!(node.program().exists(), "the program is copied anyway");
    }
    let old = FLANNEL.replace("0.3.1", "0.2.0");
    let node = Node::new(&[("10-flannel.conflist", &old), ("20-calico.conflist", CALICO)]);
    let before = node.files();
    let failure = node.run(install, &[]).0.unwrap_err();
    assert!(failure.what.contains("CNI version 0.2.0"), "{failure:?}");
    assert_eq!(node.files(), before);
}

#[test]
fn symbolic_links_and_permissions_are_kept() {
    let node = Node::new(&[]);
    let real = node.disk.path().join("real.conflist");
    fs::write(&real, FLANNEL).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&real, node.path("10-flannel.conflist")).unwrap();
    node.install(&[]);
    assert!(fs::symlink_metadata(node.path("10-flannel.conflist")).unwrap().is_symlink());
    assert!(fs::read_to_string(&real).unwrap().contains("weir-cni"));
    assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
    node.uninstall();
    assert_eq!(fs::read_to_string(&real).unwrap(), FLANNEL);
    assert!(fs::symlink_metadata(node.path("10-flannel.conflist")).unwrap().is_symlink());
}

#[test]
fn watch_adds_the_plugin_again_and_removes_it_on_exit_if_requested() {
    for (end, left) in [
        (watch::OnExit::Keep, &["flannel", "portmap", "weir-cni"][..]),
        (watch::OnExit::Remove, &["flannel", "portmap"]),
    ] {
        let node = Node::new(&[]);
        let folder = |name: &str| format!("--{name}={}", node.disk.path().join(name).display());
        let words = [
            folder("conf-dir").replace("/conf-dir", "/net.d"),
            folder("bin-dir").replace("/bin-dir", "/bin"),
        ];
        let options = Options::parse(&words).unwrap();
        let stop = AtomicBool::new(false);
        let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !is_so() {
                assert!(begun.elapsed() < Duration::from_secs(60), "not in time: {what}");
                thread::sleep(Duration::from_millis(20));
            }
        };
        let name = "10-flannel.conflist";
        let has = || node.path(name).exists() && conflist::has(&node.files()[name]);
        let mut messages = Vec::new();
        thread::scope(|scope| {
            let watching = scope.spawn(|| watch::watch_until(&options, end, &mut messages, &stop));
            wait_for("the program", &|| node.program().exists());
            // The network plugin starts later and rewrites its configuration several times.
            for _ in 0..3 {
                fs::write(node.path("new"), FLANNEL).unwrap();
                fs::rename(node.path("new"), node.path(name)).unwrap();
                wait_for("the plugin", &has);
            }
            fs::remove_file(node.program()).unwrap();
            wait_for("the program again", &|| node.program().exists());
            stop.store(true, Ordering::Relaxed);
            watching.join().unwrap().unwrap();
        });
        assert_eq!(node.plugins(name), left);
        assert_eq!(node.program().exists(), end == watch::OnExit::Keep);
        let messages = String::from_utf8(messages).unwrap();
        assert!(messages.contains("added the plugin"), "{messages}");
        assert!(
            messages.lines().count() < 20,
            "a message is printed only when it changes: {messages}"
        );
        node.uninstall();
        assert_eq!(node.files()[name], FLANNEL);
    }
}

/// Stops the watch on drop, also when an assertion fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn uninstall_waits_for_install_watch() {
    let name = "10-flannel.conflist";
    let node = Node::new(&[(name, FLANNEL)]);
    let folder = |name: &str| node.disk.path().join(name).display().to_string();
    let words = [format!("--conf-dir={}", folder("net.d")), format!("--bin-dir={}", folder("bin"))];
    let options = Options::parse(&words).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope
            .spawn(|| watch::watch_until(&options, watch::OnExit::Keep, &mut Vec::new(), &stop));
        let _stop = StopOnDrop(&stop);
        let begun = Instant::now();
        while !conflist::has(&node.files()[name]) {
            assert!(begun.elapsed() < Duration::from_secs(60), "not in time");
            thread::sleep(Duration::from_millis(20));
        }
        let soon = Duration::from_millis(100);
        let failure = uninstall_within(&options, soon, &mut Vec::new()).unwrap_err();
        assert!(failure.what.contains("still runs"), "{}", failure.what);
        assert!(conflist::has(&node.files()[name]), "nothing was changed");
        let removing = scope.spawn(|| {
            let timeout = Duration::from_secs(60);
            let done = uninstall_within(&options, timeout, &mut Vec::new());
            done.map(|()| stop.load(Ordering::Relaxed))
        });
        thread::sleep(soon);
        stop.store(true, Ordering::Relaxed);
        watching.join().unwrap().unwrap();
        assert!(removing.join().unwrap().unwrap(), "uninstall did not wait");
    });
    assert_eq!(node.files(), BTreeMap::from([(name.to_owned(), FLANNEL.to_owned())]));
}
