//! Pods whose packets the rules do not see. The agent must report them.

use std::{
    fs::File,
    net::UdpSocket,
    os::fd::AsFd,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{node::Node, swap::DB};

/// Two pods with macvlan links, of which no policy allows anything to the second.
const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: mac-1, namespace: shop}
spec: {nodeName: n1, containers: [{name: c}]}
status: {podIP: 10.9.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: mac-2, namespace: shop, labels: {app: mac}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {podIP: 10.9.0.2}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: mac, namespace: shop}
spec:
  podSelector: {matchLabels: {app: mac}}
  policyTypes: [Ingress]
";

/// A network namespace with a macvlan link, as long as its process runs.
struct MacvlanPod(Child);

impl MacvlanPod {
    fn start(node: &Node, name: &str, address: &str) -> Self {
        let sleep = || Command::new("unshare").args(["-n", "sleep", "600"]).spawn().unwrap();
        let pod = MacvlanPod(node.lab.on_node("n1", sleep).unwrap());
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let theirs = format!("/proc/{}/ns/net", pod.0.id());
        let on_node = node.lab.on_node("n1", || std::fs::read_link("/proc/thread-self/ns/net"));
        let on_node = on_node.unwrap().unwrap();
        node.until("the pod has a namespace", || {
            std::fs::read_link(&theirs).is_ok_and(|link| link != own && link != on_node)
        });
        node.run_ok(&format!("ip link add {name} link up0 type macvlan mode bridge"));
        node.run_ok(&format!("ip link set {name} netns {}", pod.0.id()));
        pod.enter(|| {
            for words in
                [format!("addr add {address}/24 dev {name}"), format!("link set {name} up")]
            {
                let mut command = Command::new("ip");
                let status = command.args(words.split(' ')).stdin(Stdio::null()).status();
                assert!(status.unwrap().success(), "{words}");
            }
        });
        pod
    }

    /// Runs a function in the namespace.
    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap();
        let there = || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(there).join().unwrap())
    }
}

impl Drop for MacvlanPod {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn readiness(node: &Node) -> (u16, String) {
    node.get("/readyz").unwrap_or_default()
}

pub(crate) fn macvlan() {
    let node = Node::new();
    node.run_ok("ip link add up0 type ifb");
    node.run_ok("ip addr add 10.9.0.254/24 dev up0");
    node.run_ok("ip link set up0 up");
    let pods =
        [("mac1", "10.9.0.1"), ("mac2", "10.9.0.2")].map(|(a, b)| MacvlanPod::start(&node, a, b));
    node.write("mac.yaml", PODS);
    let agent = node.started(&[]);
    // The policy denies this packet, and it arrives: macvlan bypasses the rules.
    let receiver = pods[1].enter(|| UdpSocket::bind("10.9.0.2:5000").unwrap());
    receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let sent =
        pods[0].enter(|| UdpSocket::bind("10.9.0.1:0").unwrap().send_to(b"x", "10.9.0.2:5000"));
    sent.unwrap();
    assert_eq!(receiver.recv(&mut [0; 8]).unwrap(), 1, "the rules do not see the packet");
    node.until("the agent reports it", || readiness(&node).0 == 503);
    let (_, reasons) = readiness(&node);
    assert!(reasons.contains("over up0") && reasons.contains("shop/mac-2"), "{reasons}");
    assert!(!reasons.contains("mac-1"), "no policy selects it: {reasons}");
    assert!(agent.log().contains("shop/mac-2"), "{}", agent.log());
    let printed = node.weir(&["status"]);
    assert_eq!(printed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&printed.stdout).contains("shop/mac-2"));
    node.write("mac.yaml", "{apiVersion: v1, kind: List, items: []}");
    node.until("the agent is ready again", || readiness(&node).0 == 200);
}

pub(crate) fn undeclared_address() {
    let node = Node::new();
    let agent = node.started(&[]);
    let route = node.run_ok(&format!("ip route get {DB}"));
    let link = route.split_whitespace().skip_while(|word| *word != "dev").nth(1).unwrap();
    let add = || {
        let links = Command::new("ip").args(["-o", "-4", "addr", "show"]).output().unwrap();
        let links = String::from_utf8(links.stdout).unwrap();
        let own = links.lines().find(|line| line.contains(&DB.to_string())).unwrap();
        let own = own.split_whitespace().nth(1).unwrap().trim_end_matches(':').to_owned();
        // The links of a lab use no ARP, unlike those of a CNI plugin.
        let arp = Command::new("ip").args(["link", "set", &own, "arp", "on"]).status();
        assert!(arp.unwrap().success());
        Command::new("ip").args(["addr", "add", "10.7.7.2/32", "dev", &own]).status().unwrap()
    };
    assert!(node.lab.at(DB, add).unwrap().success());
    node.run_ok(&format!("ip link set {link} arp on"));
    node.run_ok(&format!("ip route add 10.7.7.2 dev {link}"));
    let send = || UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", "10.7.7.2:9");
    node.lab.on_node("n1", send).unwrap().unwrap();
    node.until("the agent warns", || {
        node.get("/status").is_some_and(|(_, status)| status.contains("shop/db (10.7.7.2)"))
    });
    assert!(agent.log().contains("addresses that the status of a pod lacks"), "{}", agent.log());
    assert_eq!(readiness(&node).0, 200, "it is a warning");
}
