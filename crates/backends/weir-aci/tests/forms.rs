//! The output where the published format is ambiguous or too weak.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use weir_aci::{AciSettings, Evaluator, HostprotId, HostprotKind, HostprotObject, Hpp, render};
use weir_api::ManifestReader;
use weir_model::{Change, Claim, Direction, Key, Pod, PodId, Protocol};

/// Two namespaces with pods of both families.
const PODS: &str = r#"
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: shop}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: jobs, labels: {team: jobs}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}, status: {podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, labels: {app: api}}, spec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}, status: {podIPs: [{ip: 10.0.0.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: bare, namespace: jobs}, status: {podIPs: [{ip: 10.0.0.3}]}}
"#;

fn policy(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: shop}}, spec: {spec}}}"
    )
}

fn hpp(policies: &[String]) -> Hpp {
    let mut reader = ManifestReader::new();
    reader.read_file("pods.yaml".into(), PODS.as_bytes());
    for (at, text) in policies.iter().enumerate() {
        reader.read_file(format!("{at}.yaml").into(), text.as_bytes());
    }
    let manifests = reader.finish();
    assert_eq!(manifests.findings, []);
    let changes: Vec<Change> = manifests.objects.into_iter().map(Change::Put).collect();
    let mut hpp = Hpp::new(AciSettings { prefix: "k".into() });
    hpp.apply(&changes);
    hpp
}

/// The specs of the objects that policies create.
fn pols(hpp: &Hpp) -> Vec<Value> {
    let objects = hpp.objects().iter().filter(|(id, _)| {
        id.kind == HostprotKind::Pol && id.name.starts_with("k-np-") && !id.name.contains("static")
    });
    objects.map(|(_, object)| object.manifest("x")["spec"].clone()).collect()
}

/// The rules of a policy, one per line.
fn rules(spec: &str) -> String {
    let pols = pols(&hpp(&[policy("np", spec)]));
    let mut lines = Vec::new();
    for rule in pols.iter().flat_map(|pol| pol["hostprotSubj"].as_array().unwrap()) {
        for rule in rule["hostprotRule"].as_array().into_iter().flatten() {
            let text = |key: &str| rule[key].as_str().unwrap_or_default().to_owned();
            let of = match rule["hostprotServiceRemoteIps"].as_array() {
                Some(list) => format!("{}", json!(list)),
                None => {
                    format!("{} {}", rule["rsRemoteIpContainer"], rule["hostprotFilterContainer"])
                }
            };
            let ports = format!("{} {}-{}", text("protocol"), text("fromPort"), text("toPort"));
            lines.push(format!("{} {}: {ports} {of}", text("direction"), text("name"),));
        }
    }
    lines.join("\n")
}

#[track_caller]
fn check(spec: &str, expected: Expect) {
    expected.assert_eq(&rules(spec));
}

#[test]
fn each_peer_has_separate_rules() {
    check(
        "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}, {namespaceSelector: {matchLabels: {team: jobs}}}, {ipBlock: {cidr: 192.168.0.0/30, except: [192.168.0.1/32]}}, {ipBlock: {cidr: 'fd01::/64'}}]}]}",
        expect![[r#"
            ingress 0-ipv4: unspecified unspecified-unspecified ["shop"] {"hostprotFilter":[{"key":"app","operator":"Equals","values":["api"]}]}
            ingress 0-ipv4__1: unspecified unspecified-unspecified ["jobs"] {}
            ingress 0-ipv4__2: unspecified unspecified-unspecified ["192.168.0.0","192.168.0.2/31"]
            ingress 0-ipv6__3: unspecified unspecified-unspecified ["fd01::/64"]"#]],
    );
}

#[test]
fn a_port_range_has_two_ends_and_a_single_port_only_to_port() {
    check(
        "{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 90}, {port: 443}, {port: 53, protocol: UDP}, {protocol: SCTP}]}]}",
        expect![[r#"
            ingress 0_0-ipv4: tcp 80-90 null {}
            ingress 0_0-ipv6: tcp 80-90 null {}
            ingress 0_1-ipv4: tcp unspecified-443 null {}
            ingress 0_1-ipv6: tcp unspecified-443 null {}
            ingress 0_2-ipv4: udp unspecified-53 null {}
            ingress 0_2-ipv6: udp unspecified-53 null {}
            ingress 0_3-ipv4: sctp unspecified-unspecified null {}
            ingress 0_3-ipv6: sctp unspecified-unspecified null {}"#]],
    );
}

#[test]
fn a_mark_expresses_absent_labels() {
    let spec = "{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [web]}]}}]}]}";
    check(
        spec,
        expect![[
            r#"ingress 0-ipv4: unspecified unspecified-unspecified ["jobs","shop"] {"hostprotFilter":[{"key":"!selected/a33977c950a21c4325ee9f4e5edba986","operator":"Equals","values":["yes"]}]}"#
        ]],
    );
    let hpp = hpp(&[policy("np", spec)]);
    let containers: Vec<String> = ["jobs", "shop"]
        .iter()
        .map(|name| {
            let object = hpp.objects().iter().find(|(id, _)| id.name == *name).unwrap().1;
            object.manifest("x")["spec"]["hostprotRemoteIp"].to_string()
        })
        .collect();
    expect![[r#"
        [{"addr":"10.0.0.3","hppEpLabel":[{"key":"!selected/a33977c950a21c4325ee9f4e5edba986","value":"yes"}]}]
        [{"addr":"10.0.0.1","hppEpLabel":[{"key":"app","value":"web"}]},{"addr":"10.0.0.2","hppEpLabel":[{"key":"app","value":"api"},{"key":"!selected/a33977c950a21c4325ee9f4e5edba986","value":"yes"}]},{"addr":"fd00::1","hppEpLabel":[{"key":"app","value":"web"}]}]"#]].assert_eq(&containers.join("\n"));
}

#[test]
fn a_mark_expresses_named_ports_of_peers() {
    check(
        "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}], ports: [{port: http}]}]}",
        expect![[r#"
            egress 0_0-ipv4: tcp unspecified-80 ["shop"] {"hostprotFilter":[{"key":"!port/tcp/http","operator":"Equals","values":["80"]}]}
            egress 0_0-ipv6: tcp unspecified-80 ["shop"] {"hostprotFilter":[{"key":"!port/tcp/http","operator":"Equals","values":["80"]}]}
            egress 0_1-ipv4: tcp unspecified-8080 ["shop"] {"hostprotFilter":[{"key":"!port/tcp/http","operator":"Equals","values":["8080"]}]}"#]],
    );
    check(
        "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/31}}], ports: [{port: http}]}]}",
        expect![[r#"egress 0_0-ipv4: tcp unspecified-80 ["10.0.0.1"]"#]],
    );
}

#[test]
fn each_numbering_of_named_ports_gets_a_separate_object() {
    let spec = "{podSelector: {}, ingress: [{ports: [{port: http}]}]}";
    check(
        spec,
        expect![[r#"
        ingress 0_0-ipv4: tcp unspecified-8080 null {}
        ingress 0_0-ipv6: tcp unspecified-8080 null {}
        ingress 0_0-ipv4: tcp unspecified-80 null {}
        ingress 0_0-ipv6: tcp unspecified-80 null {}"#]],
    );
    let hpp = hpp(&[policy("np", spec)]);
    assert_eq!(pols(&hpp).len(), 2);
}

#[test]
fn different_policies_with_equal_published_text_do_not_share_an_object() {
    let range = |last: u16| {
        format!("{{podSelector: {{}}, ingress: [{{ports: [{{port: 80, endPort: {last}}}]}}]}}")
    };
    let names = |policies: &[String]| -> Vec<String> {
        let pols = pols(&hpp(policies));
        pols.iter().map(|pol| pol["name"].as_str().unwrap().to_owned()).collect()
    };
    let (one, other) = (policy("one", &range(90)), policy("other", &range(91)));
    let alone = names(std::slice::from_ref(&one));
    assert_eq!(alone, names(std::slice::from_ref(&other)));
    let both = names(&[one.clone(), other.clone()]);
    assert_eq!(both.len(), 2);
    assert!(!both.contains(&alone[0]), "no object keeps an ambiguous name");
    let codes: Vec<&str> =
        hpp(&[one, other]).findings().iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["aci-hash", "aci-hash"]);
}

/// The published text omits the end of a port range, so the object keeps its name and gets new
/// rules.
#[test]
fn an_update_that_keeps_the_published_text_keeps_the_object() {
    let upto = |last: u16| {
        let spec =
            format!("{{podSelector: {{}}, ingress: [{{ports: [{{port: 80, endPort: {last}}}]}}]}}");
        policy("np", &spec)
    };
    for (before, after) in [(90, 95), (95, 90)] {
        let mut hpp = hpp(&[upto(before)]);
        let mut reader = ManifestReader::new();
        reader.read_file("after.yaml".into(), upto(after).as_bytes());
        let changes: Vec<Change> = reader.finish().objects.into_iter().map(Change::Put).collect();
        let changed = hpp.apply(&changes);
        assert_eq!(changed.len(), 1, "from {before} to {after}");
        let fresh = self::hpp(&[upto(after)]);
        assert_eq!(hpp.objects(), fresh.objects(), "from {before} to {after}");
    }
}

#[test]
fn a_rejected_policy_allows_nothing() {
    let mut reader = ManifestReader::new();
    reader.read_file("pods.yaml".into(), PODS.as_bytes());
    let rejected = policy("np", "{podSelector: {}, ingress: [{from: [{}]}]}");
    reader.read_file("np.yaml".into(), rejected.as_bytes());
    let changes: Vec<Change> = reader.finish().objects.into_iter().map(Change::Put).collect();
    let mut hpp = Hpp::new(AciSettings { prefix: "k".into() });
    hpp.apply(&changes);
    let pols = pols(&hpp);
    assert_eq!(pols.len(), 1);
    for subject in pols[0]["hostprotSubj"].as_array().unwrap() {
        assert_eq!(subject["hostprotRule"], Value::Null);
    }
}

#[test]
fn a_pod_changes_rules_only_if_it_is_the_first_or_last_with_its_profile() {
    let spec = "{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}]}]}";
    let mut hpp = hpp(&[policy("np", spec)]);
    let pod = |name: &str, address: &str, app: &str| {
        let mut reader = ManifestReader::new();
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: jobs, labels: {{app: {app}}}}}, status: {{podIP: {address}}}}}"
        );
        reader.read_file("pod.yaml".into(), text.as_bytes());
        let objects = reader.finish().objects.into_iter();
        objects
            .map(Change::Put)
            .filter(|change| matches!(change, Change::Put(weir_model::Object::Pod(_))))
            .collect::<Vec<_>>()
    };
    let names = |changed: weir_aci::Changed| -> Vec<String> {
        changed.into_keys().map(|id| format!("{} {}", id.kind.name(), id.name)).collect()
    };
    assert_eq!(
        names(hpp.apply(&pod("other", "10.0.1.1", "db"))),
        ["HostprotRemoteIpContainer jobs"]
    );
    let first = names(hpp.apply(&pod("one", "10.0.1.2", "web")));
    assert_eq!(first.len(), 2, "{first:?}");
    assert_eq!(
        names(hpp.apply(&pod("two", "10.0.1.3", "web"))),
        ["HostprotRemoteIpContainer jobs"]
    );
    assert_eq!(
        names(hpp.apply(&pod("two", "10.0.1.4", "web"))),
        ["HostprotRemoteIpContainer jobs"]
    );
    assert_eq!(names(hpp.apply(&pod("two", "10.0.1.4", "web"))), [""; 0]);
}

/// Renders an object that another controller wrote.
fn foreign(rule: Value) -> weir_aci::Netpol {
    foreign_subjects(json!([{"name": "s", "hostprotRule": [rule]}]))
}

fn foreign_subjects(subjects: Value) -> weir_aci::Netpol {
    let manifest = json!({
        "metadata": {"name": "k-np-1"},
        "spec": {"name": "k_np_1", "hostprotSubj": subjects},
    });
    let HostprotObject::Pol(pol) = HostprotObject::parse(HostprotKind::Pol, &manifest).unwrap()
    else {
        panic!()
    };
    render(&pol.spec, &BTreeMap::new(), "k")
}

fn rule(more: Value) -> Value {
    let mut rule =
        json!({"name": "r", "direction": "ingress", "ethertype": "ipv4", "connTrack": "reflexive"});
    rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    rule
}

#[test]
fn a_rule_whose_container_is_empty_or_missing_is_not_written() {
    for more in [
        json!({"rsRemoteIpContainer": ["nowhere"]}),
        json!({"hostprotFilterContainer": {"hostprotFilter": [{"key": "a", "operator": "Exists"}]}}),
        json!({"hostprotServiceRemoteIps": ["fd00::1"]}),
        json!({"hostprotServiceRemoteIps": ["nonsense"]}),
    ] {
        let netpol = foreign(rule(more.clone()));
        assert!(!netpol.text.contains("GbpLocalSecGroupRule"), "{more}");
        let mut evaluator = Evaluator::default();
        evaluator.add(&netpol.text).unwrap();
        let remote = "10.0.0.1".parse().unwrap();
        let groups = ["k_np_1".to_owned()];
        assert!(
            !evaluator.allows(&groups, Direction::Ingress, remote, (Protocol::Tcp, 80)),
            "{more}"
        );
    }
}

#[test]
fn an_invalid_rule_is_left_out_and_reported() {
    let warning = |more: Value| {
        let netpol = foreign(rule(more));
        assert!(!netpol.text.contains("GbpLocalSecGroupRule"));
        netpol.warnings.join("\n")
    };
    expect![[r#"
        rule k_np_1|s|r is left out: direction: expected ingress or egress, not "sideways"
        rule k_np_1|s|r is left out: ethertype: expected ipv4, ipv6 or arp, not "ipx"
        rule k_np_1|s|r is left out: connTrack: expected reflexive or normal, not ""
        rule k_np_1|s|r is left out: protocol: "tcp4" is unknown
        rule k_np_1|s|r is left out: toPort: expected a port, not "65536"
        rule k_np_1|s|a/../b is left out: its name is a duplicate or has characters that a URI cannot hold"#]].assert_eq(
        &[
            warning(json!({"direction": "sideways"})),
            warning(json!({"ethertype": "ipx"})),
            warning(json!({"connTrack": ""})),
            warning(json!({"protocol": "tcp4"})),
            warning(json!({"toPort": "65536"})),
            warning(json!({"name": "a/../b"})),
        ]
        .join("\n"),
    );
}

#[test]
fn a_subject_without_a_name_of_its_own_is_left_out_and_reported() {
    let allow = || json!([rule(json!({"hostprotServiceRemoteIps": ["10.0.0.1"]}))]);
    let netpol = foreign_subjects(json!([
        {"name": "s", "hostprotRule": allow()},
        {"name": "s", "hostprotRule": allow()},
        {"name": "a/b", "hostprotRule": allow()},
        {"hostprotRule": allow()},
    ]));
    Evaluator::default().add(&netpol.text).unwrap();
    expect![[r#"
        subject k_np_1|s is left out: its name is a duplicate or has characters that a URI cannot hold
        subject k_np_1|a/b is left out: its name is a duplicate or has characters that a URI cannot hold
        subject k_np_1| is left out: its name is a duplicate or has characters that a URI cannot hold"#]]
    .assert_eq(&netpol.warnings.join("\n"));
}

#[test]
fn an_unsafe_name_is_rejected() {
    for name in ["../../etc/passwd", ".hidden", "", "a/b"] {
        let manifest =
            json!({"metadata": {"name": name.replace('_', "-")}, "spec": {"name": name}});
        let error = HostprotObject::parse(HostprotKind::Pol, &manifest).unwrap_err().to_string();
        assert!(error.contains("spec.name is invalid"), "{error}");
    }
    let manifest = json!({"metadata": {"name": "a"}, "spec": {"name": "b"}});
    assert!(HostprotObject::parse(HostprotKind::Pol, &manifest).is_err());
    let manifest = json!({"metadata": {"name": "a"}, "spec": {"hostprotRemoteIp": 1}});
    assert!(HostprotObject::parse(HostprotKind::Container, &manifest).is_err());
}

/// The paths of all fields that a CRD could fail to define.
fn paths(value: &Value, at: &str, all: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            let path = format!("{at}/{key}");
            paths(value, &path, all);
            all.push(path);
        }),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, one)| paths(one, &format!("{at}/{i}"), all));
        }
        _ => (),
    }
}

#[test]
fn an_object_that_lost_a_field_is_replaced_by_one_that_allows_nothing() {
    let whole = json!({"name": "k_np_1", "networkPolicies": ["a/b"], "hostprotSubj": [{"name": "s", "hostprotRule": [rule(json!({
        "protocol": "tcp", "toPort": "90", "fromPort": "80",
        "rsRemoteIpContainer": ["shop"],
        "hostprotFilterContainer": {"hostprotFilter": [{"key": "a", "operator": "In", "values": ["b"]}]},
        "hostprotServiceRemoteIps": ["10.0.0.1"],
    }))]}]});
    let container = json!({"name": "shop", "hostprotRemoteIp": [{"addr": "10.0.0.1", "hppEpLabel": [{"key": "a", "value": "b"}]}]});
    let mut seen = 0;
    for (kind, name, spec) in
        [(HostprotKind::Pol, "k-np-1", whole), (HostprotKind::Container, "shop", container)]
    {
        let original = json!({"metadata": {"name": name}, "spec": spec});
        let object = HostprotObject::parse(kind, &original).unwrap();
        let manifest = object.manifest("x");
        assert_eq!(HostprotObject::parse(kind, &manifest).unwrap(), object);
        let mut all = Vec::new();
        paths(&manifest["spec"], "/spec", &mut all);
        // The name comes from the metadata, or makes the object invalid.
        for path in all.iter().filter(|path| *path != "/spec/name") {
            let mut less = manifest.clone();
            let (parent, key) = path.rsplit_once('/').unwrap();
            less.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(key).unwrap();
            let error = HostprotObject::parse(kind, &less).unwrap_err();
            assert!(
                error.to_string().contains("spec is invalid: it does not match its annotation")
            );
            match *error.fallback.unwrap() {
                HostprotObject::Container(spec) => {
                    assert_eq!((&*spec.name, spec.hostprot_remote_ip.len()), ("shop", 0));
                }
                HostprotObject::Pol(pol) => {
                    let netpol = render(&pol.spec, &BTreeMap::new(), "k");
                    assert_eq!(netpol.file, "k_np_1.netpol", "{path}");
                    assert!(!netpol.text.contains("GbpLocalSecGroupRule"), "{path}");
                }
            }
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn addresses_that_do_not_fit_into_one_object_are_reported() {
    let mut hpp = hpp(&[]);
    let pods = |from: u32, to: u32| -> Vec<Change> {
        let pod = |number: u32| Pod {
            id: PodId::new("jobs", format!("job-{number}")),
            labels: [("app", "job"), ("a-long-name-of-a-label", "and a long value of it")]
                .into_iter()
                .collect(),
            addresses: vec![std::net::Ipv4Addr::from_bits(0x0a01_0000 + number).into()],
            node: None,
            ports: Vec::new(),
            host_network: false,
            finished: false,
            claim: Claim::Running,
            uid: None,
            owner: None,
            location: None,
        };
        (from..to).map(|number| Change::Put(weir_model::Object::Pod(pod(number)))).collect()
    };
    hpp.apply(&pods(0, 1_000));
    assert_eq!(hpp.findings(), []);
    hpp.apply(&pods(1_000, 15_000));
    let container = HostprotId { kind: HostprotKind::Container, name: "jobs".into() };
    let manifest = hpp.objects()[&container].manifest("x");
    let included = manifest["spec"]["hostprotRemoteIp"].as_array().unwrap().len();
    assert!(manifest.to_string().len() < 1_400_000 && included > 5_000, "{included}");
    let findings = hpp.findings();
    assert_eq!((findings.len(), findings[0].code), (1, "aci-size"));
    // The namespace already had one pod.
    let message = format!("{} addresses of its pods do not fit", 15_001 - included);
    assert!(findings[0].message.starts_with(&message), "{}", findings[0].message);
    let gone = (100..15_000).map(|number| Key::Pod(PodId::new("jobs", format!("job-{number}"))));
    hpp.apply(&gone.map(Change::Remove).collect::<Vec<_>>());
    assert_eq!(hpp.findings(), []);
}
