//! Every recorded flow passes under the recommended policies, and nearly nothing else does.

use std::{collections::BTreeSet, net::IpAddr};

use proptest::{collection::vec, prelude::*, sample::select};
use weir_engine::{Locality, compile};
use weir_model::{
    Claim, Flow, Labels, NAMESPACE_NAME_LABEL, Namespace, Node, Pod, PodId, Protocol, Verdict,
    World, is_lasting_label,
};
use weir_recommend::{
    Evidence, EvidenceKind, ObservedEnd, ObservedFlow, Recommendation, Request, WorkloadPods,
    recommend,
};

const NAMESPACES: [&str; 3] = ["shop", "payments", "kube-system"];
const PORTS: [u16; 5] = [80, 443, 5432, 8080, 9090];

/// How the pods of a workload are labelled, apart from labels of their rollout.
#[derive(Clone, Copy, Debug)]
enum Labelling {
    /// A name of its own.
    Name,
    /// The name of its application and its own component.
    Component,
    /// The name of its application alone, which other workloads have too.
    Shared,
}

#[derive(Clone, Debug)]
struct RandomWorkload {
    namespace: &'static str,
    labelling: Labelling,
    replicas: usize,
    application: usize,
}

/// A recorded connection: indexes of workloads, or an address outside.
#[derive(Clone, Debug)]
struct RandomFlow {
    from: Option<prop::sample::Index>,
    to: Option<prop::sample::Index>,
    replica: prop::sample::Index,
    port: u16,
    protocol: Protocol,
    outside: [u8; 2],
}

fn workload() -> impl Strategy<Value = RandomWorkload> {
    let labelling = prop_oneof![4 => Just(Labelling::Name), 4 => Just(Labelling::Component), 1 => Just(Labelling::Shared)];
    (select(&NAMESPACES[..]), labelling, 1..4_usize, 0..3_usize).prop_map(
        |(namespace, labelling, replicas, application)| RandomWorkload {
            namespace,
            labelling,
            replicas,
            application,
        },
    )
}

fn flow() -> impl Strategy<Value = RandomFlow> {
    let end = || prop::option::weighted(0.9, any::<prop::sample::Index>());
    let protocol = prop_oneof![3 => Just(Protocol::Tcp), 1 => Just(Protocol::Udp)];
    let replica = any::<prop::sample::Index>();
    (end(), end(), replica, select(&PORTS[..]), protocol, any::<[u8; 2]>()).prop_map(
        |(from, to, replica, port, protocol, outside)| RandomFlow {
            from,
            to,
            replica,
            port,
            protocol,
            outside,
        },
    )
}

/// The world of some workloads. A workload that shares its labels is one of a kind in its namespace.
fn world(workloads: &[RandomWorkload]) -> (World, Vec<WorkloadPods>) {
    let mut world = World::default();
    for name in NAMESPACES {
        let labels = [(NAMESPACE_NAME_LABEL, name)].into_iter().collect();
        let namespace = Namespace { name: name.into(), labels, location: None };
        world.namespaces.insert(name.into(), namespace);
    }
    let mut groups = Vec::new();
    let mut shared = BTreeSet::new();
    let mut next = 1_u8;
    for (at, random) in workloads.iter().enumerate() {
        let application = format!("application-{}", random.application);
        let is_taken = !shared.insert((random.namespace, random.application));
        let mut labels = match random.labelling {
            Labelling::Shared if !is_taken => vec![("app".to_owned(), application)],
            Labelling::Component => {
                vec![("app".to_owned(), application), ("component".to_owned(), format!("c{at}"))]
            }
            Labelling::Name | Labelling::Shared => {
                vec![("app.kubernetes.io/name".to_owned(), format!("w{at}"))]
            }
        };
        labels.push(("app.kubernetes.io/version".into(), format!("1.{at}")));
        labels.push(("pod-template-hash".into(), format!("hash{at}")));
        let mut pods = Vec::new();
        for replica in 0..random.replicas {
            let id = PodId::new(random.namespace, format!("w{at}-{replica}"));
            let own = ("statefulset.kubernetes.io/pod-name".to_owned(), id.name.to_string());
            let labels: Labels = labels.iter().cloned().chain([own]).collect();
            let node = format!("n{}", next % 3);
            let pod = Pod {
                id: id.clone(),
                labels,
                addresses: vec![[10, 0, 0, next].into()],
                node: Some(node.into()),
                ports: Vec::new(),
                host_network: false,
                finished: false,
                claim: Claim::Running,
                owner: None,
                uid: None,
                location: None,
            };
            next += 1;
            world.pods.insert(id.clone(), pod);
            pods.push(id);
        }
        groups.push(WorkloadPods {
            name: format!("{}/deployment/w{at}", random.namespace).into(),
            namespace: random.namespace.into(),
            policy_name: format!("w{at}").into(),
            pods,
        });
    }
    for node in 0..3_u8 {
        let name: std::sync::Arc<str> = format!("n{node}").into();
        let addresses = vec![[192, 168, 0, node].into()];
        let node =
            Node { name: name.clone(), labels: Labels::default(), addresses, location: None };
        world.nodes.insert(name, node);
    }
    (world, groups)
}

fn observe(workloads: &[WorkloadPods], random: &RandomFlow) -> Option<ObservedFlow> {
    let end = |end: &Option<prop::sample::Index>| match end {
        Some(index) => {
            let pods = &workloads[index.index(workloads.len())].pods;
            ObservedEnd::Pod(pods[random.replica.index(pods.len())].clone())
        }
        None => {
            let [c, d] = random.outside;
            ObservedEnd::Address([203, 0, c % 4, d].into())
        }
    };
    let (from, to) = (end(&random.from), end(&random.to));
    let is_one_pod =
        matches!((&from, &to), (ObservedEnd::Pod(from), ObservedEnd::Pod(to)) if from == to);
    let is_outside = matches!((&from, &to), (ObservedEnd::Address(_), ObservedEnd::Address(_)));
    (!is_one_pod && !is_outside).then(|| observed(from, to, random.protocol, random.port))
}

fn observed(from: ObservedEnd, to: ObservedEnd, protocol: Protocol, port: u16) -> ObservedFlow {
    let evidence = Evidence {
        kind: EvidenceKind::Flow,
        what: format!("{from:?} to {to:?} {port}").into(),
        connections: 1,
        last_seen: None,
        location: None,
    };
    ObservedFlow { from, to, protocol, port, evidence }
}

/// The world with the recommended policies.
fn with_policies(world: &World, recommendation: &Recommendation) -> World {
    let mut world = world.clone();
    world.policies.clear();
    for recommended in &recommendation.policies {
        let policy = recommended.policy();
        assert!(!world.policies.contains_key(&policy.id), "{} is unique", policy.id);
        world.policies.insert(policy.id.clone(), policy);
    }
    world
}

/// Both judges of the connection. They must agree.
fn verdict(world: &World, program: &weir_model::Program, flow: &Flow) -> Verdict {
    let verdict = program.verdict(flow);
    assert_eq!(verdict, weir_oracle::verdict(world, flow), "{flow}");
    verdict
}

fn addresses(world: &World, workloads: &[WorkloadPods], end: &ObservedEnd) -> Vec<IpAddr> {
    match end {
        ObservedEnd::Address(address) => vec![*address],
        ObservedEnd::Pod(id) => {
            let workload =
                workloads.iter().find(|one| one.pods.contains(id)).expect("pods have a workload");
            workload.pods.iter().flat_map(|id| world.pods[id].addresses.clone()).collect()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn recorded_flows_pass_and_others_are_denied(
        random in vec(workload(), 4..14),
        flows in vec(flow(), 0..40),
    ) {
        let (world, workloads) = world(&random);
        let flows: Vec<ObservedFlow> =
            flows.iter().filter_map(|flow| observe(&workloads, flow)).collect();
        let request = Request {
            world: &world,
            workloads: &workloads,
            flows: &flows,
            is_in_scope: &|_| true,
        };
        let recommendation = recommend(&request);
        let result = with_policies(&world, &recommendation);
        let program = compile(&result, Locality::Everywhere);
        let mut seen = BTreeSet::new();
        for flow in &flows {
            for from in addresses(&world, &workloads, &flow.from) {
                for to in addresses(&world, &workloads, &flow.to) {
                    let flow = Flow { from, to, protocol: flow.protocol, port: flow.port };
                    prop_assert_eq!(verdict(&result, &program, &flow), Verdict::Allow, "{}", flow);
                    seen.insert(flow);
                }
            }
        }
        let all: Vec<IpAddr> =
            world.pods.values().flat_map(|pod| pod.addresses.clone()).collect();
        let (mut unseen, mut denied) = (0, 0);
        for (from, to) in all.iter().flat_map(|from| all.iter().map(move |to| (*from, *to))) {
            for port in PORTS {
                let flow = Flow { from, to, protocol: Protocol::Tcp, port };
                if from == to || seen.contains(&flow) {
                    continue;
                }
                unseen += 1;
                denied += usize::from(verdict(&result, &program, &flow) == Verdict::Deny);
            }
        }
        prop_assert!(denied * 100 >= unseen * 95, "{denied} of {unseen} are denied");
        for policy in &recommendation.policies {
            let selectors = policy.subject.pods.requirements().iter();
            prop_assert!(selectors.clone().all(|one| is_lasting_label(one.key())));
            prop_assert!(selectors.clone().all(|one| &**one.key() != "app.kubernetes.io/version"));
        }
    }

    /// Any labels, addresses of both families, host network pods, finished pods, named ports.
    #[test]
    fn recorded_flows_pass_in_any_cluster(
        world in weir_testkit::world(),
        flows in vec(weir_testkit::flow(), 0..20),
    ) {
        let mut open = world.clone();
        open.policies.clear();
        // Without their namespaces, no policy of another namespace can select pods.
        let named = |pod: &Pod| open.namespaces.contains_key(&pod.id.namespace);
        let pods: Vec<PodId> =
            open.pods.values().filter(|pod| named(pod)).map(|pod| pod.id.clone()).collect();
        open.pods.retain(|id, _| pods.contains(id));
        let workloads: Vec<WorkloadPods> = open
            .pods
            .keys()
            .map(|id| WorkloadPods {
                name: id.to_string().into(),
                namespace: id.namespace.clone(),
                policy_name: id.name.clone(),
                pods: vec![id.clone()],
            })
            .collect();
        let end = |address: IpAddr| match open.holders(address)[..] {
            [only] => ObservedEnd::Pod(only.id.clone()),
            _ => ObservedEnd::Address(address),
        };
        let recorded: Vec<&Flow> =
            flows.iter().filter(|flow| weir_oracle::verdict(&open, flow) == Verdict::Allow).collect();
        let observed: Vec<ObservedFlow> = recorded
            .iter()
            .map(|flow| observed(end(flow.from), end(flow.to), flow.protocol, flow.port))
            .collect();
        let request = Request {
            world: &open,
            workloads: &workloads,
            flows: &observed,
            is_in_scope: &|_| true,
        };
        let result = with_policies(&open, &recommend(&request));
        let program = compile(&result, Locality::Everywhere);
        for flow in recorded {
            prop_assert_eq!(verdict(&result, &program, flow), Verdict::Allow, "{}", flow);
        }
    }
}
