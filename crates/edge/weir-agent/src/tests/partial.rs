//! A part of the folder cannot be read at the start.

use super::*;

/// Two documents: the policy, and one with a syntax error.
fn broken(app: &str) -> String {
    format!("{}---\nkind: NetworkPolicy\nspec: [\n", policy(app))
}

/// Replaces the agent, as after a restart.
fn restart(bench: &mut Bench) {
    let options = options(bench.disk.path());
    bench.report = Arc::new(AgentReport::new(&options));
    let reporter = Reporter::new(&options, bench.report.clone(), None);
    bench.agent = Agent::new(&options, bench.memory.clone(), reporter, bench.now);
    bench.folder = Folder::new(bench.disk.path());
}

#[test]
fn a_new_node_enforces_everything_that_can_be_read() {
    let mut bench = Bench::new();
    bench.write("pods.yaml", PODS);
    bench.write("policy.yaml", &broken("api"));
    bench.turn();
    assert_eq!(bench.passes(), [2]);
    let reasons = bench.reasons();
    assert_eq!(
        reasons[0],
        "a part of DIR cannot be read; the agent enforces the rest, and cannot know which pods the unread part isolates"
    );
    assert!(reasons[1].starts_with("DIR/policy.yaml:9: "), "{reasons:?}");
    assert_eq!(bench.report.metrics.in_sync.get(), 0);

    // Later changes take effect as well.
    bench.write("policy.yaml", &broken("job"));
    bench.turn();
    assert_eq!(bench.passes(), [3]);
    assert_eq!(bench.report.metrics.in_sync.get(), 0);

    bench.write("policy.yaml", &policy("api"));
    bench.turn();
    assert_eq!((bench.passes(), bench.reasons()), (vec![2], vec![]));
    assert_eq!(bench.report.metrics.in_sync.get(), 1);
}

#[test]
fn the_rules_of_the_previous_agent_stay_until_everything_can_be_read() {
    let mut bench = Bench::started();
    let writes = bench.writes();
    bench.write("policy.yaml", "kind: [");
    restart(&mut bench);
    bench.turn();
    assert_eq!((bench.passes(), bench.writes()), (vec![2], writes));
    assert_eq!(
        bench.reasons()[0],
        "a part of DIR cannot be read; the rules of the previous agent stay in force unchanged until it can be read"
    );
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    assert_eq!((bench.passes(), bench.reasons()), (vec![3], vec![]));
}

#[test]
fn a_broken_object_that_the_agent_ignores_changes_nothing() {
    let mut bench = Bench::new();
    bench.write("pods.yaml", PODS);
    bench.write("policy.yaml", &policy("api"));
    bench.write("config.yaml", "apiVersion: v1\nkind: ConfigMap\ndata: [\n");
    bench.turn();
    assert_eq!((bench.passes(), bench.reasons()), (vec![2], vec![]));
    let status = serde_json::to_value(bench.report.status().clone()).unwrap();
    assert_eq!(status["findings"][0]["severity"], "warning");
}

#[test]
fn once_enforces_a_part_on_a_new_node_and_reports_the_rest() {
    let disk = tempfile::tempdir().unwrap();
    fs::write(disk.path().join("pods.yaml"), PODS).unwrap();
    fs::write(disk.path().join("policy.yaml"), broken("api")).unwrap();
    let memory = Memory::default();
    let reasons = run::unlocked_once(&options(disk.path()), memory.clone()).unwrap();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert_eq!(memory.machine(|machine| machine.installed.verdict(&flow(3))), Verdict::Deny);
}
