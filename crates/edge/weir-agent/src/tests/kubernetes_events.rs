//! Events about policies, in a real API server. `cargo xtask cluster build` builds one.

use weir_cluster::{Cluster, Right};
use weir_kube::{Access, Recorder};

use super::*;

/// The Events of a namespace: object, reason and message.
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
fn contests_lockdowns_rejected_rules_and_failures_become_events() {
    let cluster = Cluster::start().unwrap();
    cluster.create("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}})).unwrap();
    let right = Right { group: "", resources: &["events"], verbs: &["create", "patch"] };
    let user = cluster.user("agent", &[right]).unwrap();
    let mut bench = Bench::started();
    let account = tempfile::tempdir().unwrap();
    let kubeconfig = user.write_kubeconfig(account.path()).unwrap();
    let access = Access::new(Some(&kubeconfig), None);
    let budget = Budget { policy: 2000, ..Budget::default() };
    let options = AgentOptions { budget, ..options(bench.disk.path()) };
    bench.folder = Folder::new(bench.disk.path());
    let events_writer = Recorder::start(access, "weir-agent", "n1").unwrap();
    let reporter = Reporter::new(&options, bench.report.clone(), Some(events_writer));
    bench.agent = Agent::new(&options, bench.memory.clone(), reporter, bench.now);
    bench.turn();
    assert_eq!(bench.passes(), [2]);

    // A pod of another node claims the address of the web pod, and then ends.
    bench.write("thief.yaml", &contests::thief("n2", ""));
    bench.turn();
    fs::remove_file(bench.disk.path().join("thief.yaml")).unwrap();
    bench.turn();
    // A policy exceeds its budget, and is then removed.
    bench.write("large.yaml", &lockdowns::large("large", "job", 500));
    bench.turn();
    assert_eq!(bench.passes(), [2], "it allows nothing");
    fs::remove_file(bench.disk.path().join("large.yaml")).unwrap();
    bench.turn();
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
    while all().len() < 4 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", all());
        thread::sleep(Duration::from_millis(50));
    }
    let published = all();
    let about = |object: &str| {
        let found = published.iter().find(|[about, ..]| about == object);
        found.unwrap_or_else(|| panic!("no Event about {object}: {published:?}"))
    };
    let [_, reason, message] = about("Pod web");
    assert_eq!(reason, "AddressContested");
    assert_eq!(
        message,
        "node n1: evil/thief of another node claims 10.0.0.1 of shop/web: \
         the rules of shop/web stay in force"
    );
    let [_, reason, message] = about("NetworkPolicy large");
    assert_eq!(reason, "PolicyLockedDown");
    assert_eq!(
        message,
        "node n1 isolates its pods and allows nothing: \
         it needs more entries than --policy-budget allows"
    );
    let [_, reason, message] = about("NetworkPolicy web");
    assert_eq!(reason, "NotApplied");
    assert!(message.starts_with("node n1 rejects the rules of pod shop/web"), "{message}");
    let [_, reason, message] = about("Node n1");
    assert_eq!(reason, "PoliciesNotApplied");
    assert!(message.contains("the last applied rules stay in force"), "{message}");
}
