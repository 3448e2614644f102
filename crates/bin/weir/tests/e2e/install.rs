//! Installing and uninstalling the chart.

use serde_json::json;

use crate::{
    pods::{idle, namespace, policy},
    site::{SYSTEM, Site, succeed},
};

/// The policy that decides: only `friend` reaches `target`.
pub(crate) fn default_deny(site: &mut Site) {
    let name = "first";
    let (one, two) = ("n1", "n2");
    let only_friend = json!({
        "podSelector": {"matchLabels": {"pod": "target"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": "friend"}}}]}],
    });
    site.apply(&[
        namespace(name),
        idle(name, "target", two),
        idle(name, "friend", one),
        idle(name, "other", one),
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
    site.delete_namespace(name);
}

/// The files on the disk of a node that weir may change, and its rules. The socket in `/run` is in memory.
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
            let files = read("ls -A /opt/cni/bin /etc/cni/net.d; cat /etc/cni/net.d/*; true");
            format!(
                "{tables}{chains:?}{files}{}",
                read("ipset list -name 2>/dev/null | grep -v ^KUBE-; true")
            )
        })
        .collect()
}

/// Cleanup and uninstall, as the guide says, leave no rule, file or CNI entry.
pub(crate) fn uninstall(site: &mut Site) {
    // The other tests may have left an agent.
    for (name, values) in
        [("after-nftables", &[][..]), ("after-iptables", &["agent.datapath=iptables"])]
    {
        site.helm_upgrade(values);
        let installed = traces(site);
        assert!(installed.iter().all(|node| node.contains("weir-cni")), "{installed:#?}");
        let cleanup = [values, &["cleanup.enabled=true"]].concat();
        site.helm_upgrade(&cleanup);
        site.rollout("weir-cleanup");
        succeed(site.helm().args(["uninstall", "weir", "--namespace", SYSTEM, "--wait"]));
        for node in traces(site) {
            assert!(
                !node.to_lowercase().contains("weir") && !node.contains("KUBE-ROUTER"),
                "{node}"
            );
        }
        // Pods start again without weir.
        site.apply(&[namespace(name), idle(name, "one", "n1"), idle(name, "two", "n2")]);
        site.await_pods(name, &["one", "two"]);
        site.delete_namespace(name);
    }
}
