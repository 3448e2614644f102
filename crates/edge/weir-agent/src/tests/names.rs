//! Addresses of domain names.

use std::sync::Mutex;

use weir_names::{DnsAnswer, DnsScope, HeldAnswer, MAX_ADDRESSES};

use super::*;
use crate::agent::WatchDns;

const POLICY: &str = "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: names}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {}}
  egress:
  - {action: Accept, to: [{domainNames: [api.example.com, '*.wild.example.com']}]}
  - {action: Deny, to: [{networks: [0.0.0.0/0]}]}
";

/// An address of `api.example.com`.
const SITE: [u8; 4] = [203, 0, 113, 9];

/// Keeps the scope that the agent wants to be observed.
#[derive(Clone, Default)]
struct Watched(Arc<Mutex<DnsScope>>);

impl WatchDns for Watched {
    fn watch(&mut self, scope: &DnsScope) -> Result<(), String> {
        scope.clone_into(&mut self.0.lock().unwrap());
        Ok(())
    }
}

impl Bench {
    /// An agent with a rule about names in force.
    fn with_names() -> (Self, Watched) {
        let (mut bench, watched) = (Bench::new(), Watched::default());
        bench.observe_with(&watched);
        bench.write("pods.yaml", PODS);
        bench.write("policy.yaml", POLICY);
        bench.turn();
        (bench, watched)
    }

    fn observe_with(&mut self, watched: &Watched) {
        self.agent.set_dns(Box::new(watched.clone()));
    }

    /// An answer of a resolver to the pod `web`.
    fn answer(&mut self, name: &str, address: [u8; 4], ttl: u64) {
        let addresses = [(address.into(), Duration::from_secs(ttl))].into();
        let answer = DnsAnswer { pod: [10, 0, 0, 1].into(), name: name.into(), addresses };
        self.agent.handle(AgentEvent::Answer(HeldAnswer::new(vec![answer], || ())));
    }

    fn verdict_of_site(&self) -> Verdict {
        self.memory.machine(|machine| machine.installed.verdict(&to_site()))
    }

    fn is_connected(&self) -> bool {
        self.memory.machine(|machine| machine.connections.contains(&to_site()))
    }
}

fn to_site() -> Flow {
    let from = IpAddr::from([10, 0, 0, 1]);
    Flow { from, to: SITE.into(), protocol: Protocol::Tcp, port: 443 }
}

fn resolver(name: &str, node: &str, labels: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: kube-system, labels: \
          {{{labels}}}}}, spec: {{nodeName: {node}}}, status: {{podIP: 10.0.0.53}}}}"
    )
}

#[test]
fn an_address_that_another_pod_claims_is_not_a_resolver() {
    let (mut bench, watched) = Bench::with_names();
    let resolvers = || watched.0.lock().unwrap().resolvers.len();
    bench.write("dns.yaml", &resolver("coredns", "n2", "k8s-app: kube-dns"));
    bench.turn();
    assert_eq!(resolvers(), 1);
    for node in ["n1", "n2"] {
        bench.write("thief.yaml", &resolver("thief", node, "app: other"));
        bench.turn();
        assert_eq!(resolvers(), 0, "a pod of {node} may answer");
        fs::remove_file(bench.disk.path().join("thief.yaml")).unwrap();
        bench.turn();
        assert_eq!(resolvers(), 1, "the other pod is gone");
    }
    bench.write("second.yaml", &resolver("second", "n2", "k8s-app: kube-dns"));
    bench.turn();
    assert_eq!(resolvers(), 1, "both are resolvers");
}

#[test]
fn connections_under_an_expired_name_survive_a_restart() {
    let (mut bench, watched) = Bench::with_names();
    bench.answer("api.example.com", SITE, 300);
    bench.turn();
    assert_eq!(bench.verdict_of_site(), Verdict::Allow);
    bench.memory.machine(|machine| machine.connections.insert(to_site()));
    bench.now += Duration::from_secs(600);
    (0..3).for_each(|_| bench.turn());
    assert_eq!((bench.verdict_of_site(), bench.is_connected()), (Verdict::Deny, true));
    assert_eq!(bench.journal(), ["former api.example.com 203.0.113.9="]);

    // The address expired before the restart, then while no agent ran.
    for journal in [bench.journal(), vec!["name api.example.com 203.0.113.9=1000000000".into()]] {
        bench.memory.machine(|machine| machine.journal = (1..).zip(journal.clone()).collect());
        bench.restart();
        bench.observe_with(&watched);
        (0..3).for_each(|_| bench.turn());
        let state = (bench.verdict_of_site(), bench.is_connected());
        assert_eq!(state, (Verdict::Deny, true), "{journal:?}");
        assert_eq!(bench.journal(), ["former api.example.com 203.0.113.9="]);
    }

    // Without the rule, the connection ends.
    bench.write("policy.yaml", &POLICY.replace("api.example.com", "other.example.com"));
    bench.restart();
    bench.observe_with(&watched);
    (0..3).for_each(|_| bench.turn());
    assert!(!bench.is_connected());
    assert_eq!(bench.journal(), [""; 0]);

    // If the rule returns, the former address does not.
    bench.memory.machine(|machine| machine.connections.insert(to_site()));
    bench.write("policy.yaml", POLICY);
    (0..3).for_each(|_| bench.turn());
    assert!(!bench.is_connected());
}

#[test]
fn a_pod_with_very_many_addresses_closes_no_other_name() {
    let (mut bench, _watched) = Bench::with_names();
    let addresses = [(SITE.into(), Duration::from_secs(80_000))].into();
    let (pod, name) = ([10, 0, 0, 3].into(), "api.example.com".into());
    let answer = DnsAnswer { pod, name, addresses };
    bench.agent.handle(AgentEvent::Answer(HeldAnswer::new(vec![answer], || ())));
    for number in 0..MAX_ADDRESSES as u32 + 100 {
        let [_, _, high, low] = number.to_be_bytes();
        let address = [100, 64, high, low];
        bench.answer(&format!("n{number}.wild.example.com"), address, 80_000);
    }
    bench.turn();
    assert_eq!(bench.verdict_of_site(), Verdict::Allow);
    assert_eq!(bench.report.names().names.len(), MAX_ADDRESSES);
}
