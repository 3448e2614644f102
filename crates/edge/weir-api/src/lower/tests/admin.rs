use expect_test::{Expect, expect};

use crate::testing::policies;

#[track_caller]
fn check(kind: &str, version: &str, name: &str, spec: &str, expected: Expect) {
    let indented: String =
        spec.trim_matches('\n').lines().map(|line| format!("  {line}\n")).collect();
    let text = format!(
        "apiVersion: policy.networking.k8s.io/{version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n{indented}"
    );
    expected.assert_eq(&policies(&text));
}

#[track_caller]
fn admin(spec: &str, expected: Expect) {
    check("AdminNetworkPolicy", "v1alpha1", "a", spec, expected);
}

#[track_caller]
fn baseline(spec: &str, expected: Expect) {
    check("BaselineAdminNetworkPolicy", "v1alpha1", "default", spec, expected);
}

#[track_caller]
fn cluster(spec: &str, expected: Expect) {
    check("ClusterNetworkPolicy", "v1alpha2", "a", spec, expected);
}

/// C2, C3, C10, C14, C15, C18, C22.
#[test]
fn an_admin_network_policy_is_read_completely() {
    admin(
        "
priority: 10
subject: {pods: {namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchLabels: {app: db}}}}
ingress:
- name: one
  action: Allow
  from: [{namespaces: {}}, {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}]
  ports:
  - portNumber: {port: 80}
  - portNumber: {protocol: UDP, port: 53}
  - portRange: {protocol: TCP, start: 100, end: 200}
  - namedPort: http
- {action: Pass, from: [{namespaces: {}}]}
egress:
- action: Allow
  to: [{domainNames: [\"*.Example.COM.\", kubernetes.io]}, {nodes: {}}, {networks: [10.0.0.0/8, \"fd00::/8\"]}]
- {action: Deny, to: [{networks: [0.0.0.0/0]}]}",
        expect![[r#"
            AdminNetworkPolicy a Admin { priority: 10 } for [team=a]/app=db
              ingress[0] "one" line 8: allow [*]/*, [*]/app=web at 80/TCP, 53/UDP, 100-200/TCP, "http"
              ingress[1] line 16: pass [*]/* at any port
              egress[0] line 18: allow *.example.com, kubernetes.io, nodes *, 10.0.0.0/8, fd00::/8 at any port
              egress[1] line 20: deny 0.0.0.0/0 at any port
            19: warning unresolved-name AdminNetworkPolicy a spec.egress[0].to[0].domainNames[0]
                weir has no addresses of *.example.com here, so this allows nothing
                agents on Linux nodes learn them from DNS answers; in a policy test, write them in `dns:`
            19: warning unresolved-name AdminNetworkPolicy a spec.egress[0].to[0].domainNames[1]
                weir has no addresses of kubernetes.io here, so this allows nothing
                agents on Linux nodes learn them from DNS answers; in a policy test, write them in `dns:`
        "#]],
    );
}

/// C14.
#[test]
fn a_baseline_comes_last_and_cannot_pass() {
    baseline(
        "
subject: {namespaces: {}}
ingress:
- {action: Deny, from: [{namespaces: {}}]}
- {action: Pass, from: [{namespaces: {}}]}
egress:
- {action: Allow, to: [{domainNames: [a.b]}]}",
        expect![[r#"
            BaselineAdminNetworkPolicy default Baseline { priority: 1001 } for [*]/*
              ingress[0] line 7: deny [*]/* at any port
              ingress[1] line 8: deny anyone at any port
              egress: no rules
            8: error invalid BaselineAdminNetworkPolicy default spec.ingress[1].action
                expected Allow or Deny, found the string "Pass"
                write Allow or Deny
            10: warning unknown-field BaselineAdminNetworkPolicy default spec.egress[0].to[0].domainNames
                there is no field "domainNames" here; expected namespaces, pods, nodes, networks
                remove the field, or move it to where it belongs
            10: warning invalid BaselineAdminNetworkPolicy default spec.egress[0].to[0]
                expected namespaces, pods, nodes or networks, found none of them
                add one of them; until then an allow rule matches nothing, and any other rule denies everything
        "#]],
    );
    check(
        "BaselineAdminNetworkPolicy",
        "v1alpha1",
        "other",
        "subject: {namespaces: {}}",
        expect![[r#"
            BaselineAdminNetworkPolicy other Baseline { priority: 1001 } for [*]/*
            3: error invalid BaselineAdminNetworkPolicy other metadata.name
                Only one baseline admin network policy with metadata.name="default" can be created in the cluster
                name it default
        "#]],
    );
}

/// C3, C15.
#[test]
fn a_cluster_network_policy_is_read_completely() {
    cluster(
        "
tier: Baseline
priority: 1000
subject: {pods: {podSelector: {}}}
ingress:
- action: Accept
  from: [{namespaces: {matchLabels: {a: b}}}]
  protocols:
  - tcp: {destinationPort: {number: 80}}
  - udp: {destinationPort: {range: {start: 1, end: 65535}}}
  - sctp: {destinationPort: {number: 7}}
  - destinationNamedPort: http
egress:
- {action: Pass, to: [{pods: {namespaceSelector: {}, podSelector: {}}}]}",
        expect![[r#"
            ClusterNetworkPolicy a Baseline { priority: 1000 } for [*]/*
              ingress[0] line 9: allow [a=b]/* at 80/TCP, 1-65535/UDP, 7/SCTP, "http"
              egress[0] line 17: pass [*]/* at any port
        "#]],
    );
}

/// C2, C24.
#[test]
fn a_direction_without_rules_is_not_affected() {
    cluster(
        "tier: Admin\npriority: 0\nsubject: {namespaces: {}}\ningress: []",
        expect![[r#"
        ClusterNetworkPolicy a Admin { priority: 0 } for [*]/*
    "#]],
    );
}

/// C14, C3.
#[test]
fn priority_tier_and_subject_are_required() {
    cluster(
        "",
        expect![[r#"
        ClusterNetworkPolicy a Admin { priority: 0 } for [*]/*
        1: error invalid ClusterNetworkPolicy a spec.priority
            expected `priority`, from 0 to 1000
            add `priority:`
        1: error invalid ClusterNetworkPolicy a spec.tier
            expected `tier`, Admin or Baseline
            add `tier:`
        1: error invalid ClusterNetworkPolicy a spec.subject
            the policy needs a subject
            add `subject:` with `namespaces:` or `pods:`
    "#]],
    );
    cluster(
        "tier: admin\npriority: 1001\nsubject: {}",
        expect![[r#"
            ClusterNetworkPolicy a Admin { priority: 0 } for [*]/*
            6: error invalid ClusterNetworkPolicy a spec.priority
                expected a whole number from 0 to 1000, found the number 1001
                choose a number from 0 to 1000
            5: error invalid ClusterNetworkPolicy a spec.tier
                expected Admin or Baseline, found the string "admin"
                did you mean `Admin`?
            7: error invalid ClusterNetworkPolicy a spec.subject
                expected namespaces or pods, found none of them
                add one of them
        "#]],
    );
    cluster(
        "tier: Admin\npriority: -1\nsubject: {namespaces: {}, pods: {podSelector: {}}}",
        expect![[r#"
            ClusterNetworkPolicy a Admin { priority: 0 } for [*]/*
            6: error invalid ClusterNetworkPolicy a spec.priority
                expected a whole number from 0 to 1000, found the number -1
                choose a number from 0 to 1000
            7: error invalid ClusterNetworkPolicy a spec.subject
                expected only one of namespaces, pods
                keep one of them
        "#]],
    );
    admin(
        "priority: 5\nsubject: {pods: {podSelector: {}}}\ntier: Admin",
        expect![[r#"
            AdminNetworkPolicy a Admin { priority: 5 } for [*]/*
              ingress[0] line 5: deny anyone at any port
              egress[0] line 5: deny anyone at any port
            7: error unknown-field AdminNetworkPolicy a spec.tier
                there is no field "tier" here; expected priority, subject, ingress, egress
                remove the field, or move it to where it belongs
            6: error invalid AdminNetworkPolicy a spec.subject.pods.namespaceSelector
                expected `namespaceSelector`
                add `namespaceSelector: {}` to select all of them
        "#]],
    );
}

/// C16, C17, C28.
#[test]
fn an_unknown_peer_fails_closed() {
    admin(
        "
priority: 5
subject: {namespaces: {}}
ingress:
- {action: Allow, from: [{sameLabels: [a]}, {namespaces: {}}]}
- {action: Deny, from: [{namespaces: {notSameLabels: [a]}}], ports: [{portNumber: {port: 80}}]}
- {action: Pass, from: [{networks: [10.0.0.0/8]}]}
- {action: Allow, from: [{namespaces: {}}]}",
        expect![[r#"
            AdminNetworkPolicy a Admin { priority: 5 } for [*]/*
              ingress[1] line 9: deny anyone at any port
              ingress[2] line 10: deny anyone at any port
              ingress[3] line 11: allow [*]/* at any port
            8: warning unknown-field AdminNetworkPolicy a spec.ingress[0].from[0].sameLabels
                there is no field "sameLabels" here; expected namespaces, pods
                remove the field, or move it to where it belongs
            8: warning invalid AdminNetworkPolicy a spec.ingress[0].from[0]
                expected namespaces or pods, found none of them
                add one of them; until then an allow rule matches nothing, and any other rule denies everything
            9: warning unknown-field AdminNetworkPolicy a spec.ingress[1].from[0].namespaces.notSameLabels
                there is no field "notSameLabels" here; expected matchLabels, matchExpressions
                remove the field, or move it to where it belongs
            10: warning unknown-field AdminNetworkPolicy a spec.ingress[2].from[0].networks
                `networks` of ingress peers is only proposed upstream (NPEP-127); no version of the API has it
                use `namespaces` or `pods`, or an ipBlock of a NetworkPolicy; until then an allow rule matches nothing, and any other rule denies everything
        "#]],
    );
}

#[test]
fn repeated_fields_fail_closed() {
    admin(
        "
priority: 5
subject: {namespaces: {matchLabels: {a: b}}}
subject: {namespaces: {}}
ingress:
- {action: Allow, action: Deny, from: [{namespaces: {}}]}
- {action: Deny, from: [{namespaces: {}}], from: [{namespaces: {matchLabels: {a: b}}}]}
egress: [{action: Allow, to: [{namespaces: {}}]}]
egress: [{action: Deny, to: [{namespaces: {}}]}]",
        expect![[r#"
            AdminNetworkPolicy a Admin { priority: 5 } for [*]/*
              ingress[0] line 9: deny anyone at any port
              ingress[1] line 10: deny anyone at any port
              ingress[2] line 5: deny anyone at any port
              egress[0] line 11: deny anyone at any port
              egress[1] line 5: deny anyone at any port
            9: error duplicate-key  
                the key "action" occurs twice, in lines 9 and 9
                remove one of the two
            10: error duplicate-key  
                the key "from" occurs twice, in lines 10 and 10
                remove one of the two
            7: error duplicate-key  
                the key "subject" occurs twice, in lines 6 and 7
                remove one of the two
            12: error duplicate-key  
                the key "egress" occurs twice, in lines 11 and 12
                remove one of the two
        "#]],
    );
}

/// An object that the API server rejects allows nothing and passes nothing.
#[test]
fn an_invalid_policy_still_denies() {
    admin(
        "
priority: 5000
subject: {namespaces: {}}
ingress:
- {action: Allow, from: [{namespaces: {}}]}
- {action: Pass, from: [{namespaces: {matchLabels: {a: b}}}], ports: [{portNumber: {port: 80}}]}
- {action: Deny, from: [{namespaces: {matchLabels: {c: d}}}]}
- {action: Drop, from: [{namespaces: {}}]}
- {action: Deny, from: [{namespaces: {}, pods: {}}]}
- {action: Deny, from: []}
egress: 5",
        expect![[r#"
            AdminNetworkPolicy a Admin { priority: 0 } for [*]/*
              ingress[1] line 9: deny [a=b]/* at 80/TCP
              ingress[2] line 10: deny [c=d]/* at any port
              ingress[3] line 11: deny anyone at any port
              ingress[4] line 12: deny anyone at any port
              ingress[5] line 13: deny anyone at any port
              egress[0] line 14: deny anyone at any port
            5: error invalid AdminNetworkPolicy a spec.priority
                expected a whole number from 0 to 1000, found the number 5000
                choose a number from 0 to 1000
            11: error invalid AdminNetworkPolicy a spec.ingress[3].action
                expected Allow, Deny or Pass, found the string "Drop"
                write Allow, Deny or Pass
            12: error invalid AdminNetworkPolicy a spec.ingress[4].from[0]
                expected only one of namespaces, pods
                keep one of them
            12: error invalid AdminNetworkPolicy a spec.ingress[4].from[0].pods.namespaceSelector
                expected `namespaceSelector`
                add `namespaceSelector: {}` to select all of them
            12: error invalid AdminNetworkPolicy a spec.ingress[4].from[0].pods.podSelector
                expected `podSelector`
                add `podSelector: {}` to select all of them
            13: error invalid AdminNetworkPolicy a spec.ingress[5].from
                a rule needs at least one peer in `from`
                to select all pods, add `- namespaces: {}`
            14: error invalid AdminNetworkPolicy a spec.egress
                expected a list, found the number 5
                begin each element with `- `
        "#]],
    );
}

/// C15, C18, C26.
#[test]
fn rules_that_the_api_server_rejects_are_rejected() {
    cluster(
        "
tier: Admin
priority: 1
subject: {namespaces: {}}
egress:
- {action: Deny, to: [{domainNames: [a.b]}]}
- {action: Accept, to: [{networks: [10.0.0.0/8]}], protocols: [{destinationNamedPort: http}]}
- {action: Accept, to: [{networks: []}]}
- {action: Accept, to: [{networks: [010.0.0.0/8, 10.0.0.1/8, \"::ffff:10.0.0.0/104\"]}]}
- {action: Accept, to: [{domainNames: [localhost, \"a.*.b\", \"*.\"]}]}
- {action: Accept, to: [{namespaces: {}}], protocols: []}
- {action: Accept, to: [{namespaces: {}}], protocols: [{}]}
- {action: Accept, to: [{namespaces: {}}], protocols: [{tcp: {}}]}
- {action: Accept, to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {}}}]}
- {action: Accept, to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {range: {start: 5, end: 5}}}}]}
- {action: Accept, to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {range: {start: 0}}}}]}
- {action: Allow, to: [{namespaces: {}}]}",
        expect![[r#"
            ClusterNetworkPolicy a Admin { priority: 1 } for [*]/*
              egress[0] line 9: deny anyone at any port
              egress[11] line 20: deny anyone at any port
            9: error invalid ClusterNetworkPolicy a spec.egress[0].to[0].domainNames
                domainNames can only be allowed, not denied or passed
                deny networks, or allow the names before a rule that denies
            10: error invalid ClusterNetworkPolicy a spec.egress[1].protocols
                only pods have named ports: networks/nodes/domainNames peer cannot be set with namedPorts since there are no namedPorts for networks/nodes/domainNames
                write the ports as numbers, or move these peers to a separate rule
            11: error invalid ClusterNetworkPolicy a spec.egress[2].to[0].networks
                the list must not be empty
                add an entry, or remove the peer
            12: error invalid ClusterNetworkPolicy a spec.egress[3].to[0].networks[0]
                Invalid CIDR format provided: "010.0.0.0/8"
                write 10.0.0.0/8
            12: warning loose-cidr ClusterNetworkPolicy a spec.egress[3].to[0].networks[1]
                "10.0.0.1/8" has bits set after the prefix; it is read as 10.0.0.0/8
                write 10.0.0.0/8
            12: error invalid ClusterNetworkPolicy a spec.egress[3].to[0].networks[2]
                Invalid CIDR format provided: "::ffff:10.0.0.0/104"
                write 10.0.0.0/8
            13: error invalid ClusterNetworkPolicy a spec.egress[4].to[0].domainNames[0]
                expected a domain name of two or more parts, as in `kubernetes.io` or `*.kubernetes.io`, found "localhost"
                correct the name
            13: error invalid ClusterNetworkPolicy a spec.egress[4].to[0].domainNames[1]
                expected a domain name of two or more parts, as in `kubernetes.io` or `*.kubernetes.io`, found "a.*.b"
                correct the name
            13: error invalid ClusterNetworkPolicy a spec.egress[4].to[0].domainNames[2]
                expected a domain name of two or more parts, as in `kubernetes.io` or `*.kubernetes.io`, found "*."
                correct the name
            14: error invalid ClusterNetworkPolicy a spec.egress[5].protocols
                `protocols` must not be empty
                remove it to match every port
            15: error invalid ClusterNetworkPolicy a spec.egress[6].protocols[0]
                expected tcp, udp, sctp or destinationNamedPort, found none of them
                add one of them
            16: error invalid ClusterNetworkPolicy a spec.egress[7].protocols[0].tcp
                expected a destinationPort
                add `destinationPort:` with `number:` or `range:`
            17: error invalid ClusterNetworkPolicy a spec.egress[8].protocols[0].tcp.destinationPort
                expected number or range, found none of them
                add one of them
            18: error invalid ClusterNetworkPolicy a spec.egress[9].protocols[0].tcp.destinationPort.range.end
                Start port must be less than End port; 5 is not above 5
                use a single number for one port
            19: error invalid ClusterNetworkPolicy a spec.egress[10].protocols[0].tcp.destinationPort.range.start
                expected a whole number from 1 to 65535, found the number 0
                choose a number from 1 to 65535
            19: error invalid ClusterNetworkPolicy a spec.egress[10].protocols[0].tcp.destinationPort.range.end
                expected `end`
                add it, from 1 to 65535
            20: error invalid ClusterNetworkPolicy a spec.egress[11].action
                expected Accept, Deny or Pass, found the string "Allow"
                did you mean `Accept`?
        "#]],
    );
}

/// C26.
#[test]
fn the_api_servers_limits_apply() {
    let rules = "- {action: Accept, from: [{namespaces: {}}]}\n".repeat(26);
    let peers = "{namespaces: {}},".repeat(26);
    let name = "x".repeat(101);
    let nets: String = (0..26).map(|n| format!("10.{n}.0.0/16,")).collect();
    let text = format!(
        "tier: Admin\npriority: 1\nsubject: {{namespaces: {{}}}}\ningress:\n{rules}egress:\n- {{action: Accept, name: {name}, to: [{peers}]}}\n- {{action: Accept, to: [{{networks: [{nets}]}}]}}"
    );
    cluster(
        &text,
        expect![[r#"
        ClusterNetworkPolicy a Admin { priority: 1 } for [*]/*
          ingress: no rules
          egress: no rules
        9: error invalid ClusterNetworkPolicy a spec.ingress
            there are 26 rules; at most 25 are allowed
            split them over several rules or policies
        36: error invalid ClusterNetworkPolicy a spec.egress[0].name
            the name of a rule has at most 100 characters
            shorten the name
        36: error invalid ClusterNetworkPolicy a spec.egress[0].to
            there are 26 peers; at most 25 are allowed
            split them over several rules or policies
        37: error invalid ClusterNetworkPolicy a spec.egress[1].to[0].networks
            there are 26 entries; at most 25 are allowed
            split them over several rules or policies
    "#]],
    );
}

/// v1beta1 has the schema of v1alpha2. Later versions are refused until weir knows them.
#[test]
fn all_known_versions_of_a_kind_mean_the_same() {
    let spec = "tier: Admin\npriority: 1\nsubject: {namespaces: {}}\negress: [{action: Accept, to: [{nodes: {}}]}]";
    for version in ["v1alpha2", "v1beta1"] {
        let expected = expect![[r#"
            ClusterNetworkPolicy a Admin { priority: 1 } for [*]/*
              egress[0] line 8: allow nodes * at any port
        "#]];
        check("ClusterNetworkPolicy", version, "a", spec, expected);
    }
    check(
        "ClusterNetworkPolicy",
        "v1beta2",
        "a",
        spec,
        expect![[r#"
            ClusterNetworkPolicy a Admin { priority: 1 } for [*]/*
              egress: no rules
            1: error invalid ClusterNetworkPolicy a apiVersion
                expected the apiVersion policy.networking.k8s.io/v1alpha2 or policy.networking.k8s.io/v1beta1, found "policy.networking.k8s.io/v1beta2"
                write `apiVersion: policy.networking.k8s.io/v1alpha2 or policy.networking.k8s.io/v1beta1`
        "#]],
    );
}

#[test]
fn a_kind_with_another_version_is_rejected() {
    check(
        "AdminNetworkPolicy",
        "v1alpha2",
        "a",
        "priority: 1\nsubject: {namespaces: {}}\ningress: [{action: Pass, from: [{namespaces: {}}]}]",
        expect![[r#"
            AdminNetworkPolicy a Admin { priority: 1 } for [*]/*
              ingress[0] line 7: deny [*]/* at any port
            1: error invalid AdminNetworkPolicy a apiVersion
                expected the apiVersion policy.networking.k8s.io/v1alpha1, found "policy.networking.k8s.io/v1alpha2"
                write `apiVersion: policy.networking.k8s.io/v1alpha1`
        "#]],
    );
    check(
        "ClusterNetworkPolicy",
        "v1alpha1",
        "a",
        "tier: Admin\npriority: 1\nsubject: {namespaces: {}}",
        expect![[r#"
            ClusterNetworkPolicy a Admin { priority: 1 } for [*]/*
            1: error invalid ClusterNetworkPolicy a apiVersion
                expected the apiVersion policy.networking.k8s.io/v1alpha2 or policy.networking.k8s.io/v1beta1, found "policy.networking.k8s.io/v1alpha1"
                write `apiVersion: policy.networking.k8s.io/v1alpha2 or policy.networking.k8s.io/v1beta1`
        "#]],
    );
    expect![[r#"
        1: warning foreign-policy  
            policies of kind ClusterNetworkPolicy.crd.antrea.io are not supported; results do not reflect them
            such policies may deny or allow further traffic
    "#]]
    .assert_eq(&policies(
        "{apiVersion: crd.antrea.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: a}}",
    ));
}
