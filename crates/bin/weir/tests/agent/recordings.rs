//! Policies from the connections that an agent recorded.

use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use weir_lab::{Lab, Layout};
use weir_model::{Flow, Protocol, Verdict, World};

use crate::{
    filter::Filter,
    node::Node,
    swap::{WEB, changes},
};

const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
const WORKLOADS: usize = 6;
const FLOWS: usize = 8;
const PORTS: [(Protocol, u16); 3] =
    [(Protocol::Tcp, 8080), (Protocol::Tcp, 9090), (Protocol::Udp, 5000)];

/// A small random number generator: the same clusters in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// A pod for each of some Deployments, with labels of different styles, and the DNS server.
fn pods(random: &mut Random) -> String {
    let mut text = String::new();
    for namespace in ["red", "green", "kube-system"] {
        writeln!(text, "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}")
            .unwrap();
    }
    for at in 0..=WORKLOADS {
        let (namespace, labels) = match (at, random.below(3)) {
            (WORKLOADS, _) => ("kube-system", "k8s-app: kube-dns".to_owned()),
            (_, 0) => ("red", format!("app: w{at}")),
            (_, 1) => ("green", format!("app: suite, app.kubernetes.io/component: c{at}")),
            _ => ("red", format!("tier: t{at}, app.kubernetes.io/version: \"1.{at}\"")),
        };
        let IpAddr::V4(address) = address(at) else { panic!("an IPv6 address") };
        writeln!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: w{at}\n  namespace: {namespace}\n  \
             labels: {{{labels}, pod-template-hash: 5d8f}}\n  ownerReferences: \
             [{{apiVersion: apps/v1, kind: ReplicaSet, name: w{at}-5d8f, uid: u{at}, controller: true}}]\n\
             spec: {{nodeName: n1, containers: [{{name: c}}]}}\nstatus: {{podIP: {address}}}"
        )
        .unwrap();
    }
    text
}

fn address(at: usize) -> IpAddr {
    let IpAddr::V4(first) = WEB else { panic!("an IPv6 address") };
    Ipv4Addr::from_bits(first.to_bits() + at as u32).into()
}

fn flow((from, to, port): (usize, usize, usize)) -> Flow {
    let (protocol, port) = PORTS[port];
    Flow { from: address(from), to: address(to), protocol, port }
}

/// Without policies, connections of three random clusters are made and recorded. With the recommended
/// policies, they pass, and nearly all others are denied.
pub(crate) fn lead_to_policies(filter: Filter) {
    for seed in 1..=3 {
        let mut random = Random(seed);
        let pods = pods(&mut random);
        let mut world = World::default();
        changes(&pods).into_iter().for_each(|change| world.apply(change));
        let node = Node::of(filter, Lab::build(&Layout::from_world(&world, &[])).unwrap());
        node.write("pods.yaml", &pods);
        let _agent = node.started(&[]);

        let mut made = BTreeSet::new();
        while made.len() < FLOWS {
            let (from, to) = (random.below(WORKLOADS), random.below(WORKLOADS));
            if from != to {
                made.insert((from, to, random.below(PORTS.len())));
            }
        }
        let flows: Vec<Flow> = made.iter().copied().map(flow).collect();
        assert_eq!(node.lab.probe(&flows, PROBE_TIMEOUT).unwrap(), vec![Verdict::Allow; FLOWS]);
        let recording = node.path().with_extension("jsonl");
        // A ready agent may not receive the events yet, so the connections are made again.
        node.until("the agent recorded all connections", || {
            let output = node.weir(&["flows", "-o", "json", "--verdict", "allow"]);
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
            fs::write(&recording, output.stdout).unwrap();
            lines >= FLOWS || {
                node.lab.probe(&flows, PROBE_TIMEOUT).unwrap();
                false
            }
        });

        let folder = node.path().to_str().unwrap();
        let arguments = ["recommend", "-f", folder, "--flows", recording.to_str().unwrap()];
        let output = node.weir(&arguments);
        let remarks = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "seed {seed}: {remarks}");
        assert!(remarks.contains(&format!("{FLOWS} recorded flows tested")), "{remarks}");
        node.write("policies.yaml", std::str::from_utf8(&output.stdout).unwrap());

        let unseen: Vec<Flow> = (0..WORKLOADS)
            .flat_map(|from| (0..WORKLOADS).map(move |to| (from, to)))
            .filter(|(from, to)| from != to)
            .flat_map(|(from, to)| (0..PORTS.len()).map(move |port| (from, to, port)))
            .filter(|one| !made.contains(one))
            .map(flow)
            .collect();
        node.until("at least 95 % of the other connections are denied", || {
            let verdicts = node.lab.probe(&unseen, PROBE_TIMEOUT).unwrap();
            let denied = verdicts.iter().filter(|verdict| **verdict == Verdict::Deny).count();
            denied * 100 >= unseen.len() * 95
        });
        assert_eq!(node.lab.probe(&flows, PROBE_TIMEOUT).unwrap(), vec![Verdict::Allow; FLOWS]);
        fs::remove_file(recording).unwrap();
    }
}
