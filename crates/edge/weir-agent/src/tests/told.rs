//! What is said about policies, in a real API server. `cargo xtask cluster` gets one.

use weir_cluster::{Cluster, Right};
use weir_kube::{Access, Events};

use super::*;

/// The Events of a namespace: about what, why, and what they say.
fn events(cluster: &Cluster, namespace: &str) -> Vec<[String; 3]> {
    let list = cluster.get(&format!("/api/v1/namespaces/{namespace}/events")).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let event = |event: &Value| {
        let about = &event["involvedObject"];
        let about = format!("{} {}", text(&about["kind"]), text(&about["name"]));
        [about, text(&event["reason"]), text(&event["message"])]
    };
    list["items"].as_array().unwrap().iter().map(event).collect()
}

#[test]
fn what_cannot_be_applied_is_said_about_the_policy_or_the_node() {
    let cluster = Cluster::start().unwrap();
    cluster.create("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).unwrap();
    let right = Right { group: "", resources: &["events"], verbs: &["create", "patch"] };
    let user = cluster.user("agent", &[right]).unwrap();
    let mut bench = Bench::started();
    let account = tempfile::tempdir().unwrap();
    let kubeconfig = user.write_kubeconfig(account.path()).unwrap();
    let access = Access::new(Some(&kubeconfig), None);
    let options = options(bench.disk.path());
    bench.folder = Folder::new(bench.disk.path());
    bench.agent = Agent::new(&options, bench.memory.clone(), bench.report.clone(), bench.now)
        .with_notes(Some(Events::start(access, "weir-agent", "n1").unwrap()));
    bench.turn();
    assert_eq!(bench.passes(), [2]);

    bench.memory.machine(|machine| machine.rejects = [PodId::new("shop", "web")].into());
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    bench.memory.machine(|machine| {
        machine.rejects.clear();
        machine.unavailable = true;
    });
    bench.write("policy.yaml", &policy("api"));
    bench.turn();

    let all = || [events(&cluster, "shop"), events(&cluster, "default")].concat();
    let begun = Instant::now();
    while all().len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", all());
        thread::sleep(Duration::from_millis(50));
    }
    let said = all();
    assert_eq!(said[0][..2], ["NetworkPolicy web", "NotApplied"]);
    assert!(
        said[0][2].starts_with("the rules for pod shop/web are refused on node n1"),
        "{said:?}"
    );
    assert_eq!(said[1][..2], ["Node n1", "PoliciesNotApplied"]);
    assert!(said[1][2].contains("what was in force stays"), "{said:?}");
}
