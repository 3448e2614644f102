//! Policies that exceed a budget, or during whose compilation an agent was terminated.

use super::*;

/// A policy of the shop that allows this app, and as many blocks.
pub(super) fn large(name: &str, app: &str, blocks: usize) -> String {
    let blocks: String = (0..blocks)
        .map(|number| {
            format!("{{ipBlock: {{cidr: 192.0.{}.{}/32}}}}, ", number / 256, number % 256)
        })
        .collect();
    format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: {name}, namespace: shop}}
spec:
  podSelector: {{matchLabels: {{app: web}}}}
  ingress: [{{from: [{blocks}{{podSelector: {{matchLabels: {{app: {app}}}}}}}]}}]
"
    )
}

impl Bench {
    /// Another agent on the same machine, after the first was terminated.
    pub(super) fn restart(&mut self) {
        let options = options(self.disk.path());
        self.report = Arc::new(AgentReport::new(&options));
        let reporter = Reporter::new(&options, self.report.clone(), None);
        self.agent = Agent::new(&options, self.memory.clone(), reporter, self.now);
        self.folder = Folder::new(self.disk.path());
    }

    pub(super) fn journal(&self) -> Vec<String> {
        self.memory.machine(|machine| machine.journal.values().cloned().collect())
    }

    /// Terminates the agent while it compiles: the machine accepts nothing after the journal.
    fn terminate_in_turn(&mut self) {
        self.scan();
        self.agent.compile_only(self.now);
        self.restart();
    }

    fn locked_down(&self) -> Vec<(String, String)> {
        let status = self.report.status();
        let all = status.locked_down.iter();
        all.map(|one| (one.policy.clone(), one.reason.clone())).collect()
    }
}

#[test]
fn a_policy_over_budget_is_reported_and_allows_nothing() {
    let mut bench = Bench::with(|options| AgentOptions {
        budget: Budget { policy: 10_000, ..Budget::default() },
        ..options
    });
    bench.write("pods.yaml", PODS);
    bench.write("large.yaml", &large("large", "api", 2000));
    bench.turn();
    assert_eq!(bench.passes(), [0_u8; 0]);
    assert_eq!(bench.reasons(), [""; 0], "a tenant's policy does not make the node unready");
    let reason = "it needs more entries than --policy-budget allows";
    let expected = ("NetworkPolicy shop/large".to_owned(), reason.to_owned());
    assert_eq!(bench.locked_down(), [expected]);
    assert_eq!(bench.report.metrics.locked_down.get(), 1);
    // Other policies of the same pods are in force.
    bench.write("policy.yaml", &policy("job"));
    bench.turn();
    assert_eq!(bench.passes(), [3]);
    bench.write("large.yaml", &large("large", "api", 200));
    bench.turn();
    assert_eq!((bench.passes(), bench.locked_down().len()), (vec![2, 3], 0));
    assert_eq!(bench.report.metrics.locked_down.get(), 0);
}

#[test]
fn small_policies_leave_no_trace_and_large_ones_only_until_they_are_in_force() {
    let mut bench = Bench::started();
    assert_eq!(bench.journal(), [""; 0]);
    bench.write("large.yaml", &large("large", "job", 500));
    bench.scan();
    bench.agent.compile_only(bench.now);
    assert_eq!(bench.journal().len(), 1);
    bench.turn();
    assert_eq!((bench.journal().len(), bench.passes()), (0, vec![2, 3]));
    // An agent that stops in an orderly way accuses no policy.
    bench.write("large.yaml", &large("large", "job", 501));
    bench.scan();
    bench.agent.compile_only(bench.now);
    bench.agent.close_journal();
    assert_eq!(bench.journal(), [""; 0]);
}

#[test]
fn a_policy_that_terminated_the_agent_is_locked_down_until_it_changes() {
    let mut bench = Bench::started();
    bench.write("large.yaml", &large("large", "job", 500));
    bench.terminate_in_turn();
    bench.turn();
    assert_eq!(bench.passes(), [2], "the other policy is in force, and this one allows nothing");
    let locked = bench.locked_down();
    assert_eq!(locked[0].0, "NetworkPolicy shop/large");
    assert_eq!(
        locked[0].1,
        "an agent was terminated while it compiled this policy; it is tested again later"
    );
    // It stays locked down after another restart.
    bench.restart();
    bench.turn();
    assert_eq!((bench.passes(), bench.locked_down().len()), (vec![2], 1));
    // The agent tests it again after a while, and this time it works.
    (0..12).for_each(|_| bench.turn());
    assert_eq!((bench.passes(), bench.locked_down().len()), (vec![2, 3], 0));
    assert_eq!(bench.journal(), [""; 0]);
}

#[test]
fn a_policy_that_terminated_two_agents_is_not_tested_again() {
    let mut bench = Bench::started();
    bench.write("large.yaml", &large("large", "job", 500));
    bench.terminate_in_turn();
    bench.turn();
    let digest = bench.journal()[0].rsplit(' ').next().unwrap().to_owned();
    // The agent is terminated during the second test as well.
    let records = [format!("failed 1 {digest}"), format!("compiling {digest}")];
    bench.memory.machine(|machine| machine.journal = (0..).zip(records).collect());
    bench.restart();
    (0..30).for_each(|_| bench.turn());
    assert_eq!((bench.passes(), bench.locked_down().len()), (vec![2], 1));
    assert_eq!(bench.journal(), [format!("failed 2 {digest}")]);
    // Another version is another policy.
    bench.write("large.yaml", &large("large", "job", 400));
    bench.turn();
    assert_eq!((bench.passes(), bench.locked_down().len()), (vec![2, 3], 0));
    assert_eq!(bench.journal(), [""; 0]);
}

#[test]
fn several_suspects_are_tested_one_at_a_time_after_everything_else_is_in_force() {
    let mut bench = Bench::started();
    bench.write("one.yaml", &large("one", "job", 500));
    bench.write("two.yaml", &large("two", "none", 500));
    bench.terminate_in_turn();
    assert_eq!(bench.journal().len(), 2);
    bench.turn();
    assert_eq!(bench.passes(), [2]);
    let states = |bench: &Bench| {
        let all = bench.journal().into_iter();
        all.map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(states(&bench), ["compiling", "untested"]);
    bench.turn();
    assert_eq!(states(&bench), ["compiling"]);
    bench.turn();
    assert_eq!((bench.passes(), bench.journal().len()), (vec![2, 3], 0));
}

#[test]
fn a_journal_that_makes_no_sense_is_ignored() {
    let mut bench = Bench::started();
    let records = ["", "failed", "failed x y", "compiling", "compiling zz", "failed 99999999999 1"];
    let records = (0..).zip(records.map(str::to_owned)).collect();
    bench.memory.machine(|machine| machine.journal = records);
    bench.restart();
    bench.turn();
    assert_eq!((bench.passes(), bench.journal().len()), (vec![2], 0));
}
