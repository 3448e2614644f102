//! Real packets in real network namespaces. Needs root or a user namespace, and the `nft` program for the filters.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    process::{Command, ExitCode},
    time::Duration,
};

use libtest_mimic::{Arguments, Failed, Trial};
use weir_lab::{Lab, LabError, LabNode, LabPod, Layout};
use weir_model::{Flow, PodId, Protocol, Verdict};

const PATIENCE: Duration = Duration::from_millis(400);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list
        && let Err(error) = weir_lab::enter()
    {
        eprintln!("error: {error}: {:?}\nhint: {}", error, error.hint().unwrap_or("none"));
        return ExitCode::FAILURE;
    }
    let trials =
        vec![trial("pods reach each other, on one node and on two", everyone_reaches_everyone)];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name.replace([' ', ','], "_"), move || {
        test();
        Ok::<(), Failed>(())
    })
}

/// Two nodes with two pods each, a host network pod, both families, and addresses that overlap in every way.
fn layout() -> Layout {
    let node =
        |name: &str, addresses: &[&str]| LabNode { name: name.into(), addresses: parse(addresses) };
    let pod = |name: &str, node: &str, host_network, addresses: &[&str]| LabPod {
        id: PodId::new("shop", name),
        addresses: parse(addresses),
        node: node.into(),
        host_network,
    };
    Layout {
        nodes: vec![node("n1", &["192.168.0.1", "fd01::1"]), node("n2", &[])],
        pods: vec![
            pod("a", "n1", false, &["10.0.0.1", "fd00::1"]),
            pod("b", "n1", false, &["192.168.0.7", "fd01::7"]),
            pod("c", "n2", false, &["10.0.0.2", "fd00::2"]),
            pod("d", "n2", false, &["192.168.0.2", "2001:db8::2"]),
            pod("h", "n2", true, &["192.168.0.9", "fd01::9"]),
        ],
        outside: parse(&["203.0.113.7", "2001:db8::7"]),
    }
}

fn parse(addresses: &[&str]) -> Vec<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

fn everyone_reaches_everyone() {
    let layout = layout();
    let lab = Lab::build(&layout).unwrap();
    let mut ends = parse(&["203.0.113.7", "2001:db8::7", "10.0.0.99"]);
    ends.extend(layout.nodes.iter().flat_map(|node| &node.addresses));
    ends.extend(layout.pods.iter().flat_map(|pod| &pod.addresses));
    let mut flows = Vec::new();
    for from in &ends {
        for to in ends.iter().filter(|to| to.is_ipv4() == from.is_ipv4()) {
            for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                flows.push(Flow { from: *from, to: *to, protocol, port: 80 });
            }
        }
    }
    let verdicts = lab.probe(&flows, PATIENCE).unwrap();
    let denied: Vec<String> = flows
        .iter()
        .zip(verdicts)
        .filter(|(_, verdict)| *verdict == Verdict::Deny)
        .map(|(flow, _)| flow.to_string())
        .collect();
    assert!(denied.is_empty(), "{denied:#?}");
}
