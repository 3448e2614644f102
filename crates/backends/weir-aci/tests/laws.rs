//! Properties of all worlds: the oracle and the files agree, and history has no influence.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use proptest::{collection::vec, prelude::*, sample::Index};
use serde_json::Value;
use weir_aci::{
    AciLimits, AciSettings, Files, GroupNames, HostprotId, HostprotObject, Hpp, NetpolLimits,
    RenderedCluster, desired, render,
};
use weir_model::{
    Action, Change, EndpointPort, EndpointSlice, ExternalTraffic, Flow, IpFamily, Object as Model,
    PolicyKind, Protocol, Scope, Selector, Service, ServiceId, ServiceKind, ServicePort,
    TargetPort, Tier, Verdict, World,
};

fn settings() -> AciSettings {
    AciSettings { prefix: "demo_xyz1".into() }
}

/// Changes in a small world with many NetworkPolicies.
fn changes() -> impl Strategy<Value = Vec<Change>> {
    weir_testkit::crowded().prop_map(|mut changes| {
        changes.retain(|change| match change {
            Change::Put(Model::Policy(policy)) => policy.id.kind == PolicyKind::NetworkPolicy,
            _ => true,
        });
        changes
    })
}

/// The same with Services, whose backends are pods and other addresses.
fn changes_with_services() -> impl Strategy<Value = Vec<Change>> {
    let slice = (0_u8..3, vec(any::<Index>(), 0..3), any::<Index>(), any::<Index>());
    (changes(), vec(slice, 0..8)).prop_map(|(mut changes, slices)| {
        let pods = changes.iter().filter_map(|change| match change {
            Change::Put(Model::Pod(pod)) => Some(pod.addresses.clone()),
            _ => None,
        });
        let outside: IpAddr = [192, 0, 2, 1].into();
        let addresses: Vec<IpAddr> = pods.flatten().chain([outside]).collect();
        for (number, backends, port, at) in slices {
            let id = |name: String| ServiceId { namespace: "a".into(), name: name.into() };
            let (protocol, target) = (Protocol::Tcp, *port.get(&[80_u16, 443, 8080]));
            let service = Service {
                id: id(format!("service-{number}")),
                kind: ServiceKind::ClusterIp,
                external_traffic: ExternalTraffic::Cluster,
                addresses: vec![
                    [10, 96, 0, number].into(),
                    format!("fd96::{number}").parse().unwrap(),
                ],
                families: Vec::new(),
                ports: vec![ServicePort {
                    name: "".into(),
                    protocol,
                    port: 1000,
                    target: TargetPort::Number(target),
                    node_port: None,
                }],
                selector: None,
                location: None,
            };
            let slice = EndpointSlice {
                id: id(format!("slice-{}", target)),
                service: service.id.name.clone(),
                addresses: backends.iter().map(|backend| *backend.get(&addresses)).collect(),
                ports: vec![EndpointPort { name: "".into(), protocol, port: target }],
                location: None,
            };
            for object in [Model::Service(service), Model::EndpointSlice(slice)] {
                changes.insert(at.index(changes.len() + 1), Change::Put(object));
            }
        }
        changes
    })
}

/// The backends of a Service in a family.
fn backends(world: &World, service: &Service, family: IpFamily) -> Vec<(IpAddr, u16)> {
    let slices = world.slices.values().filter(|slice| slice.service == service.id.name);
    let each = |slice: &EndpointSlice| {
        let port = slice.ports[0].port;
        slice.addresses.iter().map(move |address| (*address, port)).collect::<Vec<_>>()
    };
    slices.flat_map(each).filter(|(address, _)| IpFamily::from(*address) == family).collect()
}

/// Changes with policies of the admin tier that allow for all pods, and of the baseline tier.
fn changes_with_admin_policies() -> impl Strategy<Value = Vec<Change>> {
    weir_testkit::crowded().prop_map(|mut changes| {
        changes.retain(|change| match change {
            Change::Put(Model::Policy(policy)) => {
                policy.id.kind != PolicyKind::ClusterSetNetworkPolicy
            }
            _ => true,
        });
        for change in &mut changes {
            let Change::Put(Model::Policy(policy)) = change else { continue };
            let spec = std::sync::Arc::make_mut(&mut policy.spec);
            if let Tier::Admin { .. } = spec.tier {
                spec.subject.scope = Scope::Matching(Selector::everything());
                spec.subject.pods = Selector::everything();
                let rules = spec.ingress.iter_mut().chain(&mut spec.egress).flatten();
                rules.for_each(|rule| rule.action = Action::Allow);
            }
        }
        changes
    })
}

fn world(changes: &[Change]) -> World {
    let mut world = World::default();
    changes.iter().for_each(|change| world.apply(change.clone()));
    world
}

/// Whether a pod at this address has a contested address. opflex-agent enforces by endpoint, so such
/// a pod keeps its own rules.
fn is_contested(world: &World, address: IpAddr) -> bool {
    let is_shared = |address: &IpAddr| world.holders(*address).len() > 1;
    world.holders(address).iter().any(|pod| pod.own_addresses().iter().any(is_shared))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn objects_depend_on_the_world_and_not_on_its_history(
        changes in changes_with_services(),
        step in 1_usize..6,
        (block_rules, named_pairs, own_names) in (0_usize..3, 0_usize..4, 0_usize..3),
        object_bytes in 1000_usize..20_000,
    ) {
        let limits = AciLimits { block_rules, named_pairs, own_names, object_bytes };
        let mut hpp = Hpp::new(settings()).with_limits(limits.clone());
        let mut objects: BTreeMap<HostprotId, HostprotObject> = hpp.objects().clone();
        for batch in changes.chunks(step) {
            for (id, object) in hpp.apply(batch) {
                match object {
                    Some(object) => prop_assert!(objects.insert(id, object.clone()) != Some(object)),
                    None => prop_assert!(objects.remove(&id).is_some()),
                }
            }
        }
        let mut fresh = Hpp::new(settings()).with_limits(limits);
        fresh.apply(&world(&changes).changes().collect::<Vec<_>>());
        prop_assert_eq!(&objects, fresh.objects());
        prop_assert_eq!(hpp.objects(), fresh.objects());
        prop_assert_eq!(hpp.findings(), fresh.findings());
    }

    #[test]
    fn an_object_survives_a_round_trip_through_the_api(changes in changes()) {
        for (id, object) in desired(&settings(), &world(&changes)) {
            let manifest = object.manifest("aci-containers-system");
            prop_assert_eq!(manifest["metadata"]["name"].as_str(), Some(id.name.as_str()));
            prop_assert_eq!(HostprotObject::parse(id.kind, &manifest).unwrap(), object);
        }
    }

    #[test]
    fn a_node_has_the_file_of_every_group_of_its_pods(changes in changes()) {
        let world = world(&changes);
        let cluster = RenderedCluster::new(&settings(), "demo_xyz1", &world).unwrap();
        let nodes: BTreeSet<&str> = world.pods.values().filter_map(|pod| pod.node.as_deref()).collect();
        for node in nodes {
            // Pass the objects through the API format, as a node receives them.
            let mut files = Files::new(&settings(), "demo_xyz1", node, GroupNames::Hash);
            let here = world.pods.values().filter(|pod| pod.node.as_deref() == Some(node));
            here.clone().for_each(|pod| files.put_pod(pod));
            for (id, object) in cluster.hpp().objects() {
                files.put(HostprotObject::parse(id.kind, &object.manifest("x")).unwrap());
            }
            let drained: BTreeMap<String, String> =
                files.drain_dirty().filter_map(|(name, file)| Some((name, file?.text))).collect();
            let mut groups: BTreeSet<String> = BTreeSet::new();
            for pod in here.filter(|pod| !pod.own_addresses().is_empty()) {
                groups.extend(cluster.hpp().groups(pod));
            }
            // A pod can name a node that does not exist.
            let known = cluster.files().iter().filter(|file| groups.contains(file.file.trim_end_matches(".netpol")));
            for file in known {
                prop_assert_eq!(drained.get(&file.file), Some(&file.text), "{} on {}", file.file, node);
            }
        }
    }

    /// Holds also on a node that has not received all containers yet.
    #[test]
    fn a_rule_with_peers_never_matches_every_peer(changes in changes(), known in vec(any::<bool>(), 7)) {
        let (mut containers, mut pols) = (BTreeMap::new(), Vec::new());
        for (at, object) in desired(&settings(), &world(&changes)).into_values().enumerate() {
            match object {
                HostprotObject::Container(spec) if known[at % known.len()] => {
                    containers.insert(spec.name.clone(), spec);
                }
                HostprotObject::Container(_) => (),
                HostprotObject::Pol(pol) => pols.push(pol.spec),
            }
        }
        for pol in &pols {
            let mut for_all = BTreeSet::new();
            for subject in &pol.hostprot_subj {
                for rule in &subject.hostprot_rule {
                    let has_no_peers = rule.rs_remote_ip_container.is_empty() && rule.hostprot_service_remote_ips.is_empty()
                        && rule.hostprot_filter_container.hostprot_filter.is_empty();
                    for_all.extend(has_no_peers.then(|| format!("{}|{}|{}", pol.name, subject.name, rule.name)));
                }
            }
            let objects: Vec<Value> = serde_json::from_str(&render(pol, &containers, "s").text).unwrap();
            let is_empty = |object: &&Value| object["subject"] == "GbpLocalSubnets" && object["children"].as_array().is_none_or(Vec::is_empty);
            for subnets in objects.iter().filter(is_empty) {
                let name = subnets["properties"][0]["data"].as_str().unwrap();
                prop_assert!(for_all.contains(name), "{}", name);
            }
        }
    }

    /// A connection to a Service can reach any of its backends.
    #[test]
    fn a_service_is_open_only_if_all_its_backends_are(changes in changes_with_services()) {
        let mut world = world(&changes);
        for policy in world.policies.values_mut() {
            std::sync::Arc::make_mut(&mut policy.spec).ingress = None;
        }
        let cluster = RenderedCluster::new(&settings(), "demo_xyz1", &world).unwrap();
        for pod in world.pods.values() {
            for from in pod.own_addresses().iter().filter(|from| !is_contested(&world, **from)) {
                let flow = |to, port| Flow { from: *from, to, protocol: Protocol::Tcp, port };
                for service in world.services.values() {
                    let family = IpFamily::from(*from);
                    let to = service.addresses.iter().find(|to| IpFamily::from(**to) == family);
                    let to = flow(*to.unwrap(), service.ports[0].port);
                    let is_open = cluster.verdict(&to) == Verdict::Allow;
                    // Policies can allow the address of the Service itself.
                    if !is_open || weir_oracle::verdict(&world, &to) == Verdict::Allow {
                        continue;
                    }
                    let backends = backends(&world, service, family);
                    prop_assert!(!backends.is_empty(), "{to}");
                    for (address, port) in backends {
                        let to = flow(address, port);
                        if address != *from && !is_contested(&world, address) {
                            prop_assert_eq!(weir_oracle::verdict(&world, &to), Verdict::Allow, "{}", to);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn no_selector_matches_a_contested_address(changes in changes()) {
        let world = world(&changes);
        let cluster = RenderedCluster::new(&settings(), "demo_xyz1", &world).unwrap();
        for object in cluster.hpp().objects().values() {
            let HostprotObject::Container(container) = object else { continue };
            for remote in serde_json::to_value(&container.hostprot_remote_ip).unwrap().as_array().unwrap() {
                let address = remote["addr"].as_str().unwrap().parse().unwrap();
                prop_assert_eq!(world.holders(address).len(), 1, "{}", address);
            }
        }
    }

    #[test]
    fn the_files_and_the_oracle_agree(changes in changes(), flows in vec(weir_testkit::flow(), 40)) {
        let world = world(&changes);
        let cluster = RenderedCluster::new(&settings(), "demo_xyz1", &world).unwrap();
        for file in cluster.files() {
            prop_assert!(file.warnings.is_empty(), "{:?}", file.warnings);
        }
        for flow in flows {
            let (files, oracle) = (cluster.verdict(&flow), weir_oracle::verdict(&world, &flow));
            if !is_contested(&world, flow.from) && !is_contested(&world, flow.to) {
                prop_assert_eq!(files, oracle, "{}", flow);
            }
        }
    }

    #[test]
    fn policies_of_the_admin_tiers_are_expressed_or_reported(
        changes in changes_with_admin_policies(),
        flows in vec(weir_testkit::flow(), 40),
    ) {
        let world = world(&changes);
        let cluster = RenderedCluster::new(&settings(), "demo_xyz1", &world).unwrap();
        let is_reported = cluster.hpp().findings().iter().any(|finding| finding.code == "aci-kind");
        // A policy for all namespaces does not apply to those that are only mentioned.
        let is_known = |address| {
            world.holders(address).iter().all(|pod| world.namespaces.contains_key(&pod.id.namespace))
        };
        for flow in flows.iter().filter(|flow| is_known(flow.from) && is_known(flow.to)) {
            if !is_reported && !is_contested(&world, flow.from) && !is_contested(&world, flow.to) {
                prop_assert_eq!(cluster.verdict(flow), weir_oracle::verdict(&world, flow), "{}", flow);
            }
        }
    }

    #[test]
    fn limits_change_no_verdict_or_deny_and_report(
        changes in changes(),
        flows in vec(weir_testkit::flow(), 40),
        (block_rules, own_networks) in (0_usize..3, 0_usize..3),
        (object_bytes, named_pairs, own_names, pairs) in (0_usize..2000, 0_usize..3, 0_usize..2, 0_usize..20),
    ) {
        let world = world(&changes);
        let render = |limits| RenderedCluster::within(&settings(), "demo_xyz1", &world, limits).unwrap();
        let shared = AciLimits { block_rules, ..AciLimits::default() };
        let few = AciLimits { object_bytes, named_pairs, own_names, ..shared.clone() };
        let lists = NetpolLimits { own_networks, ..NetpolLimits::default() };
        let wide = render((shared, lists.clone()));
        let narrow = render((few, NetpolLimits { pairs, ..lists }));
        let is_reported = !narrow.hpp().findings().is_empty()
            || narrow.files().iter().any(|file| !file.warnings.is_empty());
        for flow in flows {
            let oracle = weir_oracle::verdict(&world, &flow);
            if is_contested(&world, flow.from) || is_contested(&world, flow.to) {
                continue;
            }
            prop_assert_eq!(wide.verdict(&flow), oracle, "{}", flow);
            prop_assert!(narrow.verdict(&flow) >= oracle, "{} must be denied", flow);
            prop_assert!(narrow.verdict(&flow) == oracle || is_reported, "{} is denied silently", flow);
        }
    }
}
