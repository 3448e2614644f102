//! Policies, restarts and cleanup of an agent on a Windows node.

use std::fs;

use serde_json::{Value, json};

use crate::{API, API_ID, Shop, WEB, WEB_ID, node::WindowsNode};

fn rules(shop: &str, policy: &str) -> [String; 5] {
    let mut rules = [
        format!("weir:NetworkPolicy/{shop}/{policy}#in.0"),
        "weir:own-in".into(),
        "weir:own-out".into(),
        "weir:tail-in".into(),
        "weir:tail-out".into(),
    ];
    rules.sort();
    rules
}

/// The settings of the ACL of a policy.
fn granted(node: &WindowsNode, policy: &str) -> Value {
    let policies = node.policies(WEB_ID);
    let is_it = |acl: &&Value| acl["Settings"]["Id"].as_str().is_some_and(|id| id.contains(policy));
    policies.iter().find(is_it).cloned().unwrap_or_default()["Settings"].clone()
}

#[test]
fn rules_follow_changes_of_policies_and_labels() {
    let shop = Shop::new("life");
    shop.pod("web", WEB);
    shop.pod("api", API);
    let node = WindowsNode::new(&[(WEB_ID, WEB), (API_ID, API)]);
    let agent = node.agent();
    agent.until("ready", || agent.is_ready());
    assert_eq!(node.writes(), 0, "no policy selects a pod");

    shop.policy("web", "web", 80);
    let wanted = rules("life", "web");
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    agent.until_rules(WEB_ID, &wanted);
    let rule = granted(&node, "life/web");
    let part = |name: &str| rule[name].as_str().unwrap_or_default().to_owned();
    assert_eq!(["Action", "Direction", "Protocols"].map(part), ["Allow", "In", "6"]);
    assert_eq!(
        ["RemoteAddresses", "LocalPorts", "RuleType"].map(part),
        ["10.77.0.2", "80", "Switch"]
    );
    assert_eq!(rule["Priority"], 2000);
    assert_eq!(node.rules(API_ID), [""; 0], "only selected pods have rules");
    let own = granted(&node, "own-in")["RemoteAddresses"].as_str().unwrap().to_owned();
    assert!(own.split(',').any(|address| address == "192.168.77.1"), "{own}");

    shop.change("web", "web", 8080);
    agent.until("the port has changed", || granted(&node, "life/web")["LocalPorts"] == "8080");
    shop.label("api", "other");
    agent.until("no peer is allowed", || granted(&node, "life/web").is_null());
    shop.label("api", "api");
    agent.until_rules(WEB_ID, &wanted);
    shop.label("web", "other");
    agent.until_rules(WEB_ID, &[]);
    shop.label("web", "web");
    agent.until_rules(WEB_ID, &wanted);

    assert_eq!(agent.metric("networkpolicies_watched"), Some(1.0));
    agent.until("the metric counts the rules", || agent.metric("acl_rules_applied") == Some(7.0));
    assert_eq!(agent.metric("reconciliation_errors_total"), Some(0.0));
    let writes = node.writes();
    let (status, log) = agent.stop();
    assert!(
        status.success() && log.contains("stopped; the rules stay in force"),
        "{status}: {log}"
    );
    assert_eq!(node.rules(WEB_ID).len(), 5, "the rules stay");

    let agent = node.agent();
    agent.until("ready", || agent.is_ready());
    assert_eq!(node.writes(), writes, "unchanged rules are not written again");
    shop.delete_policy("web");
    agent.until_rules(WEB_ID, &[]);
    let left = node.policies(WEB_ID);
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(
        left[0],
        json!({"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.96.0.0/12"]}})
    );
    node.hns(|service| {
        let errors: Vec<&Value> =
            service.list("calls").iter().filter(|call| !call["error"].is_null()).collect();
        assert!(errors.is_empty(), "every handle is closed once: {errors:?}");
    });
}

#[test]
fn an_agent_removes_the_stale_rules_of_a_killed_one() {
    let shop = Shop::new("orphans");
    shop.pod("web", WEB);
    shop.pod("api", API);
    shop.policy("all", "web", 80);
    shop.policy("api", "api", 81);
    let node = WindowsNode::new(&[(WEB_ID, WEB), (API_ID, API)]);
    let agent = node.agent();
    agent.until("both have rules", || {
        !node.rules(WEB_ID).is_empty() && !node.rules(API_ID).is_empty()
    });
    agent.until("the state file exists", || node.tracker().exists());
    let tracker: Value = serde_json::from_slice(&fs::read(node.tracker()).unwrap()).unwrap();
    assert_eq!(tracker["policies"]["orphans/all"][0]["EndpointID"], WEB_ID);
    agent.kill();

    // Meanwhile a policy is deleted, a pod is deleted but its endpoint stays, and the state file is
    // corrupted.
    shop.delete_policy("all");
    crate::cluster().delete(&format!("{}/api", shop.pods())).unwrap();
    fs::write(node.tracker(), "{ broken").unwrap();
    let before = node.rules(API_ID);
    assert!(!before.is_empty(), "rules stay in force without an agent");
    let agent = node.agent();
    agent.until_rules(WEB_ID, &[]);
    agent.until_rules(API_ID, &[]);
    agent.until_logged("cannot be read");
    let broken = node.tracker().with_extension("json.broken");
    assert_eq!(fs::read_to_string(broken).unwrap(), "{ broken");
    agent.until("the state file is rebuilt", || {
        fs::read(node.tracker()).is_ok_and(|bytes| serde_json::from_slice::<Value>(&bytes).is_ok())
    });

    // Another program removes the rules: the agent restores them.
    shop.policy("again", "web", 90);
    agent.until("web has rules", || !node.rules(WEB_ID).is_empty());
    node.hns(|service| {
        let endpoints = service.list("endpoints");
        endpoints.iter_mut().for_each(|endpoint| endpoint["Policies"] = json!([]));
        service.add("aaaaaaaa-1111-2222-3333-000000000009", [10, 77, 9, 9].into());
    });
    agent.until("the rules are restored", || !node.rules(WEB_ID).is_empty());
}

#[test]
fn a_machine_has_one_agent_and_cleanup_removes_its_rules() {
    let shop = Shop::new("two");
    shop.pod("web", WEB);
    shop.policy("web", "web", 80);
    let node = WindowsNode::new(&[(WEB_ID, WEB)]);
    let agent = node.agent();
    agent.until("it has rules", || !node.rules(WEB_ID).is_empty());
    let second = node.run(&["agent", "--source", "kube", "--http", "off"]);
    let errors = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{errors}");
    assert!(errors.contains("another weir agent runs"), "{errors}");
    let cleanup = node.run(&["agent", "--cleanup"]);
    assert_eq!(cleanup.status.code(), Some(2), "cleanup fails while an agent runs");
    assert!(!node.rules(WEB_ID).is_empty());
    agent.kill();
    let cleanup = node.run(&["agent", "--cleanup"]);
    assert!(cleanup.status.success(), "{}", String::from_utf8_lossy(&cleanup.stderr));
    assert_eq!(node.rules(WEB_ID), [""; 0]);
    assert_eq!(node.policies(WEB_ID).len(), 1, "policies of other programs stay");
    assert!(!node.tracker().exists());
}
