//! Installing and uninstalling, with helm and with `kubectl weir`.

use std::path::Path;

use serde_json::{Value, json};

use crate::{
    pods::{idle, namespace, policy, with_shell},
    site::{EBPF, IPTABLES, SYSTEM, Site, succeed},
};

/// The policy that decides: only `friend` reaches `target`.
pub(crate) fn default_deny(site: &mut Site) {
    let name = "chart";
    let (one, two) = ("n1", "n2");
    let only_friend = json!({
        "podSelector": {"matchLabels": {"pod": "target"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": "friend"}}}]}],
    });
    site.apply(&[
        namespace(name),
        idle(name, "target", two),
        with_shell(name, "friend", one),
        with_shell(name, "other", one),
        idle(name, "neighbour", two),
        policy(name, "only-friend", only_friend),
    ]);
    site.await_pods(name, &["target", "friend", "other", "neighbour"]);
    let probe = |from: &str, family: &str, expect: &str| {
        json!({"from": {"pod": format!("{name}/{from}")}, "to": {"pod": format!("{name}/target")},
            "port": 80, "ipFamily": family, "expect": expect})
    };
    let probes: Vec<_> = ["IPv4", "IPv6"]
        .into_iter()
        .flat_map(|family| {
            [("friend", "allow"), ("other", "deny"), ("neighbour", "deny")]
                .map(|(from, expect)| probe(from, family, expect))
        })
        .collect();
    let tests = json!({"name": "only the friend reaches the target", "probes": probes});

    // Without weir, nothing enforces the policy, and the test says so.
    let (passed, output) = site.test_live(&tests);
    assert!(!passed && output.contains("2 passed, 4 failed"), "{output}");
    assert!(output.contains("packets pass, although the policies"), "{output}");

    site.helm_upgrade(&[]);
    let (passed, output) = site.test_live(&tests);
    assert!(passed && output.contains("6 passed, 0 failed"), "{output}");
    // The same from existing containers. That of the neighbour has no shell.
    let (passed, output) = site.test_live_by_exec(&tests);
    assert!(!passed && output.contains("4 passed, 2 failed"), "{output}");
    let unknown = "the container of chart/neighbour cannot try it: it printed no result";
    assert!(output.contains(unknown), "{output}");
    site.delete_namespace(name);
}

/// The rules of a node, its eBPF programs, and the files that weir may change.
fn traces(site: &Site) -> Vec<String> {
    site.testbed
        .nodes()
        .iter()
        .map(|node| {
            let read = |script: &str| node.run("sh", &["-c", script]).unwrap();
            let tables = read(
                "nft list tables | grep -v 'table ip6\\? \\(filter\\|nat\\|mangle\\|raw\\)'; true",
            );
            let chains = read("iptables-save; ip6tables-save");
            let ours = |line: &&str| {
                ["WEIR", "KUBE-ROUTER", "KUBE-NWPLCY", "KUBE-POD-FW"]
                    .iter()
                    .any(|word| line.contains(word))
            };
            let chains: Vec<&str> = chains.lines().filter(ours).collect();
            let files = read(
                "ls -A /opt/cni/bin /etc/cni/net.d; cat /etc/cni/net.d/*; ls -A /run/weir 2>/dev/null; true",
            );
            let sets = read("ipset list -name 2>/dev/null | grep -v ^KUBE-; true");
            let programs = read("ls -d /sys/fs/bpf/weir-* 2>/dev/null; true");
            format!("{tables}{chains:?}{files}{sets}{programs}")
        })
        .collect()
}

/// Fails if a node has no trace of weir.
#[track_caller]
fn assert_installed(site: &Site) {
    for node in traces(site) {
        assert!(node.contains("weir-cni") && node.contains("agent.sock"), "{node}");
    }
}

/// Fails if a node has a trace of weir, or if pods no longer start in a new namespace of this name.
#[track_caller]
fn assert_gone(site: &Site, name: &str) {
    for node in traces(site) {
        let words = ["weir", "kube-router", "agent.sock"];
        assert!(!words.iter().any(|word| node.to_lowercase().contains(word)), "{node}");
    }
    site.apply(&[namespace(name), idle(name, "one", "n1"), idle(name, "two", "n2")]);
    site.await_pods(name, &["one", "two"]);
    site.delete_namespace(name);
}

pub(crate) fn uninstall_ebpf(site: &mut Site) {
    site.helm_upgrade(&[EBPF]);
    for node in traces(site) {
        assert!(node.contains("/sys/fs/bpf/weir-"), "{node}");
    }
    uninstall(site, EBPF, "after-ebpf");
}

pub(crate) fn uninstall_iptables(site: &mut Site) {
    uninstall(site, IPTABLES, "after-iptables");
}

/// Cleanup and uninstall, as the guide says, leave no rule, program, file or CNI entry.
fn uninstall(site: &Site, datapath: &str, name: &str) {
    // As the test before it, so that a run of all tests installs nothing.
    site.helm_upgrade(&[datapath]);
    assert_installed(site);
    site.helm_upgrade(&[datapath, "cleanup.enabled=true"]);
    site.rollout("weir-cleanup");
    succeed(site.helm().args(["uninstall", "weir", "--namespace", SYSTEM, "--wait"]));
    site.forget_values();
    site.kubectl(&["delete", "namespace", SYSTEM]);
    assert_gone(site, name);
}

/// The commands of the guide without Helm: audit, enforce, removal.
pub(crate) fn kubectl_weir(site: &mut Site) {
    let name = "first";
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/first-cluster");
    let [manifests, tests] = ["manifests.yaml", "tests.yaml"].map(|name| example.join(name));
    site.kubectl(&["apply", "-f", manifests.to_str().unwrap()]);
    site.await_pods(name, &["server", "client", "other"]);
    let run = |words: &str| {
        let (status, output) = site.kubectl_weir(words);
        assert_eq!(status, Some(0), "kubectl weir {words}: {output}");
        output
    };
    let nodes = |output: &str, cells: &[&str]| {
        for node in ["n1", "n2"] {
            let line = output.lines().find(|line| line.starts_with(node));
            let line = line.unwrap_or_else(|| panic!("{output}"));
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[1..=cells.len()], *cells, "{output}");
        }
    };

    // One node has a wrong setting and rules of another engine.
    let on_first = |script: &str| site.testbed.nodes()[0].run("sh", &["-c", script]).unwrap();
    on_first("nft add table ip calico; echo 0 >/proc/sys/net/bridge/bridge-nf-call-iptables");
    let version = env!("CARGO_PKG_VERSION");
    let (status, output) = site.kubectl_weir("install --audit --timeout 25");
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("node n1: net.bridge.bridge-nf-call-iptables is 0"), "{output}");
    assert!(output.contains("node n1: rules of Calico also filter packets of pods"), "{output}");
    assert!(output.contains("checked nodes: 1 of 2 have all that nftables needs"), "{output}");
    assert!(output.contains("connections that the policies of the cluster deny"), "{output}");
    assert!(output.contains("first/server"), "{output}");
    nodes(&output, &[version, "nftables", "audit"]);
    on_first("nft delete table ip calico; echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables");
    site.wait_until("both nodes are ready", || site.kubectl_weir("status").0 == Some(0));
    nodes(&run("status"), &[version, "nftables", "audit", "yes", "yes", "0"]);
    assert_installed(site);
    let (passed, output) = site.test_live_file(&tests);
    assert!(!passed && output.contains("1 passed, 3 failed"), "audit mode: {output}");
    site.wait_until("the nodes report packets", || {
        let status: Value = serde_json::from_str(&run("status -o json")).unwrap();
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().filter_map(|node| node["drops"].as_u64()).sum::<u64>() >= 3
    });

    nodes(&run("upgrade --audit=false"), &[version, "nftables", "enforce", "yes", "yes", "0"]);
    let (passed, output) = site.test_live_file(&tests);
    assert!(passed, "{output}");
    site.delete_namespace(name);

    let output = run("uninstall");
    assert!(output.contains("deleted everything"), "{output}");
    site.wait_until("the namespace of the agents is gone", || {
        let names = site.kubectl(&["get", "namespaces", "-o", "name"]);
        !names.contains(SYSTEM)
    });
    assert_gone(site, "after-plugin");
}
