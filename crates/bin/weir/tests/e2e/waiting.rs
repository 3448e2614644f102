//! Two agents on one node.

use crate::site::{SYSTEM, Site};

/// An old agent still runs when the DaemonSet starts a new one on its node: they have one HTTP address, at
/// which the old one is ready. The new pod waits, and is ready only after the end of the old one.
pub(crate) fn two_agents(site: &mut Site) {
    const NODE: &str = "spec.nodeName=n2";
    site.helm_upgrade(&[]);
    let pods = |label: &str| {
        let words = ["-n", SYSTEM, "get", "pods", "--field-selector", NODE, "-l", label];
        let output = site.kubectl(&[&words[..], &["-o", "name"]].concat());
        output.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let agents = || pods("app.kubernetes.io/component=agent");
    let old = agents().remove(0);
    // The DaemonSet gives up a pod that its selector does not match, and creates another one.
    site.kubectl(&["-n", SYSTEM, "label", "--overwrite", &old, "app.kubernetes.io/component=old"]);
    site.wait_until("the DaemonSet has created another pod", || !agents().is_empty());
    let new = agents().remove(0);
    site.wait_until("the startup probe meets the old agent", || {
        let events = site.kubectl(&["-n", SYSTEM, "get", "events", "-o", "json"]);
        let name = new.trim_start_matches("pod/");
        let events: serde_json::Value = serde_json::from_str(&events).unwrap();
        let mut events = events["items"].as_array().unwrap().iter();
        events.any(|event| {
            let message = event["message"].as_str().unwrap_or_default();
            event["involvedObject"]["name"] == name && message.contains("runs in another container")
        })
    });
    let log = site.kubectl(&["-n", SYSTEM, "logs", &new, "-c", "agent"]);
    assert!(log.contains("another weir agent runs"), "{log}");
    let agent_of = |pod: &str, field: &str| {
        let path = format!(".status.containerStatuses[?(@.name==\"agent\")].{field}");
        site.field(SYSTEM, pod, &path)
    };
    assert_eq!([&old, &new].map(|pod| agent_of(pod, "ready")), ["true", "false"]);
    let (status, output) = site.kubectl_weir("status");
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("the agent has not started"), "{output}");

    site.kubectl(&["-n", SYSTEM, "delete", &old]);
    site.rollout("weir-agent");
    assert_eq!([agent_of(&new, "ready"), agent_of(&new, "restartCount")], ["true", "0"]);
}
