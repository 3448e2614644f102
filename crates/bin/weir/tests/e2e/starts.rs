//! Pods that send their first packet as soon as they start.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use weir_testbed::TestNode;

use crate::{
    pods::{deny_all, namespace, pod},
    site::Site,
};

/// The number of pods. `WEIR_STARTS` sets another.
const STARTS: usize = 30;
/// The number of pods that start at the same time.
const BATCH: usize = 15;
/// Where the pods send to: outside the cluster.
const TARGET: &str = "172.31.77.1:9999";

/// With weir-cni, no packet of a pod leaves it before the pod's policies are in force.
pub(crate) fn with_cni(site: &mut Site) {
    site.helm_upgrade(&[]);
    // The installer writes the CNI configuration after the agent is ready.
    site.wait_until("the CNI plugin is installed", || site.testbed.nodes().iter().all(has_plugin));
    let leaks = leaks(site, "with-cni");
    assert!(leaks.is_empty(), "packets of {} pods leaked: {leaks:?}", leaks.len());
}

/// Without weir-cni there is a window, which this prints. The pods of the tests are denied in the end.
pub(crate) fn without_cni(site: &mut Site) {
    site.helm_upgrade(&["agent.cni.enabled=false"]);
    assert!(!site.testbed.nodes().iter().any(has_plugin), "the upgrade removes the plugin");
    let leaks = leaks(site, "without-cni");
    let last = leaks.values().max().copied().unwrap_or_default();
    eprintln!("without weir-cni: {} pods leaked packets, for up to {last} ms", leaks.len());
}

/// Whether the CNI configuration of a node contains weir-cni.
fn has_plugin(node: &TestNode) -> bool {
    node.run("sh", &["-c", "cat /etc/cni/net.d/*"]).unwrap().contains("weir-cni")
}

/// Starts pods in a namespace that denies all egress. Returns the pods of which a packet left the
/// cluster, with the age of their process at the last one, in milliseconds.
fn leaks(site: &Site, name: &str) -> BTreeMap<String, u64> {
    let starts = env::var("WEIR_STARTS").map_or(STARTS, |text| text.parse().unwrap());
    let collector = Collector::start(site);
    site.apply(&[namespace(name)]);
    // The collector works: a pod without policies reaches it.
    site.apply(&[sender(name, "open", "n1")]);
    site.wait_until("a packet of an open pod arrives", || collector.pods().contains("open"));
    site.apply(&[deny_all(name)]);
    let names: Vec<String> = (0..starts).map(|number| format!("p{number}")).collect();
    for batch in names.chunks(BATCH) {
        let nodes = ["n1", "n2"].into_iter().cycle();
        let pods: Vec<_> =
            batch.iter().zip(nodes).map(|(pod, node)| sender(name, pod, node)).collect();
        site.apply(&pods);
        let names: Vec<&str> = batch.iter().map(String::as_str).collect();
        site.await_pods(name, &names);
        thread::sleep(Duration::from_millis(500));
        let mut delete = vec!["-n", name, "delete", "pod", "--wait=false"];
        delete.extend(&names);
        site.kubectl(&delete);
    }
    site.delete_namespace(name);
    let mut leaks = collector.last.lock().unwrap().clone();
    leaks.remove("open");
    leaks
}

fn sender(namespace: &str, name: &str, node: &str) -> serde_json::Value {
    pod(namespace, name, node, &["/usr/local/bin/helper", "first", name, TARGET])
}

/// Receives the packets outside the cluster.
struct Collector {
    process: Child,
    /// The age of each sender at its last packet.
    last: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Collector {
    fn start(site: &Site) -> Self {
        let mut command = site.testbed.command("bash");
        // The helper is chosen by its name.
        command.args(["-c", r#"exec -a helper "$0" collect "$1""#]);
        command.arg(env::current_exe().unwrap()).arg(TARGET);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let last: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
        let shared = last.clone();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Some((name, age)) = line.split_once(' ') else { continue };
                shared.lock().unwrap().insert(name.into(), age.parse().unwrap_or_default());
            }
        });
        Collector { process, last }
    }

    fn pods(&self) -> BTreeSet<String> {
        self.last.lock().unwrap().keys().cloned().collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
