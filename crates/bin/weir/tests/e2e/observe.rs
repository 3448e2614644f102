//! A user asks the agents of all nodes from one shell.

use std::fs;

use serde_json::{Value, json};

use crate::{
    pods::{idle, namespace, policy, server},
    site::Site,
};

/// One command finds which policy refuses a connection between two pods, and another one prints the
/// policy that allows it.
pub(crate) fn one_command(site: &mut Site) {
    let (status, output) = site.kubectl_weir("install");
    assert_eq!(status, Some(0), "{output}");
    let name = "observe";
    let only_friend = json!({
        "podSelector": {"matchLabels": {"pod": "server"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": "friend"}}}]}],
    });
    site.apply(&[
        namespace(name),
        server(name, "server", "n2", 8080),
        idle(name, "friend", "n1"),
        idle(name, "client", "n1"),
        policy(name, "only-friend", only_friend),
    ]);
    site.await_pods(name, &["server", "friend", "client"]);
    let target = [format!("TCP/{}:8080", site.address(name, "server"))];
    site.wait_until("the policy is in force", || {
        site.connect_from(name, "client", &target) == "d"
            && site.connect_from(name, "friend", &target) == "a"
    });
    let run = |words: &str| {
        let (status, output) = site.kubectl_weir(words);
        assert_eq!(status, Some(0), "kubectl weir {words}: {output}");
        output
    };
    let refused = "flows --pod observe/client --pod observe/server --verdict deny";
    site.wait_until("the refused flow is shown", || run(refused).contains("observe/server"));
    let text = run(refused);
    assert!(text.contains("observe/client → observe/server 8080/TCP"), "{text}");
    assert!(text.contains("NetworkPolicy observe/only-friend ingress isolates"), "{text}");
    allow_it(site, name, &target);

    let lines = |words: &str| -> Vec<Value> {
        let output = run(words);
        let lines = output.lines().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    // The nodes of both ends observe an allowed connection.
    site.wait_until("both nodes observed the allowed flow", || {
        site.connect_from(name, "friend", &target);
        let flows = lines("flows -n observe --pod friend --verdict allow -o json");
        let nodes: Vec<&Value> = flows.iter().map(|flow| &flow["node"]).collect();
        ["n1", "n2"].iter().all(|node| nodes.iter().any(|one| *one == node))
    });
    let drops = lines("drops -n observe --pod client -o json");
    assert!(!drops.is_empty() && drops.iter().all(|drop| drop["node"] == "n2"), "{drops:?}");
    let top = run("top -n observe");
    assert!(top.contains("observe/friend") && top.contains("8080/TCP"), "{top}");

    let file = site.testbed.folder().join("bundle.tar");
    run(&format!("bundle --file {}", file.display()));
    let bundle = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
    for part in ["agents/n1/status.json", "agents/n2/flows.jsonl", "nodes.json", "logs/weir-agent"]
    {
        assert!(bundle.contains(part), "the bundle has no {part}");
    }
    site.delete_namespace(name);
    run("uninstall");
}

/// The second command prints a policy. With it, the connection passes.
fn allow_it(site: &Site, name: &str, target: &[String; 1]) {
    let ends = "--from observe/client --to observe/server --port 8080";
    let (status, text) = site.kubectl_weir(&format!("explain {ends}"));
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("the smallest policy that would allow it:"), "{text}");
    // The same for a program. Messages of standard error come after it.
    let (_, output) = site.kubectl_weir(&format!("explain {ends} -o json"));
    let mut values = serde_json::Deserializer::from_str(&output).into_iter::<Value>();
    let explanation = values.next().unwrap().unwrap();
    let policy = explanation["remedy"]["add"][0].as_str().unwrap();
    assert!(text.contains(policy.trim()), "{text}");
    let file = site.testbed.folder().join("fix.yaml");
    fs::write(&file, policy).unwrap();
    let applied = site.kubectl(&["apply", "-f", file.to_str().unwrap()]);
    site.wait_until("the printed policy allows the connection", || {
        site.connect_from(name, "client", target) == "a"
    });
    assert!(applied.contains("created"), "{applied}");
}
