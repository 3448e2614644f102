//! Policy tests of `cases/`, between real containers.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};

use crate::{
    pods::{idle, namespace},
    site::{EBPF, IPTABLES, Site},
};

/// The namespaces and pods of the upstream tests.
const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const PODS: [&str; 3] = ["a", "b", "c"];

/// The tests, by a part of their name. Each takes some seconds, so this is a selection: selectors of both
/// kinds, ports by number and name, both directions, several policies, UDP.
const CHOSEN: [&str; 6] = [
    "netpol: should enforce policy based on PodSelector and NamespaceSelector",
    "netpol: should enforce policy based on Ports",
    "stacked policies with overlapping podSelectors [port 80 a",
    "netpol: should allow ingress access from namespace on one named port",
    "netpol: should work with Ingress, Egress specified together",
    "netpol-udp: should enforce policy based on Ports",
];

/// The most attempts at a test.
const MAX_TRIES: usize = 3;

pub(crate) fn with_nftables(site: &mut Site) {
    site.helm_upgrade(&[]);
    run(site);
}

pub(crate) fn with_iptables(site: &mut Site) {
    site.helm_upgrade(&[IPTABLES]);
    run(site);
}

pub(crate) fn with_ebpf(site: &mut Site) {
    site.helm_upgrade(&[EBPF]);
    run(site);
}

fn run(site: &Site) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../cases/upstream/k8s-e2e.json");
    let all: Vec<Value> = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let find = |part: &&str| {
        let is_chosen = |case: &&Value| case["name"].as_str().unwrap().contains(part);
        all.iter().find(is_chosen).unwrap_or_else(|| panic!("no case {part}"))
    };
    create_pods(site, CHOSEN.iter().map(find));
    for case in CHOSEN.iter().map(find) {
        let name = case["name"].as_str().unwrap();
        let policies = case["policies"].as_array().unwrap();
        site.apply(policies);
        let tests = json!({"name": name, "probes": case["probes"]});
        let mut output = String::new();
        // Policies take effect after a moment, which a busy machine makes longer. Upstream tries again too.
        let passed = (0..MAX_TRIES).any(|_| {
            let (passed, text) = site.test_live(&tests);
            if !passed {
                eprintln!("{name}: {text}");
            }
            output = text;
            passed
        });
        assert!(passed, "{name}: {output}\n{}", site.agent_logs());
        for policy in policies {
            let of = |key: &str| policy["metadata"][key].as_str().unwrap();
            site.kubectl(&["-n", of("namespace"), "delete", "networkpolicy", of("name")]);
        }
    }
}

/// Creates the pods that all cases share, with the named ports of any. They stay for the other datapaths.
fn create_pods<'a>(site: &Site, cases: impl Iterator<Item = &'a Value>) {
    let mut ports: BTreeMap<String, Value> = BTreeMap::new();
    let pods = cases.flat_map(|case| case["pods"].as_array().unwrap());
    for port in pods.flat_map(|pod| pod["ports"].as_array().into_iter().flatten()) {
        ports.insert(port["name"].to_string(), port.clone());
    }
    let ports: Vec<&Value> = ports.values().collect();
    let mut objects: Vec<Value> = NAMESPACES.iter().map(|name| namespace(name)).collect();
    for (at, space) in NAMESPACES.iter().enumerate() {
        for (number, name) in PODS.iter().enumerate() {
            let node = ["n1", "n2"][(at + number) % 2];
            let mut pod = idle(space, name, node);
            pod["spec"]["containers"][0]["ports"] = json!(ports);
            objects.push(pod);
        }
    }
    site.apply(&objects);
    for name in NAMESPACES {
        site.await_pods(name, &PODS);
    }
}
