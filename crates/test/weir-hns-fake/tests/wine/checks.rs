//! Commands that show the state of a Windows node, and the words of their messages.

use std::process::Output;

use serde_json::Value;

use crate::{API, API_ID, Shop, WEB, WEB_ID, node::WindowsNode};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace("\r\n", "\n")
}

/// The settings of weir's ACLs on an endpoint, without those that HNS adds.
fn applied(node: &WindowsNode, id: &str) -> Vec<Value> {
    let policies = node.policies(id);
    let settings = policies.iter().map(|policy| policy["Settings"].clone());
    let is_ours = |acl: &Value| acl["Id"].as_str().is_some_and(|id| id.starts_with("weir:"));
    comparable(settings.filter(is_ours))
}

/// ACLs in one order and form. The rule for the node also has the addresses of the machine, which
/// only the agent knows.
fn comparable(acls: impl Iterator<Item = Value>) -> Vec<Value> {
    let mut acls: Vec<Value> = acls
        .map(|mut acl| {
            if acl["Id"] == "weir:own-in" {
                acl["RemoteAddresses"] = Value::Null;
            }
            if acl["Protocols"] == "256" {
                acl["Protocols"] = Value::Null;
            }
            let empty = |value: &Value| matches!(value.as_str(), Some("")) || *value == 0;
            let fields = acl.as_object_mut().unwrap();
            fields.retain(|_, value| !value.is_null() && !empty(value));
            acl
        })
        .collect();
    acls.sort_by_key(ToString::to_string);
    acls
}

#[test]
fn the_applied_acls_are_those_that_are_rendered_and_counted() {
    let shop = Shop::new("count");
    shop.pod("web", WEB);
    shop.pod("api", API);
    shop.policy("web", "web", 80);
    let node = WindowsNode::new(&[(WEB_ID, WEB), (API_ID, API)]);
    let agent = node.agent();
    agent.until("web has rules", || !node.rules(WEB_ID).is_empty());

    let output = node.run(&["render", "--datapath", "hcn", "--node", "win-1", "-o", "json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rendered: Value = serde_json::from_slice(&output.stdout).unwrap();
    let web = rendered["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .find(|pod| pod["Pod"] == "count/web")
        .unwrap();
    let policies = web["Policies"].as_array().unwrap();
    let rendered = comparable(policies.iter().map(|policy| policy["Settings"].clone()));
    assert_eq!(rendered, applied(&node, WEB_ID));

    let count = f64::from(u32::try_from(rendered.len()).unwrap());
    assert!(count > 0.0);
    agent.until("the metric counts them", || agent.metric("acl_rules_applied") == Some(count));
    let listing = node.run(&["render", "--datapath", "hcn", "--node", "win-1"]);
    let listing = text(&listing.stdout);
    assert!(listing.contains(&format!("count/web (10.77.0.1): {count} ACLs\n")), "{listing}");
    assert!(listing.contains("count/api (10.77.0.2): no ACLs"), "{listing}");

    shop.delete_policy("web");
    agent.until("the metric is 0", || agent.metric("acl_rules_applied") == Some(0.0));
}

#[test]
fn live_compares_hns_with_the_cluster_and_writes_nothing() {
    let shop = Shop::new("live");
    shop.pod("web", WEB);
    shop.pod("api", API);
    shop.policy("web", "web", 80);
    let node = WindowsNode::new(&[(WEB_ID, WEB), (API_ID, API)]);
    let agent = node.agent();
    agent.until("web has rules", || !node.rules(WEB_ID).is_empty());
    agent.until("ready", || agent.is_ready());
    let live = |arguments: &[&str]| -> Output {
        node.run(&[&["render", "--live"][..], arguments].concat())
    };
    let same = live(&[]);
    assert_eq!(
        (same.status.code(), text(&same.stdout).as_str()),
        (Some(0), "no difference\n"),
        "{}",
        text(&same.stderr)
    );
    agent.kill();

    node.hns(|service| {
        let endpoints = service.list("endpoints");
        let policies = endpoints[0]["Policies"].as_array_mut().unwrap();
        policies.retain(|policy| policy["Settings"]["Id"] != "weir:tail-in");
        for policy in policies {
            if policy["Settings"]["LocalPorts"] == "80" {
                policy["Settings"]["LocalPorts"] = "1-65535".into();
            }
        }
    });
    let writes = node.writes();
    let changed = live(&["--datapath", "hcn"]);
    let difference = text(&changed.stdout);
    assert_eq!(changed.status.code(), Some(1), "{difference}{}", text(&changed.stderr));
    let rule = "Allow protocol 6 remote 10.77.0.2 local-ports";
    assert_eq!(
        difference.lines().collect::<Vec<&str>>(),
        [
            &*format!("live/web, endpoint {WEB_ID}"),
            &*format!("  -  2000 In  {rule} 1-65535  weir:NetworkPolicy/live/web#in.0"),
            &*format!("  +  2000 In  {rule} 80  weir:NetworkPolicy/live/web#in.0"),
            "  +  3000 In  Block  weir:tail-in",
        ]
    );
    let json: Value = serde_json::from_slice(&live(&["-o", "json"]).stdout).unwrap();
    assert_eq!((&json["datapath"], &json["node"]), (&"hcn".into(), &"win-1".into()));
    assert_eq!(json["difference"].as_array().unwrap().len(), 4);
    assert_eq!(node.writes(), writes, "nothing is written");
}

#[test]
fn drops_are_reported_as_unavailable_and_not_as_none() {
    let node = WindowsNode::new(&[]);
    let agent = node.agent();
    agent.until("ready", || agent.is_ready());
    let (_, page) = agent.get("/drops").unwrap();
    let page: Value = serde_json::from_str(&page).unwrap();
    let why = page["dropsUnavailable"].as_str().unwrap_or_default();
    assert!(why.starts_with("HNS does not report them") && why.contains("pktmon"), "{page}");
    let (_, status) = agent.get("/status").unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["warnings"], serde_json::json!([]), "it is so on every Windows node");

    let address = agent.address();
    let output = node.run(&["drops", "--agent", &address]);
    let said = text(&output.stderr);
    assert!(said.contains(why) && !said.contains("no such packet"), "{said}");
    assert_eq!(text(&output.stdout), "");
    let json = node.run(&["drops", "--agent", &address, "-o", "json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["dropsUnavailable"], why);
}

/// Words of another operating system. A message may repeat the arguments.
const FOREIGN: [&str; 14] = [
    "namespace of",
    "network namespace",
    "root",
    "CAP_",
    "Linux",
    "kernel",
    "netfilter",
    "sysctl",
    "SIG",
    "/proc",
    "/sys",
    "/run/",
    "/var/lib",
    "packet filter",
];

#[test]
fn no_message_mentions_another_operating_system() {
    let shop = Shop::new("words");
    shop.pod("web", WEB);
    shop.policy("web", "web", 80);
    let node = WindowsNode::new(&[(WEB_ID, WEB)]);
    let agent = node.agent();
    agent.until("web has rules", || !node.rules(WEB_ID).is_empty());
    let address = agent.address();
    let runs: [(&[&str], &str); 12] = [
        (&["agent", "--source", "kube", "--http", "off"], "runs on this machine"),
        (&["agent", "--cleanup"], "runs on this machine"),
        (&["agent", "--source", "kube", "--http", &address], "runs on this machine"),
        (&["agent", "--source", "kube", "--audit"], "cannot report"),
        (&["agent", "--source", "kube", "--datapath", "nftables"], "use `--datapath hcn`\n"),
        (&["agent", "--source", "kube", "--datapath", "opflex"], "use `--datapath hcn`\n"),
        (&["agent", "--source", "kube", "--accept-forwarded", "auto"], "not supported"),
        (&["render", "--live", "--datapath", "iptables"], "does not run on this system"),
        (&["test", "--datapath", "nftables", "x.yaml"], "cannot try real connections on windows"),
        (&["demo"], "cannot try real connections on windows"),
        (&["drops", "--agent", "127.0.0.1:9"], "no agent answers"),
        (&["status", "--agent", "127.0.0.1:9"], "no agent answers"),
    ];
    for (arguments, expected) in runs {
        let output = node.run(arguments);
        let said = text(&output.stderr) + &text(&output.stdout);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        let foreign: Vec<&&str> = FOREIGN.iter().filter(|word| said.contains(**word)).collect();
        assert!(foreign.is_empty(), "{arguments:?}: {foreign:?} in {said}");
    }
    let (_, status) = agent.get("/status").unwrap();
    let (_, log) = agent.stop();
    let socket = node.run(&["agent", "--source", "kube", "--http", "off", "--cni-socket", "x"]);
    let socket = text(&socket.stderr);
    assert!(socket.contains("there is no CNI plugin for Windows"), "{socket}");
    for said in [status, log, socket] {
        let foreign: Vec<&&str> = FOREIGN.iter().filter(|word| said.contains(**word)).collect();
        assert!(foreign.is_empty(), "{foreign:?} in {said}");
    }
}
