use expect_test::{Expect, expect};

use crate::testing::policies;

/// Checks a NetworkPolicy with this spec; the spec begins in line 4.
#[track_caller]
pub(super) fn check(spec: &str, expected: Expect) {
    let indented: String =
        spec.trim_matches('\n').lines().map(|line| format!("  {line}\n")).collect();
    let text = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: a, namespace: shop}}\nspec:\n{indented}"
    );
    expected.assert_eq(&policies(&text));
}

/// V1, S1, T1.
#[test]
fn a_missing_selector_means_every_pod() {
    check(
        "",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
    "#]],
    );
    check(
        "podSelector:",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
    "#]],
    );
    check(
        "podSelector: {matchLabels: }",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
    "#]],
    );
}

/// T1 to T3, I8.
#[test]
fn missing_policy_types_get_the_api_servers_default() {
    check(
        "policyTypes: []",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
    "#]],
    );
    check(
        "egress: []",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
    "#]],
    );
    check(
        "egress: [{}]",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
          egress[0] line 5: allow anyone at any port
    "#]],
    );
    check(
        "ingress: []",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
    "#]],
    );
}

/// T4 to T6, V7.
#[test]
fn rules_of_a_direction_that_is_not_listed_are_ignored() {
    check(
        "policyTypes: [Egress]\ningress: [{}]",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              egress: no rules
            6: warning ignored-rules NetworkPolicy shop/a spec.ingress
                policyTypes does not contain Ingress, so these rules are ignored
                add Ingress to policyTypes, or remove the rules
        "#]],
    );
    check(
        "policyTypes: [Egress, Ingress]",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
          egress: no rules
    "#]],
    );
    check(
        "policyTypes: [Ingress, Ingress]",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
    "#]],
    );
}

/// V7.
#[test]
fn invalid_policy_types_isolate_both_directions() {
    check(
        "policyTypes: [ingress]",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
          egress: no rules
        5: error invalid NetworkPolicy shop/a spec.policyTypes[0]
            expected Ingress or Egress, found the string "ingress"
            did you mean `Ingress`?
    "#]],
    );
    check(
        "policyTypes: [Ingress, Egress, Ingress]",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
          egress: no rules
        5: error invalid NetworkPolicy shop/a spec.policyTypes
            there are more than two policyTypes
            list Ingress and Egress at most once each
    "#]],
    );
    check(
        "policyTypes: Ingress",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
          egress: no rules
        5: error invalid NetworkPolicy shop/a spec.policyTypes
            expected a list, found the string "Ingress"
            begin each element with `- `
    "#]],
    );
}

/// I8, I9.
#[test]
fn an_empty_rule_allows_everyone() {
    check(
        "ingress: [{}]",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress[0] line 5: allow anyone at any port
    "#]],
    );
    check(
        "ingress:\n-",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress[0] line 6: allow anyone at any port
    "#]],
    );
    check(
        "ingress: [{from: [], ports: []}]",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress[0] line 5: allow anyone at any port
    "#]],
    );
    check(
        "ingress: [{from: , ports: }]",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress[0] line 5: allow anyone at any port
    "#]],
    );
}

/// P1 to P7, V2.
/// V2.
/// V3, R1 to R10.
/// V3, V4.
/// V5, V6, B9, B10, B19.
/// V8, L1 to L10.
/// V8. A part of a selector alone would select more, so the policy selects every pod.
/// V9. With the unknown field, the rule may match less.
#[test]
fn an_unknown_field_in_a_rule_removes_the_rule() {
    check(
        "
ingress:
- from: [{podSelector: {}, service: web}]
- form: [{podSelector: {}}]
- ports: [{port: 80, endport: 90}]
- from: [{podSelector: {matchLabel: {app: web}}}]
- from: [{podSelector: {}}]",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress[4] line 10: allow own/* at any port
            6: error unknown-field NetworkPolicy shop/a spec.ingress[0].from[0].service
                there is no field "service" here; expected podSelector, namespaceSelector, ipBlock
                remove the field, or move it to where it belongs
            7: error unknown-field NetworkPolicy shop/a spec.ingress[1].form
                there is no field "form" here; expected from, ports
                did you mean `from`?
            8: error unknown-field NetworkPolicy shop/a spec.ingress[2].ports[0].endport
                there is no field "endport" here; expected protocol, port, endPort
                did you mean `endPort`?
            9: error unknown-field NetworkPolicy shop/a spec.ingress[3].from[0].podSelector.matchLabel
                there is no field "matchLabel" here; expected matchLabels, matchExpressions
                did you mean `matchLabels`?
        "#]],
    );
}

/// V9.
#[test]
fn an_unknown_field_in_the_spec_makes_the_policy_invalid() {
    check(
        "ingress: [{}]\npolicyType: [Egress]",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
              egress: no rules
            6: error unknown-field NetworkPolicy shop/a spec.policyType
                there is no field "policyType" here; expected podSelector, policyTypes, ingress, egress
                did you mean `policyTypes`?
        "#]],
    );
}

#[test]
fn a_repeated_key_makes_the_policy_invalid() {
    check(
        "ingress: [{}]\ningress: [{}]",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
              egress: no rules
            6: error duplicate-key  
                the key "ingress" occurs twice, in lines 5 and 6
                remove one of the two
        "#]],
    );
    check(
        "policyTypes: [Ingress]\npolicyTypes: [Egress]",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
              egress: no rules
            6: error duplicate-key  
                the key "policyTypes" occurs twice, in lines 5 and 6
                remove one of the two
        "#]],
    );
    check(
        "ingress: [{from: [{podSelector: {matchLabels: {a: b, a: c}}}]}]",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
            5: error duplicate-key  
                the key "a" occurs twice, in lines 5 and 5
                remove one of the two
        "#]],
    );
}

/// The unknown field may be a misspelt spec.
#[test]
fn a_policy_with_a_misspelt_spec_isolates_both_directions() {
    let head = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a}\n";
    for (rest, expected) in [
        (
            "sepc: {policyTypes: [Egress]}",
            expect![[r#"
            NetworkPolicy default/a Namespace for own/*
              ingress: no rules
              egress: no rules
            4: error unknown-field NetworkPolicy default/a sepc
                there is no field "sepc" here; expected apiVersion, kind, metadata, spec, status
                did you mean `spec`?
        "#]],
        ),
        (
            "spec: {podSelector: {matchLabels: {a: b}}}\nspec: {}",
            expect![[r#"
                NetworkPolicy default/a Namespace for own/*
                  ingress: no rules
                  egress: no rules
                5: error duplicate-key  
                    the key "spec" occurs twice, in lines 4 and 5
                    remove one of the two
            "#]],
        ),
    ] {
        expected.assert_eq(&policies(&format!("{head}{rest}")));
    }
}

#[test]
fn values_of_the_wrong_type_are_rejected() {
    check(
        "ingress: {}",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
        5: error invalid NetworkPolicy shop/a spec.ingress
            expected a list, found a mapping
            begin each element with `- `
    "#]],
    );
    check(
        "egress: yes\npodSelector: {matchLabels: {app: db}}",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/app=db
          ingress: no rules
          egress: no rules
        5: error invalid NetworkPolicy shop/a spec.egress
            expected a list, found the boolean yes
            begin each element with `- `
    "#]],
    );
    check(
        "ingress: [from]",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
        5: error invalid NetworkPolicy shop/a spec.ingress[0]
            expected a mapping, found the string "from"
            write `field: value` lines here
    "#]],
    );
}

/// S2, S4.
#[test]
fn names_and_versions_are_checked() {
    for (text, expected) in [
        (
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}}",
            expect![[r#"
                NetworkPolicy default/a Namespace for own/*
                  ingress: no rules
            "#]],
        ),
        (
            "{apiVersion: networking.k8s.io/v1beta1, kind: NetworkPolicy, metadata: {name: a}}",
            expect![[r#"
                NetworkPolicy default/a Namespace for own/*
                  ingress: no rules
                1: error invalid NetworkPolicy default/a apiVersion
                    expected the apiVersion networking.k8s.io/v1, found "networking.k8s.io/v1beta1"
                    write `apiVersion: networking.k8s.io/v1`
            "#]],
        ),
        (
            "{apiVersion: extensions/v1beta1, kind: NetworkPolicy, metadata: {name: a}, spec: {ingress: [{}]}}",
            expect![[r#"
                NetworkPolicy default/a Namespace for own/*
                  ingress: no rules
                1: error invalid NetworkPolicy default/a apiVersion
                    expected the apiVersion networking.k8s.io/v1, found "extensions/v1beta1"
                    write `apiVersion: networking.k8s.io/v1`
            "#]],
        ),
        (
            "{kind: NetworkPolicy, metadata: {name: a}, spec: {ingress: [{}]}}",
            expect![[r#"
            NetworkPolicy default/a Namespace for own/*
              ingress: no rules
            1: error invalid NetworkPolicy default/a apiVersion
                the object has no apiVersion; expected networking.k8s.io/v1
                write `apiVersion: networking.k8s.io/v1`
        "#]],
        ),
        (
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: A_b, namespace: x.y}, spec: {ingress: [{}]}}",
            expect![[r#"
                NetworkPolicy x.y/A_b Namespace for own/*
                  ingress: no rules
                1: error misplaced-policy NetworkPolicy x.y/A_b metadata.namespace
                    the namespace of the policy is invalid; weir uses the first one given, or default
                    correct `metadata`, and write the namespace once
                1: error invalid NetworkPolicy x.y/A_b metadata.name
                    "A_b" is not a valid name: expected at most 253 lower case letters, digits, `-` and `.`, with a letter or digit at both ends of each part
                    correct the name
                1: error invalid NetworkPolicy x.y/A_b metadata.namespace
                    "x.y" is not a valid name: expected at most 63 lower case letters, digits and `-`, with a letter or digit at both ends
                    correct the name
            "#]],
        ),
        (
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {}, sepc: {}}",
            expect![[r#"
                NetworkPolicy default/unnamed-1 Namespace for own/*
                  ingress: no rules
                  egress: no rules
                1: error invalid NetworkPolicy default/without a name metadata.name
                    the object needs a name
                    add `name:`
                1: error unknown-field NetworkPolicy default/without a name sepc
                    there is no field "sepc" here; expected apiVersion, kind, metadata, spec, status
                    did you mean `spec`?
            "#]],
        ),
        (
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {generateName: a-}}",
            expect![[r#"
                NetworkPolicy default/a-1 Namespace for own/*
                  ingress: no rules
            "#]],
        ),
        (
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: 5}}",
            expect![[r#"
                NetworkPolicy default/5 Namespace for own/*
                  ingress: no rules
                1: error invalid NetworkPolicy default/5 metadata.name
                    expected a string, found the number 5; quote it
                    write it in double quotes
            "#]],
        ),
        (
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a, managedFields: [{x: y}]}, status: {z: 1}}",
            expect![[r#"
                NetworkPolicy default/a Namespace for own/*
                  ingress: no rules
            "#]],
        ),
        (
            "{apiVersion: crd.projectcalico.org/v1, kind: NetworkPolicy, metadata: {name: a}}",
            expect![[r#"
                1: warning foreign-policy  
                    policies of kind NetworkPolicy.crd.projectcalico.org are not supported; results do not reflect them
                    such policies may deny or allow further traffic
            "#]],
        ),
    ] {
        expected.assert_eq(&policies(text));
    }
}

/// Checks a NetworkPolicy with this metadata that would allow everything.
#[track_caller]
fn check_metadata(metadata: &str, expected: Expect) {
    let text = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {metadata}\nspec: {{ingress: [{{}}]}}"
    );
    expected.assert_eq(&policies(&text));
}

#[test]
fn a_policy_stays_in_its_intended_namespace() {
    check_metadata(
        "{name: n, namespace: 5}",
        expect![[r#"
            NetworkPolicy 5/n Namespace for own/*
              ingress: no rules
            3: error misplaced-policy NetworkPolicy 5/n metadata.namespace
                the namespace of the policy is invalid; weir uses the first one given, or default
                correct `metadata`, and write the namespace once
            3: error invalid NetworkPolicy 5/n metadata.name
                expected a string, found the boolean n; quote it
                write it in double quotes
            3: error invalid NetworkPolicy 5/n metadata.namespace
                expected a string, found the number 5; quote it
                write it in double quotes
        "#]],
    );
    check_metadata(
        "{name: 010, namespace: on}",
        expect![[r#"
            NetworkPolicy on/010 Namespace for own/*
              ingress: no rules
            3: error misplaced-policy NetworkPolicy on/010 metadata.namespace
                the namespace of the policy is invalid; weir uses the first one given, or default
                correct `metadata`, and write the namespace once
            3: error invalid NetworkPolicy on/010 metadata.name
                expected a string, found the number 010; quote it
                write it in double quotes
            3: error invalid NetworkPolicy on/010 metadata.namespace
                expected a string, found the boolean on; quote it
                write it in double quotes
        "#]],
    );
    check_metadata(
        "{name: a, namespace: [shop]}",
        expect![[r#"
            NetworkPolicy default/a Namespace for own/*
              ingress: no rules
            3: error misplaced-policy NetworkPolicy default/a metadata.namespace
                the namespace of the policy is invalid; weir uses the first one given, or default
                correct `metadata`, and write the namespace once
            3: error invalid NetworkPolicy default/a metadata.namespace
                expected a string, found a list
                write a string here
        "#]],
    );
}

#[test]
fn a_policy_with_unknown_metadata_allows_nothing() {
    check_metadata(
        "{name: a, namespase: shop}",
        expect![[r#"
            NetworkPolicy default/a Namespace for own/*
              ingress: no rules
            3: error unknown-field NetworkPolicy default/a metadata.namespase
                there is no field "namespase" here
                did you mean `namespace`?
            3: error misplaced-policy NetworkPolicy default/a metadata.namespace
                the namespace of the policy is invalid; weir uses the first one given, or default
                correct `metadata`, and write the namespace once
        "#]],
    );
    check_metadata(
        "{name: a, namespace: shop, label: {}}",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
        3: error unknown-field NetworkPolicy shop/a metadata.label
            there is no field "label" here
            did you mean `labels`?
    "#]],
    );
    check_metadata(
        "{name: a, namespace: shop, namespace: billing}",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
            3: error duplicate-key  
                the key "namespace" occurs twice, in lines 3 and 3
                remove one of the two
            3: error misplaced-policy NetworkPolicy shop/a metadata.namespace
                the namespace of the policy is invalid; weir uses the first one given, or default
                correct `metadata`, and write the namespace once
        "#]],
    );
    check_metadata(
        "{name: a, annotations: {a: 5, b: c, d: }, labels: {e: yes}}",
        expect![[r#"
        NetworkPolicy default/a Namespace for own/*
          ingress: no rules
        3: error invalid NetworkPolicy default/a metadata.annotations[a]
            expected a string, found the number 5; quote it
            write it in double quotes
        3: error invalid NetworkPolicy default/a metadata.labels[e]
            expected a string, found the boolean yes; quote it
            write it in double quotes
    "#]],
    );
}

#[test]
fn all_metadata_fields_of_a_cluster_are_known() {
    check_metadata(
        "{name: a, generateName: a-, namespace: shop, labels: {a: b}, annotations: {a: b}, ownerReferences: [], finalizers: [], managedFields: [], creationTimestamp: null, deletionTimestamp: \"2024-05-01T12:00:00Z\", deletionGracePeriodSeconds: 30, generation: 1, resourceVersion: \"1\", uid: x, selfLink: x, clusterName: x}",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress[0] line 4: allow anyone at any port
        "#]],
    );
}
