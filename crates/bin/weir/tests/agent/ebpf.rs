//! The agent with eBPF programs: what an administrator sees of them, and how they go.

use rustix::process::Signal;
use serde_json::Value;
use weir_model::Verdict;

use crate::{
    filter::Filter,
    life::verdict,
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
    let cleaned = node.weir(&cleanup);
    assert_eq!(cleaned.status.code(), Some(0), "{}", String::from_utf8_lossy(&cleaned.stderr));
    assert_nothing_is_loaded(&node);
    assert_eq!(verdict(&node, CLOSED), Verdict::Allow);
}

fn assert_nothing_is_loaded(node: &Node) {
    let nothing = node.weir(&["datapath", "dump"]);
    let message = String::from_utf8_lossy(&nothing.stderr);
    assert_eq!(nothing.status.code(), Some(2), "{message}");
    assert!(message.contains("has no eBPF programs in this network namespace"), "{message}");
}
