//! HNS fails in all the ways that are known of it.

use serde_json::json;

use crate::{API, API_ID, Shop, WEB, WEB_ID, desk::Desk};

#[test]
fn an_endpoint_that_is_not_there_yet_is_waited_for() {
    let shop = Shop::new("late");
    shop.pod("web", WEB);
    shop.policy("web", "web", 80);
    let desk = Desk::new(&[(API_ID, API)]);
    let agent = desk.agent();
    agent.until_logged("has no endpoint yet");
    agent.until("ready", || agent.is_ready());
    desk.hns(|service| service.add(WEB_ID, WEB));
    agent.until("it has come, and has rules", || {
        desk.rules(WEB_ID).len() == 5 || desk.rules(WEB_ID).len() == 4
    });
    assert_eq!(agent.metric("weir_repairs_total"), Some(0.0), "nobody changed anything");
    // The pod's endpoint is made anew, with nothing on it, as when a node restarts its pods.
    desk.hns(|service| {
        service.list("endpoints").retain(|endpoint| endpoint["ID"] != WEB_ID.to_ascii_uppercase());
    });
    agent.until_logged("has no endpoint yet");
    desk.hns(|service| service.add("aaaaaaaa-1111-2222-3333-000000000003", WEB));
    agent.until("the new one has rules", || {
        !desk.rules("aaaaaaaa-1111-2222-3333-000000000003").is_empty()
    });
}

#[test]
fn what_fails_for_one_endpoint_is_tried_again_and_the_others_have_theirs() {
    let shop = Shop::new("partly");
    shop.pod("web", WEB);
    shop.pod("api", API);
    shop.policy("web", "web", 80);
    shop.policy("api", "api", 80);
    let desk = Desk::new(&[(WEB_ID, WEB), (API_ID, API)]);
    desk.hns(|service| {
        service
            .list("faults")
            .push(json!({"call": "HcnModifyEndpoint", "id": WEB_ID, "code": 0x803B_000D_u32}));
    });
    let agent = desk.agent();
    agent.until("the other has its rules", || !desk.rules(API_ID).is_empty());
    agent.until_logged("0x803b000d");
    let (status, reasons) = agent.get("/readyz").unwrap();
    assert_eq!(status, 503, "{reasons}");
    assert!(reasons.contains("partly/web"), "{reasons}");
    assert!(agent.metric("reconciliation_errors_total") > Some(0.0));
    desk.hns(|service| service.list("faults").clear());
    agent.until("it is tried again", || !desk.rules(WEB_ID).is_empty());
    agent.until("ready", || agent.is_ready());
}

#[test]
fn a_call_that_hangs_does_not_hang_the_agent() {
    let shop = Shop::new("hang");
    shop.pod("web", WEB);
    let desk = Desk::new(&[(WEB_ID, WEB)]);
    let agent = desk.agent();
    agent.until("ready", || agent.is_ready());
    desk.hns(|service| {
        service
            .list("faults")
            .push(json!({"call": "HcnModifyEndpoint", "times": 1, "hang": 20_000}));
        service.list("faults").push(
            json!({"call": "HcnQueryEndpointProperties", "id": API_ID, "vanish": true, "times": 1}),
        );
        service.add(API_ID, API);
    });
    shop.policy("web", "web", 80);
    agent.until_logged("HNS does not answer");
    assert!(!agent.is_ready(), "it says so");
    assert_eq!(agent.get("/healthz").map(|(status, _)| status), Some(200), "and lives");
    agent.until("it goes on when HNS does", || !desk.rules(WEB_ID).is_empty() && agent.is_ready());
}

#[test]
fn sctp_isolates_and_is_told() {
    let shop = Shop::new("sctp");
    shop.pod("web", WEB);
    let mut policy = crate::policy("sctp", "web", 9);
    policy["spec"]["ingress"][0]["ports"][0]["protocol"] = "SCTP".into();
    crate::cluster().create(&shop.policies(), &policy).unwrap();
    let desk = Desk::new(&[(WEB_ID, WEB)]);
    let agent = desk.agent();
    agent.until_rules(WEB_ID, &["weir:own-in", "weir:own-out", "weir:tail-in", "weir:tail-out"]);
    agent.until_logged("HNS does not filter SCTP");
    agent.until("ready", || agent.is_ready());
    agent.until("it is said where the owner of the policy looks", || {
        let events = crate::cluster().get("/api/v1/namespaces/sctp/events").unwrap();
        events["items"].as_array().unwrap().iter().any(|event| event["reason"] == "NotExpressed")
    });
}

#[test]
fn whoever_has_no_hns_or_an_old_one_is_told() {
    let desk = Desk::new(&[]);
    let arguments = ["agent", "--source", "kube", "--http", "off"];
    let without =
        desk.weir(&arguments).env("WINEDLLOVERRIDES", "computenetwork=").output().unwrap();
    let said = String::from_utf8_lossy(&without.stderr);
    assert_eq!(without.status.code(), Some(2), "{said}");
    assert!(said.contains("computenetwork.dll") && said.contains("Containers"), "{said}");
    desk.hns(|service| service.state["version"] = json!({"Major": 9, "Minor": 1}));
    let old = desk.run(&arguments);
    let said = String::from_utf8_lossy(&old.stderr);
    assert_eq!(old.status.code(), Some(2), "{said}");
    assert!(said.contains("version 9.1") && said.contains("Windows Server 2019"), "{said}");
    let audit = desk.run(&["agent", "--source", "kube", "--http", "off", "--audit"]);
    let said = String::from_utf8_lossy(&audit.stderr);
    assert!(said.contains("cannot tell what it would drop"), "{said}");
}
