//! The life of an agent on a Windows node.

use std::fs;

use serde_json::{Value, json};

use crate::{API, API_ID, Shop, WEB, WEB_ID, desk::Desk};

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

/// The one rule that a policy leads to.
fn granted(desk: &Desk, policy: &str) -> Value {
    let policies = desk.policies(WEB_ID);
    let is_it = |acl: &&Value| acl["Settings"]["Id"].as_str().is_some_and(|id| id.contains(policy));
    policies.iter().find(is_it).cloned().unwrap_or_default()["Settings"].clone()
}

#[test]
fn policies_come_change_and_go_and_pods_get_other_labels() {
    let shop = Shop::new("life");
    shop.pod("web", WEB);
    shop.pod("api", API);
    let desk = Desk::new(&[(WEB_ID, WEB), (API_ID, API)]);
    let agent = desk.agent();
    agent.until("ready", || agent.is_ready());
    assert_eq!(desk.writes(), 0, "nobody speaks for anybody");

    shop.policy("web", "web", 80);
    let wanted = rules("life", "web");
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    agent.until_rules(WEB_ID, &wanted);
    let rule = granted(&desk, "life/web");
    let part = |name: &str| rule[name].as_str().unwrap_or_default().to_owned();
    assert_eq!(["Action", "Direction", "Protocols"].map(part), ["Allow", "In", "6"]);
    assert_eq!(
        ["RemoteAddresses", "LocalPorts", "RuleType"].map(part),
        ["10.77.0.2", "80", "Switch"]
    );
    assert_eq!(rule["Priority"], 2000);
    assert_eq!(desk.rules(API_ID), [""; 0], "only selected pods have rules");
    let own = granted(&desk, "own-in")["RemoteAddresses"].as_str().unwrap().to_owned();
    assert!(own.split(',').any(|address| address == "192.168.77.1"), "{own}");

    shop.change("web", "web", 8080);
    agent.until("the port is another", || granted(&desk, "life/web")["LocalPorts"] == "8080");
    shop.label("api", "other");
    agent.until("nobody is let in", || granted(&desk, "life/web").is_null());
    shop.label("api", "api");
    agent.until_rules(WEB_ID, &wanted);
    shop.label("web", "other");
    agent.until_rules(WEB_ID, &[]);
    shop.label("web", "web");
    agent.until_rules(WEB_ID, &wanted);

    assert_eq!(agent.metric("networkpolicies_watched"), Some(1.0));
    agent.until("rules are counted", || agent.metric("acl_rules_applied") == Some(5.0));
    assert_eq!(agent.metric("reconciliation_errors_total"), Some(0.0));
    let writes = desk.writes();
    let (status, log) = agent.stop();
    assert!(
        status.success() && log.contains("stopped; the rules stay in force"),
        "{status}: {log}"
    );
    assert_eq!(desk.rules(WEB_ID).len(), 5, "the rules stay");

    let agent = desk.agent();
    agent.until("ready", || agent.is_ready());
    assert_eq!(desk.writes(), writes, "what is as it should be is not written");
    shop.forget("web");
    agent.until_rules(WEB_ID, &[]);
    let left = desk.policies(WEB_ID);
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(
        left[0],
        json!({"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.96.0.0/12"]}})
    );
    desk.hns(|service| {
        let errors: Vec<&Value> =
            service.list("calls").iter().filter(|call| !call["error"].is_null()).collect();
        assert!(errors.is_empty(), "every handle is closed once: {errors:?}");
    });
}

#[test]
fn what_a_killed_agent_left_behind_is_removed_by_the_next() {
    let shop = Shop::new("orphans");
    shop.pod("web", WEB);
    shop.pod("api", API);
    shop.policy("all", "web", 80);
    shop.policy("api", "api", 81);
    let desk = Desk::new(&[(WEB_ID, WEB), (API_ID, API)]);
    let agent = desk.agent();
    agent.until("both have rules", || {
        !desk.rules(WEB_ID).is_empty() && !desk.rules(API_ID).is_empty()
    });
    agent.until("it is written down", || desk.tracker().exists());
    let tracker: Value = serde_json::from_slice(&fs::read(desk.tracker()).unwrap()).unwrap();
    assert_eq!(tracker["policies"]["orphans/all"][0]["EndpointID"], WEB_ID);
    agent.kill();

    // Meanwhile a policy goes, a pod goes and its endpoint stays, and somebody breaks the state file.
    shop.forget("all");
    crate::cluster().delete(&format!("{}/api", shop.pods())).unwrap();
    fs::write(desk.tracker(), "{ broken").unwrap();
    let before = desk.rules(API_ID);
    assert!(!before.is_empty(), "what was in force stays in force");
    let agent = desk.agent();
    agent.until_rules(WEB_ID, &[]);
    agent.until_rules(API_ID, &[]);
    agent.until_logged("cannot be read");
    let broken = desk.tracker().with_extension("json.broken");
    assert_eq!(fs::read_to_string(broken).unwrap(), "{ broken");
    agent.until("it is rebuilt", || {
        fs::read(desk.tracker()).is_ok_and(|bytes| serde_json::from_slice::<Value>(&bytes).is_ok())
    });

    // Somebody else wipes our rules: they come back.
    shop.policy("again", "web", 90);
    agent.until("web has rules", || !desk.rules(WEB_ID).is_empty());
    desk.hns(|service| {
        let endpoints = service.list("endpoints");
        endpoints.iter_mut().for_each(|endpoint| endpoint["Policies"] = json!([]));
        service.add("aaaaaaaa-1111-2222-3333-000000000009", [10, 77, 9, 9].into());
    });
    agent.until("they are repaired", || !desk.rules(WEB_ID).is_empty());
}

#[test]
fn one_agent_for_a_machine_and_a_way_to_remove_everything() {
    let shop = Shop::new("two");
    shop.pod("web", WEB);
    shop.policy("web", "web", 80);
    let desk = Desk::new(&[(WEB_ID, WEB)]);
    let agent = desk.agent();
    agent.until("it has rules", || !desk.rules(WEB_ID).is_empty());
    let second = desk.run(&["agent", "--source", "kube", "--http", "off"]);
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(said.contains("another weir agent runs"), "{said}");
    let cleanup = desk.run(&["agent", "--cleanup"]);
    assert_eq!(cleanup.status.code(), Some(2), "not while somebody keeps the rules");
    assert!(!desk.rules(WEB_ID).is_empty());
    agent.kill();
    let cleanup = desk.run(&["agent", "--cleanup"]);
    assert!(cleanup.status.success(), "{}", String::from_utf8_lossy(&cleanup.stderr));
    assert_eq!(desk.rules(WEB_ID), [""; 0]);
    assert_eq!(desk.policies(WEB_ID).len(), 1, "what others put there stays");
    assert!(!desk.tracker().exists());
}
