//! The agent handles the known failures of HNS.

use serde_json::json;

use crate::{API, API_ID, Shop, WEB, WEB_ID, node::WindowsNode};

#[test]
fn the_agent_waits_for_a_missing_endpoint() {
    let shop = Shop::new("late");
    shop.pod("web", WEB);
    shop.policy("web", "web", 80);
    let node = WindowsNode::new(&[(API_ID, API)]);
    let agent = node.agent();
    agent.until_logged("has no endpoint yet");
    agent.until("ready", || agent.is_ready());
    node.hns(|service| service.add(WEB_ID, WEB));
    agent.until("the endpoint has rules", || {
        node.rules(WEB_ID).len() == 5 || node.rules(WEB_ID).len() == 4
    });
    assert_eq!(agent.metric("weir_repairs_total"), Some(0.0), "a new endpoint is no drift");
    // The endpoint of the pod is recreated without policies, as after a restart of the node.
    node.hns(|service| {
        service.list("endpoints").retain(|endpoint| endpoint["ID"] != WEB_ID.to_ascii_uppercase());
    });
    agent.until_logged("has no endpoint yet");
    node.hns(|service| service.add("aaaaaaaa-1111-2222-3333-000000000003", WEB));
    agent.until("the new endpoint has rules", || {
        !node.rules("aaaaaaaa-1111-2222-3333-000000000003").is_empty()
    });
}

#[test]
fn a_failing_endpoint_is_retried_and_does_not_block_the_others() {
    let shop = Shop::new("partly");
    shop.pod("web", WEB);
    shop.pod("api", API);
    shop.policy("web", "web", 80);
    shop.policy("api", "api", 80);
    let node = WindowsNode::new(&[(WEB_ID, WEB), (API_ID, API)]);
    node.hns(|service| {
        service
            .list("faults")
            .push(json!({"call": "HcnModifyEndpoint", "id": WEB_ID, "code": 0x803B_000D_u32}));
    });
    let agent = node.agent();
    agent.until("the other endpoint has its rules", || !node.rules(API_ID).is_empty());
    agent.until_logged("0x803b000d");
    let (status, reasons) = agent.get("/readyz").unwrap();
    assert_eq!(status, 503, "{reasons}");
    assert!(reasons.contains("partly/web"), "{reasons}");
    assert!(agent.metric("reconciliation_errors_total") > Some(0.0));
    node.hns(|service| service.list("faults").clear());
    agent.until("the agent retries", || !node.rules(WEB_ID).is_empty());
    agent.until("ready", || agent.is_ready());
}

#[test]
fn a_call_that_hangs_does_not_hang_the_agent() {
    let shop = Shop::new("hang");
    shop.pod("web", WEB);
    let node = WindowsNode::new(&[(WEB_ID, WEB)]);
    let agent = node.agent();
    agent.until("ready", || agent.is_ready());
    node.hns(|service| {
        service
            .list("faults")
            .push(json!({"call": "HcnModifyEndpoint", "times": 1, "hang": 20_000}));
        service.list("faults").push(
            json!({"call": "HcnQueryEndpointProperties", "id": API_ID, "vanish": true, "times": 1}),
        );
        service.add(API_ID, API);
    });
    shop.policy("web", "web", 80);
    agent.until_logged("HNS does not respond");
    assert!(!agent.is_ready(), "/readyz reports it");
    assert_eq!(agent.get("/healthz").map(|(status, _)| status), Some(200), "/healthz stays green");
    agent.until("the agent continues when HNS responds", || {
        !node.rules(WEB_ID).is_empty() && agent.is_ready()
    });
}

#[test]
fn an_sctp_rule_isolates_and_is_reported() {
    let shop = Shop::new("sctp");
    shop.pod("web", WEB);
    let mut policy = crate::policy("sctp", "web", 9);
    policy["spec"]["ingress"][0]["ports"][0]["protocol"] = "SCTP".into();
    crate::cluster().create(&shop.policies(), &policy).unwrap();
    let node = WindowsNode::new(&[(WEB_ID, WEB)]);
    let agent = node.agent();
    agent.until_rules(WEB_ID, &["weir:own-in", "weir:own-out", "weir:tail-in", "weir:tail-out"]);
    agent.until_logged("HNS cannot filter SCTP");
    agent.until("ready", || agent.is_ready());
    agent.until("the policy has an event", || {
        let events = crate::cluster().get("/api/v1/namespaces/sctp/events").unwrap();
        events["items"].as_array().unwrap().iter().any(|event| event["reason"] == "NotExpressed")
    });
}

#[test]
fn a_missing_or_old_hns_is_reported() {
    let node = WindowsNode::new(&[]);
    let arguments = ["agent", "--source", "kube", "--http", "off"];
    let without =
        node.weir(&arguments).env("WINEDLLOVERRIDES", "computenetwork=").output().unwrap();
    let errors = String::from_utf8_lossy(&without.stderr);
    assert_eq!(without.status.code(), Some(2), "{errors}");
    assert!(errors.contains("computenetwork.dll") && errors.contains("Containers"), "{errors}");
    node.hns(|service| service.state["version"] = json!({"Major": 9, "Minor": 1}));
    let old = node.run(&arguments);
    let errors = String::from_utf8_lossy(&old.stderr);
    assert_eq!(old.status.code(), Some(2), "{errors}");
    assert!(errors.contains("version 9.1") && errors.contains("Windows Server 2019"), "{errors}");
    let audit = node.run(&["agent", "--source", "kube", "--http", "off", "--audit"]);
    let errors = String::from_utf8_lossy(&audit.stderr);
    assert!(errors.contains("cannot report what it would drop"), "{errors}");
}
