//! What the API server shows about nodes before an agent runs on them. The agents report the rest.

use std::io::Write;

use serde_json::Value;
use weir_kube::AdminClient;

use super::explain;
use crate::{failure::Failure, present::plain::Plain};

/// The oldest kernel, as docs/guides/install.md says.
const MIN_KERNEL: (u32, u32) = (5, 4);

/// DaemonSets of programs that enforce policies too.
const ENGINES: [(&str, &str); 8] = [
    ("antrea-agent", "Antrea"),
    ("azure-npm", "Azure Network Policy Manager"),
    ("calico-node", "Calico"),
    ("canal", "Calico (Canal)"),
    ("cilium", "Cilium"),
    ("kube-network-policies", "kube-network-policies"),
    ("kube-router", "kube-router"),
    ("weave-net", "Weave Net"),
];

/// Writes what nodes lack and which other engines run. Fails if no node can run an agent.
pub(crate) fn check(client: &AdminClient, out: &mut dyn Write) -> anyhow::Result<()> {
    let nodes = client.list("/api/v1/nodes").map_err(explain)?;
    let mut usable = 0;
    for node in &nodes {
        match node_problem(node) {
            None => usable += 1,
            Some(problem) => {
                let name = node["metadata"]["name"].as_str().unwrap_or_default();
                writeln!(out, "node {}: {}", Plain(name), Plain(problem))?;
            }
        }
    }
    let sets = client.list("/apis/apps/v1/daemonsets").map_err(explain)?;
    for line in engines(&sets) {
        writeln!(out, "{}", Plain(line))?;
    }
    if usable == 0 {
        let what = "the cluster has no node on which an agent can run";
        return Err(Failure::new(what, "weir needs Linux nodes with kernel 5.4 or later").into());
    }
    Ok(())
}

/// Why no agent can run on a node.
fn node_problem(node: &Value) -> Option<String> {
    let info = &node["status"]["nodeInfo"];
    let text = |name: &str| info[name].as_str().unwrap_or_default();
    if text("operatingSystem") == "windows" {
        return Some("Windows nodes need the chart, with windows.enabled=true".into());
    }
    let kernel = text("kernelVersion");
    let is_old = parse_kernel(kernel).is_some_and(|version| version < MIN_KERNEL);
    is_old.then(|| format!("kernel {kernel} is older than 5.4, and may lack nftables features"))
}

/// The first two numbers of a kernel version.
fn parse_kernel(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// A line for each other engine.
fn engines(sets: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |set: &Value| {
        let (namespace, name) =
            (text(&set["metadata"]["namespace"]), text(&set["metadata"]["name"]));
        let (_, engine) = ENGINES.iter().find(|(known, _)| *known == name)?;
        Some(format!(
            "{engine} (DaemonSet {namespace}/{name}) may also enforce policies: a packet passes only \
             if both allow it; turn off its enforcement last"
        ))
    };
    sets.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_with_old_kernels_or_windows_are_named() {
        let node = |system: &str, kernel: &str| {
            let info = json!({"operatingSystem": system, "kernelVersion": kernel});
            node_problem(&json!({"status": {"nodeInfo": info}}))
        };
        assert_eq!(node("linux", "5.4.0-generic"), None);
        assert_eq!(node("linux", "6.18.44-gke"), None);
        assert_eq!(node("linux", ""), None, "an unknown kernel is no reason to refuse");
        assert!(node("linux", "4.18.0-553.el8").unwrap().contains("4.18.0-553.el8"));
        assert!(node("windows", "10.0.20348.1").unwrap().contains("chart"));
    }

    #[test]
    fn other_engines_are_named() {
        let set = |name: &str| json!({"metadata": {"name": name, "namespace": "kube-system"}});
        let lines = engines(&[set("calico-node"), set("kube-proxy")]);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("Calico (DaemonSet kube-system/calico-node)"), "{lines:?}");
    }
}
