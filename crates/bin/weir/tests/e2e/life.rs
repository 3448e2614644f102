//! Agents, nodes and the API server that stop, while traffic goes on.

use std::{env, thread, time::Duration};

use serde_json::{Value, json};

use crate::{
    pods::{idle, namespace, pod, policy, server},
    site::{EBPF, IPTABLES, SYSTEM, Site, succeed},
};

/// The values of the chart for a datapath.
type Datapath = &'static [&'static str];
const NFTABLES: Datapath = &[];

/// With this variable, tests that take the same path with every datapath run with all of them.
const ALL_DATAPATHS: &str = "WEIR_ALL_DATAPATHS";

/// Pods that connect all the time: to a server that admits them, and to one that does not.
pub(crate) struct Steady {
    name: &'static str,
}

impl Steady {
    /// Those of the last test, or new ones with this name.
    fn resume(site: &mut Site, name: &'static str, datapath: Datapath) -> Self {
        site.helm_upgrade(datapath);
        site.steady.take().unwrap_or_else(|| Steady::start(site, name))
    }

    fn start(site: &Site, name: &'static str) -> Self {
        let admits = |allowed: &str| {
            json!({
                "podSelector": {"matchLabels": {"pod": allowed}},
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": "client"}}}]}],
            })
        };
        let closed =
            json!({"podSelector": {"matchLabels": {"pod": "closed"}}, "policyTypes": ["Ingress"]});
        site.apply(&[
            namespace(name),
            policy(name, "open", admits("open")),
            policy(name, "closed", closed),
            server(name, "open", "n2", 8080),
            server(name, "closed", "n2", 8080),
        ]);
        site.await_pods(name, &["open", "closed"]);
        let [open, closed] =
            ["open", "closed"].map(|pod| format!("{}:8080", site.address(name, pod)));
        // The policies are in force before the client starts.
        site.apply(&[idle(name, "other", "n1")]);
        site.await_pods(name, &["other"]);
        site.wait_until("both policies are in force", || {
            site.connect_from(name, "other", &[format!("TCP/{open}"), format!("TCP/{closed}")])
                == "dd"
        });
        let client =
            pod(name, "client", "n1", &["/usr/local/bin/helper", "steady", &open, &closed]);
        site.apply(&[client]);
        site.await_pods(name, &["client"]);
        let steady = Steady { name };
        site.wait_until("connections succeed", || steady.count(site) > 0);
        steady
    }

    fn log(&self, site: &Site) -> String {
        site.kubectl(&["-n", self.name, "logs", "client"])
    }

    fn count(&self, site: &Site) -> u64 {
        let log = self.log(site);
        let counts = log.lines().filter_map(|line| line.strip_prefix("count "));
        counts.filter_map(|count| count.parse().ok()).max().unwrap_or_default()
    }

    /// Fails if a connection had a wrong verdict, or if there were none since a count.
    #[track_caller]
    fn assert_right(&self, site: &Site, since: u64) {
        site.wait_until("connections go on", || self.count(site) > since);
        let log = self.log(site);
        let wrong: Vec<&str> = log.lines().filter(|line| line.starts_with("WRONG")).collect();
        // The logs of the agents name the packets that they dropped.
        assert!(wrong.is_empty(), "{wrong:#?}\n{}", site.agent_logs());
    }

    fn end(self, site: &Site) {
        site.delete_namespace(self.name);
    }
}

pub(crate) fn replaced_and_killed_agents(site: &mut Site) {
    replace_and_kill(site, "upgrade", NFTABLES);
}

pub(crate) fn with_ebpf(site: &mut Site) {
    replace_and_kill(site, "life-ebpf", &[EBPF]);
    end_or_go_on(site, "life-ebpf", &[EBPF]);
}

pub(crate) fn with_iptables(site: &mut Site) {
    replace_and_kill(site, "life-iptables", &[IPTABLES]);
    end_or_go_on(site, "life-iptables", &[IPTABLES]);
}

/// The trials that follow for nftables, if they are requested.
fn end_or_go_on(site: &mut Site, name: &'static str, datapath: Datapath) {
    if env::var_os(ALL_DATAPATHS).is_some() {
        stop_api_server(site, name, datapath);
        restart_node(site, datapath);
    }
    if let Some(steady) = site.steady.take() {
        steady.end(site);
    }
}

/// A changed DaemonSet replaces one agent after the other, the kernel kills agents that exceed their
/// memory limit, and a rollback replaces all again. Rules stay in force, and no verdict changes.
fn replace_and_kill(site: &mut Site, name: &'static str, datapath: Datapath) {
    let steady = Steady::resume(site, name, datapath);
    // As in the chart; this alone replaces no agent.
    let one_by_one = "agent.updateStrategy.rollingUpdate.maxUnavailable=10%";
    site.helm_upgrade(&[datapath, &[one_by_one]].concat());
    let before = steady.count(site);
    site.helm_upgrade(&[datapath, &[one_by_one, "agent.logFormat=text"]].concat());
    steady.assert_right(site, before);

    let before = steady.count(site);
    exceed_memory(site, &steady);
    steady.assert_right(site, before);

    let before = steady.count(site);
    succeed(site.helm().args(["rollback", "weir", "--namespace", SYSTEM]));
    site.forget_values();
    site.rollout("weir-agent");
    let limit = site.field(SYSTEM, "daemonset/weir-agent", MEMORY_LIMIT);
    assert_ne!(limit, "5Mi", "the rollback restores the limit");
    steady.assert_right(site, before);
    site.steady = Some(steady);
}

const MEMORY_LIMIT: &str = ".spec.template.spec.containers[0].resources.limits.memory";

/// Sets a memory limit that the agents exceed, and waits until the kernel has killed both.
fn exceed_memory(site: &Site, steady: &Steady) {
    // An agent of a small cluster needs little memory, so the cluster grows.
    let limit = r#"{"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}}, "template": {"spec":
        {"containers": [{"name": "agent", "resources": {"requests": {"memory": "5Mi"}, "limits": {"memory": "5Mi"}}}]}}}}"#;
    site.kubectl(&["-n", SYSTEM, "patch", "daemonset", "weir-agent", "-p", limit]);
    site.forget_values();
    site.apply(&large_policies(steady.name));
    site.wait_until("an agent of each node was killed", || {
        let states = "jsonpath={range .items[*]}{.status.containerStatuses[*]}{'\\n'}{end}";
        let pods = site.kubectl(&["-n", SYSTEM, "get", "pods", "-o", states]);
        pods.lines().filter(|pod| pod.contains("OOMKilled")).count() >= 2
    });
    // One request for all of them: kubectl spreads many over time.
    let policies = format!("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", steady.name);
    site.kubectl(&["delete", "--raw", &format!("{policies}?labelSelector=size%3Dlarge")]);
}

/// Policies that select no pod, about 3 MB in all.
fn large_policies(namespace: &str) -> Vec<Value> {
    let block = |number: usize| json!({"ipBlock": {"cidr": format!("10.1.{}.{}/32", number / 250, number % 250)}});
    let blocks: Vec<Value> = (0..3000).map(block).collect();
    let spec =
        json!({"podSelector": {"matchLabels": {"pod": "none"}}, "ingress": [{"from": blocks}]});
    (0..20)
        .map(|number| {
            let mut policy = policy(namespace, &format!("large-{number}"), spec.clone());
            policy["metadata"]["labels"] = json!({"size": "large"});
            policy
        })
        .collect()
}

/// The time without an API server. `WEIR_OUTAGE_SECONDS` sets another.
const OUTAGE_SECONDS: u64 = 10;

/// Policies stay in force without the API server, and changes take effect when it is back.
pub(crate) fn api_server_down(site: &mut Site) {
    stop_api_server(site, "outage", NFTABLES);
}

fn stop_api_server(site: &mut Site, name: &'static str, datapath: Datapath) {
    let steady = Steady::resume(site, name, datapath);
    let before = steady.count(site);
    site.testbed.stop_server().unwrap();
    let seconds = env::var("WEIR_OUTAGE_SECONDS").map_or(OUTAGE_SECONDS, |s| s.parse().unwrap());
    thread::sleep(Duration::from_secs(seconds));
    site.testbed.start_server().unwrap();
    steady.assert_right(site, before);
    let target = format!("TCP/{}:8080", site.address(steady.name, "open"));
    let anyone = json!({"podSelector": {}, "ingress": [{}], "policyTypes": ["Ingress"]});
    site.apply(&[policy(steady.name, "anyone", anyone)]);
    site.wait_until("the new policy is in force", || {
        site.connect_from(steady.name, "other", std::slice::from_ref(&target)) == "a"
    });
    steady.end(site);
}

/// All processes of a node are killed, and its network is gone. With weir-cni, a pod that starts on the
/// restarted node has its policies.
pub(crate) fn node_restart(site: &mut Site) {
    restart_node(site, NFTABLES);
}

fn restart_node(site: &mut Site, datapath: Datapath) {
    site.helm_upgrade(datapath);
    if let Some(steady) = site.steady.take() {
        steady.end(site);
    }
    let name = "restart";
    let closed =
        json!({"podSelector": {"matchLabels": {"pod": "closed"}}, "policyTypes": ["Ingress"]});
    site.apply(&[
        namespace(name),
        policy(name, "closed", closed),
        server(name, "closed", "n2", 8080),
        server(name, "open", "n2", 8080),
        idle(name, "client", "n1"),
    ]);
    let pods = ["closed", "open", "client"];
    site.await_pods(name, &pods);
    let targets =
        |site: &Site| ["closed", "open"].map(|pod| format!("TCP/{}:8080", site.address(name, pod)));
    assert_eq!(site.connect_from(name, "client", &targets(site)), "da");
    let uid = site.field(name, "pod/closed", ".status.containerStatuses[0].containerID");
    site.testbed.kill_node(1).unwrap();
    site.testbed.start_node(1).unwrap();
    site.wait_until("the pods run again", || {
        let now = site.field(name, "pod/closed", ".status.containerStatuses[0].containerID");
        !now.is_empty() && now != uid
    });
    site.await_pods(name, &pods);
    site.rollout("weir-agent");
    site.wait_until("the open pod is reachable", || {
        let verdicts = site.connect_from(name, "client", &targets(site));
        assert!(verdicts.starts_with('d'), "the closed pod was reached after the restart");
        verdicts == "da"
    });
    site.delete_namespace(name);
}
