//! The agent with eBPF programs: what an administrator sees of them, and how they go.

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_model::Verdict;

use crate::{
    disturb,
    filter::Filter,
    life::{kill_again_and_again, verdict},
    node::Node,
    schema,
    swap::{CLOSED, DB, OPEN},
};

/// The loaded objects are listed without another program. They stay without an agent, until a cleanup.
pub(crate) fn dump_and_cleanup() {
    let node = Node::with(Filter::Ebpf);
    assert_nothing_is_loaded(&node);
    let mut agent = node.started(&[]);
    assert_eq!((verdict(&node, OPEN), verdict(&node, CLOSED)), (Verdict::Allow, Verdict::Deny));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends(), Some(0));
    let output = node.weir(&["datapath", "dump", "--connections"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let element = format!("address {DB}: pod ");
    let objects = ["link forward4: id ", "  program6: id ", "map flows4: id ", "config: epoch "];
    for part in objects.into_iter().chain([&*element, "denied packets: ", &format!("{DB}:{OPEN}")])
    {
        assert!(text.contains(part), "no {part}: {text}");
    }
    let output = node.weir(&["datapath", "dump", "-o", "json", "--connections"]);
    let dump: Value = serde_json::from_slice(&output.stdout).unwrap();
    schema::check(&dump);
    let rules = &dump["rules"][0];
    let count = |part: &str| rules[part].as_array().unwrap().len();
    assert_eq!((count("links"), count("programs")), (6, 2), "{dump}");
    assert_ne!(rules["denied"]["ingress"], 0, "{dump}");
    let is_db = |one: &Value| one["map"] == "addresses4" && one["key"] == format!("address {DB}");
    assert!(rules["elements"].as_array().unwrap().iter().any(is_db), "{dump}");
    assert_eq!((verdict(&node, OPEN), verdict(&node, CLOSED)), (Verdict::Allow, Verdict::Deny));
    let arguments = node.arguments();
    let mut cleanup: Vec<&str> = arguments.iter().map(String::as_str).collect();
    cleanup.push("--cleanup");
    // Without the datapath of the agent, too.
    for arguments in [&cleanup[..], &["agent", "--cleanup"]] {
        assert_eq!(verdict(&node, CLOSED), Verdict::Deny);
        let cleaned = node.weir(arguments);
        assert_eq!(cleaned.status.code(), Some(0), "{}", String::from_utf8_lossy(&cleaned.stderr));
        assert_nothing_is_loaded(&node);
        assert_eq!(verdict(&node, CLOSED), Verdict::Allow);
        let mut agent = node.started(&[]);
        agent.signal(Signal::TERM);
        assert_eq!(agent.ends(), Some(0));
    }
}

/// `weir render --live` shows an element that another program removed, until an agent restores it.
pub(crate) fn shows_a_removed_element() {
    let node = Node::with(Filter::Ebpf);
    let remove = || node.run_ok(&disturb::command("delete addresses4"));
    let compare = || {
        let folder = node.path().to_str().unwrap();
        let words = ["render", "--live", "--datapath", "ebpf", "--node", "n1", "-f", folder];
        let output = node.weir(&words);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let equal = (Some(0), "no difference\n".to_owned());
    let mut agent = node.started(&[]);
    assert_eq!(compare(), equal);
    // The agent names its datapath.
    let unnamed =
        node.weir(&["render", "--live", "--node", "n1", "-f", node.path().to_str().unwrap()]);
    assert_eq!(String::from_utf8(unnamed.stdout).unwrap(), equal.1);
    remove();
    node.until("the agent restores the element", || {
        let (_, metrics) = node.get("/metrics").unwrap();
        metrics.contains("weir_repairs_total 1\n")
    });
    assert_eq!(compare(), equal);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends(), Some(0));
    remove();
    let (code, difference) = compare();
    assert_eq!(code, Some(1), "{difference}");
    assert!(difference.contains("address "), "{difference}");
    let _agent = node.started(&[]);
    assert_eq!(compare(), equal);
}

/// `/status` and `weir status` say whether conntrack follows connections too, and whether packets take the
/// fast lane.
pub(crate) fn reports_the_packet_path() {
    let node = Node::with(Filter::Ebpf);
    let agent = node.started(&[]);
    assert_eq!(verdict(&node, OPEN), Verdict::Allow);
    wait_for_path(&node, &json!({"conntrack": "idle", "fastLane": "off", "fastLaneLinks": 0}));
    drop(agent);
    let _agent = node.started(&["--fast-lane"]);
    wait_for_path(&node, &json!({"conntrack": "idle", "fastLane": "on", "fastLaneLinks": 2}));
    let text = String::from_utf8(node.weir(&["status"]).stdout).unwrap();
    assert!(text.contains("conntrack   idle\nfast lane   on, 2 links\n"), "{text}");
    // A host firewall makes the kernel follow connections, among them the requests of this test.
    node.nft("add table ip host");
    node.nft("add chain ip host f { type filter hook input priority 0 ; }");
    node.nft("add rule ip host f ct state new counter");
    wait_for_path(&node, &json!({"conntrack": "active", "fastLane": "on", "fastLaneLinks": 2}));
    // So does kube-proxy, which also translates addresses.
    node.nft("add chain ip host nat { type nat hook prerouting priority -100 ; }");
    node.nft(&format!("add rule ip host nat ip daddr 10.96.0.1 udp dport {OPEN} dnat to {DB}"));
    wait_for_path(
        &node,
        &json!({"conntrack": "active", "fastLane": "refused", "fastLaneLinks": 0}),
    );
    assert!(status(&node)["warnings"].to_string().contains("the fast lane is off"));
    assert_eq!((verdict(&node, OPEN), verdict(&node, CLOSED)), (Verdict::Allow, Verdict::Deny));
}

/// The lane stays in force while agents are killed and start again, and packets skip the node.
pub(crate) fn killed_with_a_fast_lane() {
    let node = Node::with(Filter::Ebpf);
    kill_again_and_again(&node, 15, &["--fast-lane"]);
    // No agent runs now.
    node.nft("add table ip count");
    node.nft("add chain ip count f { type filter hook forward priority 0 ; }");
    node.nft("add rule ip count f counter");
    let forwarded = || {
        assert_eq!((verdict(&node, OPEN), verdict(&node, CLOSED)), (Verdict::Allow, Verdict::Deny));
        node.nft("list chain ip count f")
    };
    assert!(forwarded().contains("counter packets 0 "), "without an agent: {}", forwarded());
    let _agent = node.started(&["--fast-lane"]);
    assert!(forwarded().contains("counter packets 0 "), "with an agent: {}", forwarded());
    wait_for_path(&node, &json!({"conntrack": "idle", "fastLane": "on", "fastLaneLinks": 2}));
}

/// On a node without a feature, the agent says which one in a sentence, and which datapath to use instead.
pub(crate) fn names_the_missing_feature() {
    let node = Node::with(Filter::Ebpf);
    for (hidden, expected) in [
        (
            "/sys/fs/bpf",
            "no BPF file system is mounted at /sys/fs/bpf: mount it, or use `--datapath nftables`",
        ),
        (
            "/sys/kernel/btf",
            "this kernel has no type information (/sys/kernel/btf/vmlinux): use `--datapath nftables`",
        ),
    ] {
        let script = format!("mount -t tmpfs none {hidden} && exec \"$0\" \"$@\"");
        let arguments = node.arguments();
        let mut words = vec!["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_weir")];
        words.extend(arguments.iter().map(String::as_str));
        words.push("--once");
        let output = node.run("unshare", &words);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{hidden}: {message}");
        assert!(message.contains(&format!("error: cannot open eBPF: {expected}")), "{message}");
    }
}

fn status(node: &Node) -> Value {
    let (_, status) = node.get("/status").unwrap();
    let status = serde_json::from_str(&status).unwrap();
    schema::check(&status);
    status
}

/// Waits until the agent reports this way of packets.
#[track_caller]
fn wait_for_path(node: &Node, expected: &Value) {
    let is_so = || status(node)["packetPath"] == *expected;
    node.until(&format!("the agent reports {expected}"), is_so);
}

/// Checks that no programs, maps and tables of weir are left.
pub(crate) fn assert_nothing_is_loaded(node: &Node) {
    let nothing = node.weir(&["datapath", "dump"]);
    let message = String::from_utf8_lossy(&nothing.stderr);
    assert_eq!(nothing.status.code(), Some(2), "{message}");
    assert!(message.contains("has no eBPF programs in this network namespace"), "{message}");
    let tables = node.nft("list tables");
    assert!(!tables.contains("weir"), "{tables}");
    let namespace = node.run_ok("stat --dereference --format=%i /proc/self/ns/net");
    let objects = node.run_ok("ls /sys/fs/bpf");
    assert!(!objects.contains(&format!("weir-{}-", namespace.trim())), "{objects}");
}
