use expect_test::{Expect, expect};

use super::*;
use crate::testing::{finding, object, read};

/// Reads cases and shows their objects, their probes with flows, and their findings.
#[track_caller]
fn check(text: &str, expected: Expect) {
    expected.assert_eq(&cases("f".into(), text.as_bytes()).iter().map(show).collect::<String>());
}

fn show(case: &Case) -> String {
    let world = case.objects.iter().cloned().collect();
    let mut out = format!("case {} at {}\n", case.name, case.location);
    out.extend(case.objects.iter().map(object));
    for probe in &case.probes {
        let flow = match probe.flow(&world) {
            Ok(flow) => flow.to_string(),
            Err(error) => error.to_string(),
        };
        let note = probe.note.as_deref().unwrap_or_default();
        out.push_str(&format!(
            "{}: {} {} {flow} {} {note}\n",
            probe.line, probe.from, probe.to, probe.expect
        ));
    }
    out.extend(case.findings.iter().map(finding));
    out
}

#[test]
fn a_case_contains_objects_and_probes() {
    check(
        "
name: only the api reaches the database
source: a design
namespaces: [{name: shop, labels: {team: shop}}]
pods:
- {namespace: shop, name: api, labels: {app: api}, ips: [10.0.0.1, \"fd00::1\"], node: n1}
- {namespace: shop, name: db,  labels: {app: db},  ips: [10.0.0.2], ports: [{name: sql, containerPort: 5432, protocol: TCP}, {containerPort: 1}]}
- {name: agent, hostNetwork: true, node: n1}
- {name: done, phase: Succeeded, terminating: true}
- {name: young, ips: []}
nodes: [{name: n1, ips: [192.168.0.1]}]
dns: {Example.com.: [203.0.113.1]}
policies: [{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}}]
adminPolicies: [{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: a}, spec: {priority: 1, subject: {namespaces: {}}}}]
probes:
- {from: {pod: shop/api}, to: {pod: shop/db}, port: 5432, protocol: TCP, expect: allow}
- {from: {ip: 203.0.113.7}, to: {pod: shop/db}, port: 53, protocol: UDP, expect: deny, note: from outside}
- {from: {pod: default/agent}, to: {pod: shop/api}, port: 1, expect: allow, note: 7}
- {from: {pod: shop/api}, to: {ip: \"fd00::2\"}, port: 1, expect: allow}
",
        expect![[r#"
            case only the api reaches the database at f:2
            Pod default/agent [] [192.168.0.1] [] on n1 host
            Pod default/done [] [10.155.155.69] [] finished
            Pod default/young [] [] []
            Pod shop/api [app=api] [10.0.0.1, fd00::1] [] on n1
            Pod shop/db [app=db] [10.0.0.2] [sql=5432/TCP]
            Namespace shop kubernetes.io/metadata.name=shop,team=shop
            Node n1  [192.168.0.1]
            AdminNetworkPolicy a Admin { priority: 1 } for [*]/*
            NetworkPolicy default/a Namespace for own/*
              ingress: no rules
            Domain example.com [203.0.113.1]
            16: shop/api shop/db 10.0.0.1 -> 10.0.0.2 5432/TCP allow 
            17: 203.0.113.7 shop/db 203.0.113.7 -> 10.0.0.2 53/UDP deny from outside
            18: default/agent shop/api 192.168.0.1 -> 10.0.0.1 1/TCP allow 7
            19: shop/api fd00::2 fd00::1 -> fd00::2 1/TCP allow 
            8: warning undeclared-namespace case only the api reaches the database namespaces
                the namespace default is not declared, so no namespace selector matches its pods
                add `{name: default}` to `namespaces:`
        "#]],
    );
}

#[test]
fn a_file_contains_one_case_a_list_or_several_documents() {
    let one =
        "{name: one, probes: [{from: {ip: 10.0.0.1}, to: {ip: 10.0.0.2}, port: 1, expect: allow}]}";
    check(
        &format!("- {one}\n- {one}"),
        expect![[r#"
        case one at f:1
        1: 10.0.0.1 10.0.0.2 10.0.0.1 -> 10.0.0.2 1/TCP allow 
        case one at f:2
        2: 10.0.0.1 10.0.0.2 10.0.0.1 -> 10.0.0.2 1/TCP allow 
    "#]],
    );
    check(
        &format!("{one}\n---\n{one}"),
        expect![[r#"
        case one at f:1
        1: 10.0.0.1 10.0.0.2 10.0.0.1 -> 10.0.0.2 1/TCP allow 
        case one at f:3
        3: 10.0.0.1 10.0.0.2 10.0.0.1 -> 10.0.0.2 1/TCP allow 
    "#]],
    );
    check("", expect![[""]]);
}

/// Y9.
#[test]
fn an_undeclared_namespace_is_a_warning_if_a_selector_needs_it() {
    let text = "
name: a
namespaces: [{name: lab}]
pods: [{namespace: shop, name: web}, {namespace: shop, name: db}, {namespace: lab, name: client}]
policies: [{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a, namespace: shop}, spec: {ingress: [{from: [{namespaceSelector: {}}]}]}}]
probes: [{from: {pod: lab/client}, to: {pod: shop/web}, port: 1, expect: allow}]
";
    let all = cases("f".into(), text.as_bytes());
    expect![[r#"
        4: warning undeclared-namespace case a namespaces
            the namespace shop is not declared, so no namespace selector matches its pods
            add `{name: shop}` to `namespaces:`
    "#]]
    .assert_eq(&all[0].findings.iter().map(finding).collect::<String>());
    let own = cases("f".into(), text.replace("namespaceSelector", "podSelector").as_bytes());
    assert_eq!(own[0].findings, []);
}

/// The family is the probe's, else that of an address, else that of the server pod's first address.
#[test]
fn a_probe_selects_an_address_family() {
    check(
        "
pods:
- {name: four, ips: [10.0.0.1]}
- {name: both, ips: [10.0.0.2, \"fd00::2\"]}
- {name: six-first, ips: [\"fd00::3\", 10.0.0.3]}
- {name: none, ips: []}
probes:
- {from: {pod: default/both}, to: {pod: default/six-first}, port: 1, expect: allow}
- {from: {pod: default/both}, to: {pod: default/six-first}, port: 1, expect: allow, ipFamily: IPv4}
- {from: {ip: \"fd00::9\"}, to: {pod: default/both}, port: 1, expect: allow}
- {from: {pod: default/four}, to: {pod: default/six-first}, port: 1, expect: allow}
- {from: {ip: 10.0.0.9}, to: {pod: default/both}, port: 1, expect: allow, ipFamily: IPv6}
- {from: {pod: default/both}, to: {pod: default/none}, port: 1, expect: allow}
- {from: {ip: 10.0.0.9}, to: {ip: \"fd00::9\"}, port: 1, expect: allow}
",
        expect![[r#"
            case f:2 at f:2
            Pod default/both [] [10.0.0.2, fd00::2] []
            Pod default/four [] [10.0.0.1] []
            Pod default/none [] [] []
            Pod default/six-first [] [fd00::3, 10.0.0.3] []
            8: default/both default/six-first fd00::2 -> fd00::3 1/TCP allow 
            9: default/both default/six-first 10.0.0.2 -> 10.0.0.3 1/TCP allow 
            10: fd00::9 default/both fd00::9 -> fd00::2 1/TCP allow 
            11: default/four default/six-first the pod default/four has no IPv6 address allow 
            12: 10.0.0.9 default/both 10.0.0.9 is not an IPv6 address allow 
            13: default/both default/none the pod default/none has no address allow 
            14: 10.0.0.9 fd00::9 10.0.0.9 is not an IPv6 address allow 
        "#]],
    );
}

#[test]
fn errors_fail_the_case() {
    check(
        "
name: [5]
podz: []
pods:
- {name: a, image: x}
- {name: a}
- {namespace: b}
- {name: c, ips: [10.0.0], phase: Gone, ports: [{name: http}], hostNetwork: 1}
namespaces: [a]
policies:
- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}, spec: {podSelector: {app: web}}}
- {apiVersion: v1, kind: Pod, metadata: {name: x}}
- {metadata: {name: x}}
adminPolicies:
- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}}
probes:
- {from: {pod: default/nobody}, to: {pod: a}, port: 80, expect: allow}
- {from: {pod: default/nobody}, to: {ip: 10.0.0.1}, port: http, expect: maybe, protocol: ICMP, ipFamily: 4}
- {from: {}, to: {pod: a/b, ip: 10.0.0.1}, xpect: allow}
- {from: {pod: default/nobody}, to: {ip: 10.0.0.1}, port: 80, expect: allow}
",
        expect![[r#"
            case f:2 at f:2
            Pod default/a [] [10.233.236.234] []
            Pod default/c [] [10.233.234.12] []
            NetworkPolicy default/a Namespace for own/*
              ingress: no rules
            20: default/nobody 10.0.0.1 there is no pod default/nobody allow 
            3: error unknown-field case f:2 podz
                there is no field "podz" here; expected name, source, namespaces, pods, nodes, manifests, policies, adminPolicies, services, dns, probes
                did you mean `pods`?
            2: error invalid case f:2 name
                expected a string, found a list
                write a string here
            9: error invalid case f:2 namespaces[0]
                expected a mapping, found the string "a"
                write `field: value` lines here
            9: error invalid case f:2 namespaces[0].name
                expected `name`
                add `name:`
            5: error unknown-field case f:2 pods[0].image
                there is no field "image" here; expected namespace, name, labels, ips, node, ports, hostNetwork, phase, terminating
                remove the field, or move it to where it belongs
            7: error invalid case f:2 pods[2].name
                expected `name`
                add `name:`
            8: error invalid case f:2 pods[3].ips[0]
                expected an IP address, found the string "10.0.0"
                write an address such as 10.0.0.1 or fd00::1
            8: error invalid case f:2 pods[3].ports[0].containerPort
                a container port needs a number
                add `containerPort:`
            8: error invalid case f:2 pods[3].hostNetwork
                expected true or false, found the number 1
                write true or false, without quotes
            8: error invalid case f:2 pods[3].phase
                expected Pending, Running, Succeeded, Failed or Unknown, found the string "Gone"
                write Pending, Running, Succeeded, Failed or Unknown
            17: error invalid case f:2 probes[0].to.pod
                expected namespace/name, found the string "a"
                write it as in `shop/api`
            18: error invalid case f:2 probes[1].protocol
                expected TCP, UDP or SCTP, found the string "ICMP"
                write TCP, UDP or SCTP
            18: error invalid case f:2 probes[1].expect
                expected allow or deny, found the string "maybe"
                write allow or deny
            18: error invalid case f:2 probes[1].ipFamily
                expected a string, found the number 4; quote it
                write it in double quotes
            19: error unknown-field case f:2 probes[2].xpect
                there is no field "xpect" here; expected from, to, port, protocol, expect, ipFamily, note
                did you mean `expect`?
            19: error invalid case f:2 probes[2].from
                expected one of `pod`, `deployment`, `service` and `ip`
                write `{pod: namespace/name}`, `{deployment: namespace/name}`, `{service: namespace/name}` or `{ip: address}`
            19: error invalid case f:2 probes[2].to
                expected one of `pod`, `deployment`, `service` and `ip`
                write `{pod: namespace/name}`, `{deployment: namespace/name}`, `{service: namespace/name}` or `{ip: address}`
            19: error invalid case f:2 probes[2].port
                expected `port`
                add `port:`
            19: error invalid case f:2 probes[2].expect
                expected `expect`
                add `expect:`
            11: error unknown-field NetworkPolicy default/a spec.podSelector.app
                there is no field "app" here; expected matchLabels, matchExpressions
                remove the field, or move it to where it belongs
            12: error invalid  kind
                expected an object of the kind NetworkPolicy or ClusterSetNetworkPolicy, found the string "Pod"
                move it to the list it belongs to
            13: error not-an-object  
                expected a Kubernetes object, found a mapping without `kind`; it was skipped
                add `apiVersion` and `kind`, or exclude the file
            13: error invalid  kind
                expected an object of the kind NetworkPolicy or ClusterSetNetworkPolicy, found no kind
                move it to the list it belongs to
            15: error invalid  kind
                expected an object of the kind AdminNetworkPolicy, BaselineAdminNetworkPolicy or ClusterNetworkPolicy, found the string "NetworkPolicy"
                move it to the list it belongs to
            6: error duplicate-object Pod default/a 
                Pod default/a is defined twice, here and in f:5; the first one is used
                remove one of the two, or give it another name
            20: error invalid case f:2 probes[0].from.pod
                there is no pod default/nobody in this case
                add it to `pods:`, or correct the name
        "#]],
    );
    check(
        "name: nothing is tried",
        expect![[r#"
            case nothing is tried at f:1
            1: error invalid case nothing is tried probes
                a case without probes tests nothing
                add `probes:` with the connections to test
        "#]],
    );
    check(
        "just text",
        expect![[r#"
            case f:1 at f:1
            1: error invalid case f:1 
                expected a mapping, found the string "just text"
                write `field: value` lines here
            1: error invalid case f:1 probes
                a case without probes tests nothing
                add `probes:` with the connections to test
        "#]],
    );
    check(
        "name: a\nname: b\nprobes: [{from: {ip: 10.0.0.1}, to: {ip: 10.0.0.2}, port: 1, expect: allow}]",
        expect![[r#"
            case a at f:1
            3: 10.0.0.1 10.0.0.2 10.0.0.1 -> 10.0.0.2 1/TCP allow 
            2: error duplicate-key  
                the key "name" occurs twice, in lines 1 and 2
                remove one of the two
        "#]],
    );
    check(
        "name: [",
        expect![[r#"
            case f at f:1
            1: error syntax  
                this is not YAML: the list or mapping that begins here has no end (column 7); this document was not read
                check indentation, quotes and brackets around this line
        "#]],
    );
}

/// Y9: an undeclared namespace is unknown.
#[test]
fn only_manifests_imply_the_namespaces_of_their_pods() {
    let text = "{manifests: [m.yaml], pods: [{namespace: x, name: a}], probes: [{from: {pod: x/a}, to: {pod: z/b}, port: 1, expect: allow}, {from: {pod: x/a}, to: {pod: z/c}, port: 1, expect: allow}]}";
    let mut case = cases("f".into(), text.as_bytes()).remove(0);
    assert_eq!(case.findings, []);
    let pod = |namespace: &str, name: &str| {
        format!("{{apiVersion: v1, kind: Pod, metadata: {{namespace: {namespace}, name: {name}}}}}")
    };
    case.join(read(&format!("{}\n---\n{}", pod("z", "b"), pod("x", "a"))));
    expect![[r#"
        case f:1 at f:1
        Pod x/a [] [10.226.74.226] []
        Pod z/b [] [10.130.1.149] []
        Namespace x kubernetes.io/metadata.name=x
        Namespace z kubernetes.io/metadata.name=z
        1: x/a z/b 10.226.74.226 -> 10.130.1.149 1/TCP allow 
        1: x/a z/c there is no pod z/c allow 
        3: error duplicate-object Pod x/a 
            Pod x/a is defined twice, here and in f:1; the one in the case is used
            remove one of the two, or give it another name
        1: error invalid case f:1 probes[1].to.pod
            there is no pod z/c in this case
            add it to `pods:`, or correct the name
    "#]]
    .assert_eq(&show(&case));
}

#[test]
fn names_that_yaml_reads_as_booleans_need_no_quotes() {
    check(
        "{name: yes, namespaces: [{name: y}], pods: [{namespace: y, name: n}], probes: [{from: {pod: y/n}, to: {pod: y/n}, port: 1, expect: allow}]}",
        expect![[r#"
            case yes at f:1
            Pod y/n [] [10.227.75.132] []
            Namespace y kubernetes.io/metadata.name=y
            1: y/n y/n 10.227.75.132 -> 10.227.75.132 1/TCP allow 
        "#]],
    );
}
