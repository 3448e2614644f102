//! Egress through Services: rules for their addresses, in the files that opflex-agent reads.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::net::IpAddr;

use expect_test::{Expect, expect};
use weir_aci::{
    AciLimits, AciSettings, Evaluator, HostprotKind, HostprotObject, Hpp, NetpolLimits,
    RenderedCluster, render,
};
use weir_api::ManifestReader;
use weir_model::{Change, Direction, Key, Object, PodId, Protocol, ServiceId, World};

/// Clients in `shop`, a Service with one port of both families in `prod`, and DNS.
const CLUSTER: &str = r#"
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: prod, labels: {purpose: production}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}
---
{apiVersion: v1, kind: Pod, metadata: {name: client, namespace: shop}, status: {podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db-0, namespace: prod, labels: {app: db, pod: "0"}}, spec: {containers: [{name: c, ports: [{name: sql, containerPort: 8080}]}]}, status: {podIPs: [{ip: 10.0.1.1}, {ip: "fd00:1::1"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db-1, namespace: prod, labels: {app: db, pod: "1"}}, spec: {containers: [{name: c, ports: [{name: sql, containerPort: 8080}]}]}, status: {podIPs: [{ip: 10.0.1.2}, {ip: "fd00:1::2"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: dns, namespace: kube-system, labels: {k8s-app: kube-dns}}, spec: {containers: [{name: c}]}, status: {podIPs: [{ip: 10.0.2.1}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: prod}, spec: {selector: {app: db}, clusterIP: 10.96.0.77, clusterIPs: [10.96.0.77, "fd96::77"], ports: [{name: sql, port: 80, targetPort: 8080}, {name: admin, port: 81, targetPort: 8081}]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.7}, {hostname: db.example.com}]}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-v4, namespace: prod, labels: {kubernetes.io/service-name: db}}, addressType: IPv4, endpoints: [{addresses: [10.0.1.1]}, {addresses: [10.0.1.2], conditions: {ready: false}}], ports: [{name: sql, port: 8080}, {name: admin, port: 8081}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-v6, namespace: prod, labels: {kubernetes.io/service-name: db}}, addressType: IPv6, endpoints: [{addresses: ["fd00:1::1"]}, {addresses: ["fd00:1::2"]}], ports: [{name: sql, port: 8080}, {name: admin, port: 8081}]}
---
{apiVersion: v1, kind: Service, metadata: {name: kube-dns, namespace: kube-system}, spec: {clusterIP: 10.96.0.10, ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}, addressType: IPv4, endpoints: [{addresses: [10.0.2.1]}], ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}]}
---
{apiVersion: v1, kind: Service, metadata: {name: kubernetes, namespace: default}, spec: {clusterIP: 10.96.0.1, ports: [{name: https, port: 443, targetPort: 6443}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}, addressType: IPv4, endpoints: [{addresses: [192.168.0.5]}, {addresses: [192.168.0.6]}], ports: [{name: https, port: 6443}]}
---
{apiVersion: v1, kind: Service, metadata: {name: headless, namespace: prod}, spec: {clusterIP: None, ports: [{port: 80, targetPort: 8080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: elsewhere, namespace: prod}, spec: {type: ExternalName, externalName: example.com}}
---
{apiVersion: v1, kind: Service, metadata: {name: unused, namespace: prod}, spec: {clusterIP: 10.96.0.99, externalIPs: [198.51.100.1], ports: [{port: 80}]}}
"#;

fn policy(egress: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: np, namespace: shop}}, spec: {{podSelector: {{}}, policyTypes: [Egress], egress: {egress}}}}}"
    )
}

fn changes(texts: &[&str]) -> Vec<Change> {
    let mut reader = ManifestReader::new();
    for (at, text) in texts.iter().enumerate() {
        reader.read_file(format!("{at}.yaml").into(), text.as_bytes());
    }
    let manifests = reader.finish();
    assert_eq!(manifests.findings, []);
    manifests.objects.into_iter().map(Change::Put).collect()
}

fn settings() -> AciSettings {
    AciSettings { prefix: "k".into() }
}

fn hpp(egress: &str) -> Hpp {
    let mut hpp = Hpp::new(settings());
    hpp.apply(&changes(&[CLUSTER, &policy(egress)]));
    hpp
}

/// The rules for Services, one per line, and the findings.
fn service_rules(hpp: &Hpp) -> String {
    let pols = hpp.objects().values().filter_map(|object| match object {
        HostprotObject::Pol(pol) if pol.selects.is_some() => Some(pol),
        _ => None,
    });
    let rules = pols.flat_map(|pol| &pol.spec.hostprot_subj).flat_map(|one| &one.hostprot_rule);
    let lines = rules.filter(|rule| rule.name.starts_with("service_")).map(|rule| {
        assert_eq!((&*rule.direction, &*rule.from_port), ("egress", "unspecified"));
        format!("{} {} {:?}\n", rule.name, rule.to_port, rule.hostprot_service_remote_ips)
    });
    let findings = hpp.findings().into_iter();
    let findings = findings.map(|finding| format!("{}: {}\n", finding.code, finding.message));
    lines.chain(findings).collect()
}

#[track_caller]
fn check(egress: &str, expected: Expect) {
    expected.assert_eq(&service_rules(&hpp(egress)));
}

#[test]
fn a_service_is_open_at_the_ports_whose_backends_are_allowed() {
    check(
        "[{to: [{namespaceSelector: {matchLabels: {purpose: production}}}], ports: [{port: 8080}]}]",
        expect![[r#"
            service_tcp_80-ipv4 80 ["10.96.0.77", "192.0.2.7"]
            service_tcp_80-ipv6 80 ["fd96::77"]
        "#]],
    );
    check(
        "[{to: [{namespaceSelector: {matchLabels: {purpose: production}}}]}]",
        expect![[r#"
        service_tcp_80-ipv4 80 ["10.96.0.77", "192.0.2.7"]
        service_tcp_81-ipv4 81 ["10.96.0.77", "192.0.2.7"]
        service_tcp_80-ipv6 80 ["fd96::77"]
        service_tcp_81-ipv6 81 ["fd96::77"]
    "#]],
    );
    check(
        "[{to: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}], ports: [{port: 8080, endPort: 8090}]}]",
        expect![[r#"
            service_tcp_80-ipv4 80 ["10.96.0.77", "192.0.2.7"]
            service_tcp_81-ipv4 81 ["10.96.0.77", "192.0.2.7"]
            service_tcp_80-ipv6 80 ["fd96::77"]
            service_tcp_81-ipv6 81 ["fd96::77"]
        "#]],
    );
    check("[{to: [{podSelector: {}}]}]", expect![""]);
    check("[{to: [{namespaceSelector: {}}], ports: [{port: 8080, protocol: UDP}]}]", expect![""]);
}

#[test]
fn dns_is_open_through_its_cluster_ip() {
    check(
        "[{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{port: 53, protocol: UDP}]}]",
        expect![[r#"
            service_udp_53-ipv4 53 ["10.96.0.10"]
        "#]],
    );
}

#[test]
fn a_named_port_is_that_of_the_backends() {
    check(
        "[{to: [{namespaceSelector: {}}], ports: [{port: sql}]}]",
        expect![[r#"
        service_tcp_80-ipv4 80 ["10.96.0.77", "192.0.2.7"]
        service_tcp_80-ipv6 80 ["fd96::77"]
    "#]],
    );
    check(
        "[{ports: [{port: sql}]}]",
        expect![[r#"
        service_tcp_80-ipv4 80 ["10.96.0.77", "192.0.2.7"]
        service_tcp_80-ipv6 80 ["fd96::77"]
    "#]],
    );
    check(
        "[{to: [{ipBlock: {cidr: 10.0.1.0/24}}], ports: [{port: sql}]}]",
        expect![[r#"
        service_tcp_80-ipv4 80 ["10.96.0.77", "192.0.2.7"]
    "#]],
    );
}

#[test]
fn blocks_admit_backends_outside_the_cluster() {
    check(
        "[{to: [{ipBlock: {cidr: 192.168.0.0/24}}], ports: [{port: 6443}]}]",
        expect![[r#"
        service_tcp_443-ipv4 443 ["10.96.0.1"]
    "#]],
    );
    check(
        "[{to: [{ipBlock: {cidr: 10.0.1.0/24}}]}]",
        expect![[r#"
        service_tcp_80-ipv4 80 ["10.96.0.77", "192.0.2.7"]
        service_tcp_81-ipv4 81 ["10.96.0.77", "192.0.2.7"]
    "#]],
    );
}

#[test]
fn all_peers_of_a_port_admit_every_service_with_that_target() {
    check(
        "[{ports: [{port: 8080}]}]",
        expect![[r#"
        service_tcp_80-ipv4 80 ["10.96.0.77", "192.0.2.7"]
        service_tcp_80-ipv6 80 ["fd96::77"]
    "#]],
    );
    check("[{ports: [{protocol: UDP, port: 50, endPort: 60}]}]", expect![""]);
}

#[test]
fn a_policy_that_allows_the_address_of_a_service_needs_no_rule() {
    check("[{}]", expect![""]);
    check("[{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]", expect![""]);
    check(
        "[{to: [{ipBlock: {cidr: 10.96.0.0/16}}]}, {to: [{namespaceSelector: {}}], ports: [{port: 53}]}]",
        expect![""],
    );
}

#[test]
fn a_service_with_other_backends_stays_closed_and_is_reported() {
    check(
        "[{to: [{namespaceSelector: {}, podSelector: {matchLabels: {pod: '0'}}}]}, {to: [{ipBlock: {cidr: 192.168.0.5/32}}]}]",
        expect![[r#"
            aci-service: it allows some backends of these Services but not all, so connections through their addresses are denied: default/kubernetes:443/TCP, prod/db:80/TCP, prod/db:81/TCP
        "#]],
    );
}

#[test]
fn rules_of_one_policy_add_up() {
    check(
        "[{to: [{namespaceSelector: {}, podSelector: {matchLabels: {pod: '0'}}}]}, {to: [{ipBlock: {cidr: 10.0.1.2/32}}], ports: [{port: 8080}]}]",
        expect![[r#"
            service_tcp_80-ipv4 80 ["10.96.0.77", "192.0.2.7"]
            aci-service: it allows some backends of these Services but not all, so connections through their addresses are denied: prod/db:80/TCP, prod/db:81/TCP
        "#]],
    );
}

#[test]
fn rules_follow_services_slices_pods_and_namespaces() {
    let mut hpp = hpp(
        "[{to: [{namespaceSelector: {matchLabels: {purpose: production}}, podSelector: {matchLabels: {app: db}}}], ports: [{port: 8080}]}]",
    );
    let id = |name: &str| ServiceId { namespace: "prod".into(), name: name.into() };
    let mut world = World::default();
    changes(&[CLUSTER]).into_iter().for_each(|change| world.apply(change));
    let mut steps: Vec<(&str, Change)> = Vec::new();
    let service = &world.services[&id("db")];
    let mut moved = service.clone();
    moved.addresses = vec!["10.96.0.78".parse().unwrap()];
    steps.push(("other address", Change::Put(Object::Service(moved))));
    let slice = &world.slices[&id("db-v4")];
    let mut wider = slice.clone();
    wider.addresses.push("10.0.2.1".parse().unwrap());
    steps.push(("a backend that is not allowed", Change::Put(Object::EndpointSlice(wider))));
    steps.push(("without it", Change::Put(Object::EndpointSlice(slice.clone()))));
    let pod = &world.pods[&PodId::new("prod", "db-1")];
    let mut relabelled = pod.clone();
    relabelled.labels = [("app", "web")].into_iter().collect();
    steps.push(("a backend with other labels", Change::Put(Object::Pod(relabelled))));
    steps.push(("as before", Change::Put(Object::Pod(pod.clone()))));
    let namespace = &world.namespaces["prod"];
    let mut other = namespace.clone();
    other.labels = [("purpose", "tests")].into_iter().collect();
    steps.push(("another purpose", Change::Put(Object::Namespace(other))));
    steps.push(("production", Change::Put(Object::Namespace(namespace.clone()))));
    steps.push(("no slice", Change::Remove(Key::EndpointSlice(id("db-v4")))));
    steps.push(("a slice", Change::Put(Object::EndpointSlice(slice.clone()))));
    steps.push(("no service", Change::Remove(Key::Service(id("db")))));
    let mut seen = format!("start\n{}", service_rules(&hpp));
    for (what, change) in steps {
        hpp.apply(&[change]);
        seen += &format!("{what}\n{}", service_rules(&hpp));
    }
    expect![[r#"
        start
        service_tcp_80-ipv4 80 ["10.96.0.77", "192.0.2.7"]
        service_tcp_80-ipv6 80 ["fd96::77"]
        other address
        service_tcp_80-ipv4 80 ["10.96.0.78"]
        a backend that is not allowed
        aci-service: it allows some backends of these Services but not all, so connections through their addresses are denied: prod/db:80/TCP
        without it
        service_tcp_80-ipv4 80 ["10.96.0.78"]
        a backend with other labels
        aci-service: it allows some backends of these Services but not all, so connections through their addresses are denied: prod/db:80/TCP
        as before
        service_tcp_80-ipv4 80 ["10.96.0.78"]
        another purpose
        production
        service_tcp_80-ipv4 80 ["10.96.0.78"]
        no slice
        a slice
        service_tcp_80-ipv4 80 ["10.96.0.78"]
        no service
    "#]].assert_eq(&seen);
}

#[test]
fn the_files_open_the_service_and_nothing_else() {
    let hpp = hpp(
        "[{to: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}], ports: [{port: 8080}]}]",
    );
    let mut evaluator = Evaluator::default();
    let containers = hpp.objects().values().filter_map(|object| match object {
        HostprotObject::Container(spec) => Some((spec.name.clone(), spec.clone())),
        HostprotObject::Pol(_) => None,
    });
    let containers = containers.collect();
    for (id, object) in hpp.objects() {
        if let (HostprotKind::Pol, HostprotObject::Pol(pol)) = (id.kind, object) {
            evaluator.add(&render(&pol.spec, &containers, "k").text).unwrap();
        }
    }
    let mut world = World::default();
    changes(&[CLUSTER]).into_iter().for_each(|change| world.apply(change));
    let groups = hpp.groups(&world.pods[&PodId::new("shop", "client")]);
    let allows = |address: &str, port: u16| {
        let address: IpAddr = address.parse().unwrap();
        evaluator.allows(&groups, Direction::Egress, address, (Protocol::Tcp, port))
    };
    for address in ["10.96.0.77", "fd96::77", "192.0.2.7"] {
        assert!(allows(address, 80), "{address}");
        assert!(!allows(address, 81) && !allows(address, 8080), "{address}");
    }
    assert!(!allows("10.96.0.10", 53) && !allows("10.96.0.99", 80) && !allows("198.51.100.1", 80));
    assert!(allows("10.0.1.1", 8080) && !allows("10.0.1.1", 80));
}

#[test]
fn rules_for_services_that_do_not_fit_are_reported_and_the_others_stay() {
    let mut world = World::default();
    let egress = "[{to: [{namespaceSelector: {}}], ports: [{port: 8080}]}]";
    changes(&[CLUSTER, &policy(egress)]).into_iter().for_each(|change| world.apply(change));
    let limits = AciLimits { object_bytes: 700, ..AciLimits::default() };
    let limits = (limits, NetpolLimits::default());
    let cluster = RenderedCluster::within(&settings(), "k", &world, limits).unwrap();
    expect![[r#"
        service_tcp_80-ipv4 80 ["10.96.0.77", "192.0.2.7"]
        aci-service: 1 of its rules for Services do not fit into a HostprotPol: connections through these Services are denied
    "#]].assert_eq(&service_rules(cluster.hpp()));
}
