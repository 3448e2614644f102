mod networks;
mod workloads;

use std::net::Ipv4Addr;

use expect_test::{Expect, expect};
use weir_model::Severity;

use crate::{
    ManifestReader,
    testing::{everything, finding, object, read},
};

#[track_caller]
fn check(text: &str, expected: Expect) {
    expected.assert_eq(&everything(text.trim_start_matches('\n')));
}

const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {podIP: 10.0.0.1}}";

#[test]
fn lists_of_every_kind_are_expanded() {
    check(
        "
apiVersion: v1
items:
- {apiVersion: v1, kind: Pod, metadata: {name: a}, status: {podIP: 10.0.0.1}}
- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}}
- apiVersion: v1
  kind: List
  items: [{apiVersion: v1, kind: Node, metadata: {name: n1}}]
kind: List
---
kind: PodList
apiVersion: v1
items: [{metadata: {name: b}, status: {podIP: 10.0.0.2}}]
---
apiVersion: v1
items: [{metadata: {name: c, annotations: {x: y}}, status: {podIP: 10.0.0.3}}]
kind: PodList
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicyList, items: [{metadata: {name: b}}]}",
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            Node n1  []
            Pod default/a [] [10.0.0.1] []
            Pod default/b [] [10.0.0.2] []
            Pod default/c [] [10.0.0.3] []
            NetworkPolicy default/a Namespace for own/*
              ingress: no rules
            NetworkPolicy default/b Namespace for own/*
              ingress: no rules
        "#]],
    );
}

#[test]
fn an_object_with_items_that_is_not_a_list_is_not_expanded() {
    check(
        "
apiVersion: example.com/v1
items:
- {apiVersion: v1, kind: Pod, metadata: {name: a}}
- {no: kind}
kind: Basket
---
items: [{apiVersion: v1, kind: Pod, metadata: {name: a}}]",
        expect![[r#"
            1: info unknown-kind  
                objects of kind Basket.example.com are ignored
                no action is needed, unless it should be a policy
            7: error not-an-object  
                expected a Kubernetes object, found a mapping without `kind`; it was skipped
                if it is a list of objects, add `apiVersion: v1` and `kind: List`
        "#]],
    );
}

#[test]
fn objects_before_a_syntax_error_are_kept() {
    check(
        &format!("{POD}\n---\nkind: [\n"),
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            Pod default/a [] [10.0.0.1] []
            3: error syntax  
                this is not YAML: the list or mapping that begins here has no end (column 7); this document was not read
                check indentation, quotes and brackets around this line
        "#]],
    );
    check(
        "
apiVersion: v1
items:
- {apiVersion: v1, kind: Pod, metadata: {name: a}, status: {podIP: 10.0.0.1}}
- {apiVersion: v1, kind: Pod, metadata: {name: b",
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            Pod default/a [] [10.0.0.1] []
            4: error syntax  
                this is not YAML: the list or mapping that begins here has no end (column 41); this document was not read
                check indentation, quotes and brackets around this line
        "#]],
    );
}

#[test]
fn a_workload_without_pods_gets_one() {
    check(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, labels: {not: these}}
spec:
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{ports: [{name: http, containerPort: 80}]}]}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: web, namespace: shop}, spec: {jobTemplate: {spec: {template: {metadata: {labels: {app: job}}}}}}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: shop}}
---
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: Bad}, spec: {template: {metadata: {labels: {app: 5}}}}}",
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            Namespace shop kubernetes.io/metadata.name=shop
            Pod default/Bad [app=5] [10.153.236.158] []
            Pod shop/db [] [10.237.159.27] []
            Pod shop/web [app=job] [10.134.156.248] []
            Pod shop/web-deployment [app=web] [10.239.59.234] [http=80/TCP]
            13: error invalid DaemonSet default/Bad metadata.name
                "Bad" is not a valid name: expected at most 253 lower case letters, digits, `-` and `.`, with a letter or digit at both ends of each part
                correct the name
            13: error invalid DaemonSet default/Bad spec.template.metadata.labels[app]
                expected a string, found the number 5; quote it
                write it in double quotes
        "#]],
    );
}

#[test]
fn a_workload_with_pods_gets_none() {
    let manifests = read(
        "
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web-1, ownerReferences: [{kind: Deployment, name: web}]}
spec: {replicas: 0}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1-x, ownerReferences: [{kind: ReplicaSet, name: web-1}]}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: api}}
---
apiVersion: v1
kind: Pod
metadata: {name: api-2-x, labels: {pod-template-hash: \"2\"}, ownerReferences: [{kind: ReplicaSet, name: api-2}]}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: old-1, ownerReferences: [{kind: Deployment, name: old}]}
spec: {replicas: 0}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: tick}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: tick-1, ownerReferences: [{kind: CronJob, name: tick}]}}
---
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: o, ownerReferences: [{kind: ReplicaSet, name: o}]}}
",
    );
    let owners: String = manifests
        .owners
        .iter()
        .map(|(owner, pods)| {
            let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
            format!("{}/{}/{}: {}\n", owner.namespace, owner.kind, owner.name, pods.join(", "))
        })
        .collect();
    expect![[r#"
        default/cronjob/tick: default/tick
        default/deployment/api: default/api-2-x
        default/deployment/web: default/web-1-x
        default/replicaset/api-2: default/api-2-x
        default/replicaset/web-1: default/web-1-x
    "#]]
    .assert_eq(&owners);
    assert_eq!(manifests.findings, []);
}

/// Two policies of one name: the result denies everything that either of them denies.
#[test]
fn an_error_in_an_object_that_is_ignored_is_a_warning() {
    let check = |text: &str, severity, missing| {
        let mut reader = ManifestReader::new();
        reader.read_file("f".into(), text.as_bytes());
        let manifests = reader.finish();
        let found: Vec<Severity> = manifests.findings.iter().map(|one| one.severity).collect();
        assert_eq!((found, manifests.missing().count()), (vec![severity], missing), "{text}");
    };
    for kind in ["ConfigMap", "NetworkAttachmentDefinition", "CustomResourceDefinition"] {
        check(&format!("kind: {kind}\nspec: [\n"), Severity::Warning, 0);
        check(&format!("kind: {kind}\n\tspec: 1\n"), Severity::Warning, 0);
    }
    check("kind: Secret\na: 1\na: 1\n", Severity::Warning, 0);
    for kind in ["Pod", "Deployment", "NetworkPolicy", "NetworkPolcy", "List", "PodList", "Lst"] {
        check(&format!("kind: {kind}\nspec: [\n"), Severity::Error, 1);
    }
    for kind in ["CiliumNetworkPolicy", "Memcached", "ClusterSetNetworkPolicy"] {
        check(&format!("kind: {kind}\nspec: [\n"), Severity::Error, 1);
    }
    check("kind: ConfigMap\nkind: Pod\nspec: [\n", Severity::Error, 1);
    check("# kind: ConfigMap\nspec: [\n", Severity::Error, 1);
}

#[test]
fn a_duplicate_object_is_reported() {
    check(
        &format!("{POD}\n---\n{POD}"),
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            Pod default/a [] [10.0.0.1] []
            3: info duplicate-object Pod default/a 
                Pod default/a is defined twice, here and in f:1; both definitions are equal
                no action is needed; you can remove one of the two
        "#]],
    );
    let policy = |spec: &str| {
        format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: a}}, spec: {spec}}}"
        )
    };
    let (one, other) = (
        policy("{podSelector: {matchLabels: {a: b}}, ingress: [{}]}"),
        policy("{podSelector: {matchLabels: {c: d}}, policyTypes: [Egress]}"),
    );
    check(
        &format!("{one}\n---\n{one}"),
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            NetworkPolicy default/a Namespace for own/a=b
              ingress[0] line 1: allow anyone at any port
            3: info duplicate-object NetworkPolicy default/a 
                NetworkPolicy default/a is defined twice, here and in f:1; both definitions are equal
                no action is needed; you can remove one of the two
        "#]],
    );
    check(
        &format!("{one}\n---\n{other}"),
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            NetworkPolicy default/a Namespace for own/*
              ingress: no rules
              egress: no rules
            3: error duplicate-object NetworkPolicy default/a 
                NetworkPolicy default/a is defined twice, here and in f:1; the definitions differ, and the policy allows nothing until one is removed
                remove one of the two, or give it another name
        "#]],
    );
    let admin = |spec: &str| {
        format!(
            "{{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {{name: a}}, spec: {spec}}}"
        )
    };
    let (one, other) = (
        admin(
            "{priority: 5, subject: {namespaces: {}}, ingress: [{action: Allow, from: [{namespaces: {}}]}]}",
        ),
        admin(
            "{priority: 4, subject: {namespaces: {}}, ingress: [{action: Pass, from: [{namespaces: {}}]}]}",
        ),
    );
    check(
        &format!("{one}\n---\n{other}"),
        expect![[r#"
            AdminNetworkPolicy a Admin { priority: 4 } for [*]/*
              ingress[0] line 3: deny [*]/* at any port
            3: error duplicate-object AdminNetworkPolicy a 
                AdminNetworkPolicy a is defined twice, here and in f:1; the definitions differ, and the policy allows nothing until one is removed
                remove one of the two, or give it another name
        "#]],
    );
}

#[test]
fn the_order_of_files_does_not_matter() {
    let files = [
        "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x}}",
        "{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: y}}",
        "{apiVersion: v1, kind: Namespace, metadata: {name: x, labels: {a: b}}}",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: x}}",
    ];
    let read_in = |order: &[usize]| {
        let mut reader = ManifestReader::new();
        for at in order {
            reader.read_file(format!("f{at}").into(), files[*at].as_bytes());
        }
        let manifests = reader.finish();
        (manifests.objects, manifests.owners, manifests.synthetic)
    };
    let first = read_in(&[0, 1, 2, 3]);
    assert_eq!(first, read_in(&[3, 2, 1, 0]));
    let shown: String = first.0.into_iter().map(|one| object(&one)).collect();
    expect![[r#"
        Namespace x a=b,kubernetes.io/metadata.name=x
        Namespace y kubernetes.io/metadata.name=y
        Pod x/a [] [10.226.74.226] []
        Pod x/a-deployment [] [10.233.208.13] []
        Pod y/b [] [10.227.67.32] []
    "#]]
    .assert_eq(&shown);
}

#[test]
fn one_object_can_be_lowered_alone() {
    let (roots, _, _) = crate::document::documents(POD.as_bytes());
    let (lowered, findings) = crate::object(&"f".into(), &roots[0]);
    expect![[r#"
        Pod default/a [] [10.0.0.1] []
    "#]]
    .assert_eq(&lowered.iter().map(object).chain(findings.iter().map(finding)).collect::<String>());
}

#[test]
fn the_number_of_findings_is_limited() {
    let policy =
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: A}}\n---\n";
    let findings = read(&policy.repeat(30_000)).findings;
    assert_eq!(findings.len(), 50_001);
    assert_eq!(findings[50_000].code, "too-many-findings");
}

fn missing(text: &str) -> Vec<String> {
    let manifests = read(text);
    manifests
        .missing()
        .map(|finding| format!("{} {}", finding.code, finding.object_text()))
        .collect()
}

#[test]
fn unreadable_input_is_reported_as_missing() {
    assert_eq!(missing(POD), [""; 0]);
    assert_eq!(missing(&format!("{POD}\n---\nkind: [\n")), ["syntax "]);
    let deep = "[".repeat(200);
    assert_eq!(missing(&format!("{POD}\n---\n{deep}")), ["syntax "]);
    assert_eq!(missing("{kidn: Pod, metadata: {name: a}}"), ["not-an-object "]);
    assert_eq!(missing("{replicas: 5}"), [""; 0]);
    let text = "{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetPolicy, metadata: {name: a}}";
    assert_eq!(missing(text), ["unknown-kind "]);
    assert_eq!(missing("{kind: networkpolicy, metadata: {name: a}}"), ["unknown-kind "]);
    assert_eq!(missing("{kind: CiliumNetworkPolicy, metadata: {name: a}}"), [""; 0]);
    let policy = |metadata: &str| {
        missing(&format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {metadata}}}"
        ))
    };
    assert_eq!(policy("{name: a, namespase: shop}"), ["misplaced-policy NetworkPolicy default/a"]);
    assert_eq!(policy("{name: a, namespace: [a]}"), ["misplaced-policy NetworkPolicy default/a"]);
    let twice = "{name: a, namespace: a}, metadata: {name: a, namespace: b}";
    assert_eq!(policy(twice), ["misplaced-policy NetworkPolicy a/a"]);
    for (bad, shown) in
        [("Shop", "Shop"), ("'shop '", "shop "), ("5", "5"), ("on", "on"), ("' '", " ")]
    {
        assert_eq!(
            policy(&format!("{{name: a, namespace: {bad}}}")),
            [format!("misplaced-policy NetworkPolicy {shown}/a")]
        );
    }
    assert_eq!(policy("{name: a, namespace: shop}"), [""; 0]);
    assert_eq!(policy("{name: a, namespace: ''}"), [""; 0]);
}

#[test]
fn misspelt_policies_are_reported_as_missing() {
    for kind in [
        "networkpolicies",
        "NetworkPolicys",
        "NetPol",
        "ANP",
        "banp",
        "cnp",
        "adminnetworkpolicies",
        "BaselineAdminNetworkPolicys",
        "clusterNetworkPolicies",
    ] {
        for version in ["networking.k8s.io/v1", "example.com/v1", "v1"] {
            let text = format!("{{apiVersion: {version}, kind: {kind}, metadata: {{name: a}}}}");
            assert_eq!(missing(&text), ["unknown-kind "], "{text}");
        }
    }
    for kind in [
        "NetworkPolicy",
        "AdminNetworkPolicy",
        "BaselineAdminNetworkPolicy",
        "ClusterNetworkPolicy",
    ] {
        let text = format!("{{apiVersion: example.com/v1, kind: {kind}, metadata: {{name: a}}}}");
        assert_eq!(missing(&text), ["unknown-kind "], "{text}");
        for group in ["crd.projectcalico.org", "cilium.io", "crd.antrea.io", "k8s.ovn.org"] {
            let text = format!("{{apiVersion: {group}/v1, kind: {kind}, metadata: {{name: a}}}}");
            assert_eq!(missing(&text), [""; 0], "{text}");
            assert_eq!(read(&text).findings[0].severity, Severity::Warning, "{text}");
        }
    }
    let text = "{apiVersion: notcilium.io/v1, kind: NetworkPolicy, metadata: {name: a}}";
    assert_eq!(missing(text), ["unknown-kind "]);
}

#[test]
fn misspelt_lists_are_reported() {
    for (text, expected) in [
        (format!("{{apiVersion: v1, kind: list, items: [{POD}]}}"), "unknown-kind "),
        (format!("{{apiVersion: v1, items: [{POD}], kind: LIST}}"), "unknown-kind "),
        (format!("{{apiVersion: v1, kind: Lists, items: [{POD}]}}"), "unknown-kind "),
        (format!("{{apiVersion: v1, kind: podlist, items: [{POD}]}}"), "unknown-kind "),
        (format!("{{apiVersion: v1, kind: List, Items: [{POD}]}}"), "unknown-field "),
        (format!("{{apiVersion: v1, kind: PodList, item: [{POD}]}}"), "unknown-field "),
        (format!("{{items: [], item: [{POD}], kind: List}}"), "unknown-field "),
        (format!("{{items: [{POD}], Items: [], kind: List}}"), "unknown-field "),
        (format!("{{apiVersion: v1, kind: List, items: {POD}}}"), "not-an-object "),
        (format!("{{kind: List, items: [{{kind: list, items: [{POD}]}}]}}"), "unknown-kind "),
        (format!("[{POD}]"), "not-an-object "),
        (format!("[5, [{POD}]]"), "not-an-object "),
        ("- metadata: {name: a}".into(), "not-an-object "),
    ] {
        assert_eq!(missing(&text), [expected], "{text}");
    }
    for fine in ["{kind: List, items: []}", "{kind: List, items: }", "[{op: add}]", "{kind: List}"]
    {
        assert_eq!(missing(fine), [""; 0], "{fine}");
    }
    check(
        "
{apiVersion: v1, kind: list, items: [{kind: Pod}]}
---
{apiVersion: v1, kind: List, Items: [{kind: Pod}]}
---
{apiVersion: v1, kind: List, items: {kind: Pod}}
---
- {kind: Pod}",
        expect![[r#"
            1: warning unknown-kind  
                there is no kind list; the object was not read
                did you mean `kind: List`?
            3: error unknown-field  
                there is no field "Items" in a list; its objects were not read
                did you mean `items`?
            5: error not-an-object  
                expected a list of objects in `items`, found a mapping; it was skipped
                begin each object with `- `
            7: error not-an-object  
                expected a Kubernetes object, found a list; it was skipped
                write `---` between the objects, or put them into the `items` of a `List`
        "#]],
    );
}

#[test]
fn a_conflicting_object_is_reported_as_missing() {
    let pod = |labels: &str| {
        format!("{{apiVersion: v1, kind: Pod, metadata: {{name: a, labels: {labels}}}}}\n---\n")
    };
    assert_eq!(missing(&[pod("{a: b}"), pod("{a: b}")].concat()), [""; 0]);
    assert_eq!(
        missing(&[pod("{a: b}"), pod("{a: c}")].concat()),
        ["conflicting-object Pod default/a"]
    );
    for (kind, name) in [("Namespace", "Namespace a"), ("Node", "Node a")] {
        assert_eq!(
            missing(&[pod("{a: b}"), pod("{a: c}")].concat().replace("Pod", kind)),
            [format!("conflicting-object {name}")]
        );
    }
    let workload = |labels: &str| {
        format!(
            "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: a}}, spec: {{template: {{metadata: {{labels: {labels}}}}}}}}}\n---\n"
        )
    };
    assert_eq!(missing(&[workload("{a: b}"), workload("{a: b}")].concat()), [""; 0]);
    assert_eq!(
        missing(&[workload("{a: b}"), workload("{}")].concat()),
        ["conflicting-object deployment default/a"]
    );
    // Policies are merged instead.
    let policy = |spec: &str| {
        format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: a}}, spec: {spec}}}\n---\n"
        )
    };
    assert_eq!(missing(&[policy("{}"), policy("{ingress: [{}]}")].concat()), [""; 0]);
}

#[test]
fn a_second_object_without_a_separator_is_read() {
    check(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, ingress: [{}]}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: b, namespace: billing}
spec: {podSelector: {matchLabels: {app: db}}, ingress: [{}]}
apiVersion: v1
kind: Pod
metadata: {name: c, namespace: other}
status: {podIP: 10.0.0.1}",
        expect![[r#"
            Namespace billing kubernetes.io/metadata.name=billing
            Namespace other kubernetes.io/metadata.name=other
            Namespace shop kubernetes.io/metadata.name=shop
            Pod other/c [] [10.0.0.1] []
            NetworkPolicy billing/b Namespace for own/app=db
              ingress: no rules
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
              egress: no rules
            5: error duplicate-key  
                the key "apiVersion" occurs twice, in lines 1 and 5
                remove one of the two
            6: error duplicate-key  
                the key "kind" occurs twice, in lines 2 and 6: a `---` seems to be missing between two objects
                write a line `---` between the two objects
            7: error duplicate-key  
                the key "metadata" occurs twice, in lines 3 and 7
                remove one of the two
            8: error duplicate-key  
                the key "spec" occurs twice, in lines 4 and 8
                remove one of the two
            9: error duplicate-key  
                the key "apiVersion" occurs twice, in lines 1 and 9
                remove one of the two
            10: error duplicate-key  
                the key "kind" occurs twice, in lines 2 and 10: a `---` seems to be missing between two objects
                write a line `---` between the two objects
            11: error duplicate-key  
                the key "metadata" occurs twice, in lines 3 and 11
                remove one of the two
            3: error misplaced-policy NetworkPolicy shop/a metadata.namespace
                the namespace of the policy is invalid; weir uses the first one given, or default
                correct `metadata`, and write the namespace once
        "#]],
    );
}

#[test]
fn a_misspelt_kind_is_a_warning() {
    check(
        "
{apiVersion: networking.k8s.io/v1, kind: networkpolicy, metadata: {name: a}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicies, metadata: {name: a}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolcy, metadata: {name: a}}
---
{apiVersion: networking.k8.io/v1, kind: NetworkPolicy, metadata: {name: a}}
---
{kind: pod, metadata: {name: a}}
---
{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: a}}
---
{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: a}}
---
{apiVersion: crd.antrea.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: a}}",
        expect![[r#"
            1: warning unknown-kind  
                there is no kind networkpolicy.networking.k8s.io; the object was not read
                did you mean `kind: NetworkPolicy`?
            3: warning unknown-kind  
                there is no kind NetworkPolicies.networking.k8s.io; the object was not read
                did you mean `kind: NetworkPolicy`?
            5: warning unknown-kind  
                there is no kind NetworkPolcy.networking.k8s.io; the object was not read
                did you mean `kind: NetworkPolicy`?
            7: warning unknown-kind  
                there is no kind NetworkPolicy.networking.k8.io; the object was not read
                did you mean `apiVersion: networking.k8s.io/v1`?
            9: warning unknown-kind  
                there is no kind pod; the object was not read
                did you mean `kind: Pod`?
            11: warning foreign-policy  
                policies of kind NetworkPolicy.projectcalico.org are not supported; results do not reflect them
                such policies may deny or allow further traffic
            13: warning foreign-policy  
                policies of kind CiliumNetworkPolicy.cilium.io are not supported; results do not reflect them
                such policies may deny or allow further traffic
            15: warning foreign-policy  
                policies of kind ClusterNetworkPolicy.crd.antrea.io are not supported; results do not reflect them
                such policies may deny or allow further traffic
        "#]],
    );
}

#[test]
fn a_label_key_that_yaml_reads_as_another_is_reported() {
    check(
        "
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {on: x, 010: y, \"off\": z, true: a, 5: b}}
status: {podIP: 10.0.0.1}",
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            Pod default/a [5=b,8=y,off=z,true=a] [10.0.0.1] []
            3: error duplicate-key  
                the key "true" occurs twice, in lines 3 and 3
                remove one of the two
            3: error invalid Pod default/a metadata.labels[on]
                expected a string key, found the boolean on, which means true; quote it
                write "on" in double quotes
            3: error invalid Pod default/a metadata.labels[010]
                expected a string key, found the number 010, which means 8; quote it
                write "010" in double quotes
            3: error invalid Pod default/a metadata.labels[8]
                expected a string, found the boolean y; quote it
                write it in double quotes
        "#]],
    );
    check(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a}
spec: {podSelector: {matchLabels: {on: x}}, ingress: [{}]}",
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            NetworkPolicy default/a Namespace for own/*
              ingress: no rules
            4: error invalid NetworkPolicy default/a spec.podSelector.matchLabels[on]
                expected a string key, found the boolean on, which means true; quote it
                write "on" in double quotes
        "#]],
    );
}

/// Reading them takes time in proportion to their length.
#[test]
fn long_lists_of_labels_requirements_and_addresses_are_read() {
    const MANY: u32 = 20_000;
    let list = |show: fn(u32) -> String| (0..MANY).map(show).collect::<String>();
    let labels = list(|n| format!("    k{n}: v\n"));
    let ips = list(|n| format!("  - ip: {}\n", Ipv4Addr::from(0x0a00_0000 + n)));
    let requirements = list(|n| format!("    - {{key: a, operator: NotIn, values: [v{n}]}}\n"));
    let manifests = read(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels:\n{labels}status:\n  podIPs:\n{ips}---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: a}}\nspec:\n  podSelector:\n    matchExpressions:\n{requirements}"
    ));
    assert_eq!(manifests.findings, []);
    let (pod, policy) = (manifests.objects.pods().last(), manifests.objects.policies().last());
    let (pod, policy) = (pod.unwrap(), policy.unwrap());
    let requirements = policy.spec.subject.pods.requirements().len();
    let lengths = [pod.labels.iter().count(), pod.addresses.len(), requirements];
    assert_eq!(lengths, [MANY as usize; 3]);
}

#[test]
fn a_list_without_a_kind_is_reported_as_missing() {
    let policy =
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: d}, spec: {}}";
    let mut reader = ManifestReader::new();
    reader.read_file("a.yaml".into(), format!("items:\n- {policy}\n").as_bytes());
    let manifests = reader.finish();
    assert_eq!(manifests.missing().count(), 1, "{:?}", manifests.findings);
}

const MEMCACHED: &str = "
apiVersion: memcached.c5c3.io/v1beta1
kind: Memcached
metadata: {name: cache, namespace: shop}
spec:
  monitoring: {enabled: true}
  security:
    tls: {enabled: true, certificateSecretRef: {name: tls}}
    networkPolicy:
      enabled: true
      allowedSources:
      - podSelector: {matchLabels: {app: web}}
      - ipBlock: {cidr: 10.0.0.0/8}
";

#[test]
fn a_memcached_counts_as_the_policy_that_it_requests() {
    check(
        MEMCACHED,
        expect![[r#"
        Namespace shop kubernetes.io/metadata.name=shop
        NetworkPolicy shop/cache Namespace for own/app.kubernetes.io/instance=cache,app.kubernetes.io/managed-by=memcached-operator,app.kubernetes.io/name=memcached
          ingress[0] line 9: allow own/app=web, 10.0.0.0/8 at 11211/TCP, 11212/TCP, 9150/TCP
        10: info memcached-metrics Memcached shop/cache spec.security.networkPolicy.allowedSources
            these sources also apply to the metrics at port 9150
            make sure that Prometheus is among them; every source can also connect to memcached
    "#]],
    );
    // An empty list allows everyone, as the controller's policy does.
    let open = MEMCACHED.split("      allowedSources").next().unwrap();
    check(
        &format!("{open}      allowedSources: []\n"),
        expect![[r#"
        Namespace shop kubernetes.io/metadata.name=shop
        NetworkPolicy shop/cache Namespace for own/app.kubernetes.io/instance=cache,app.kubernetes.io/managed-by=memcached-operator,app.kubernetes.io/name=memcached
          ingress[0] line 9: allow anyone at 11211/TCP, 11212/TCP, 9150/TCP
        10: warning memcached-everyone Memcached shop/cache spec.security.networkPolicy.allowedSources
            an empty list of allowedSources allows everyone, not no one
            list the allowed sources, or remove the list to allow everyone
        7: warning memcached-plaintext Memcached shop/cache spec.security.networkPolicy
            TLS opens port 11212 and does not close 11211, and everyone can connect to both
            list the allowed sources in allowedSources, which applies to both ports
    "#]],
    );
    let off = "enabled: false\n      allowed";
    let off = read(&MEMCACHED.replace("enabled: true\n      allowed", off));
    assert!(off.objects.is_empty());
}

#[test]
fn the_policy_of_a_memcached_counts_once_and_only_until_a_controller_has_created_it() {
    let created = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: cache, namespace: shop}
";
    for text in [format!("{MEMCACHED}---{created}"), format!("{}---{MEMCACHED}", &created[1..])] {
        let manifests = read(&text);
        assert_eq!(manifests.requested.len(), 0);
        let rules: Vec<_> =
            manifests.objects.policies().map(|policy| policy.spec.ingress.clone()).collect();
        assert_eq!(rules, [Some(Vec::new())], "the manifest wins");
    }
    let manifests = read(MEMCACHED);
    assert_eq!(
        manifests.generated_for.values().map(|by| &**by).collect::<Vec<_>>(),
        ["Memcached shop/cache"]
    );
    let live = manifests.of_cluster();
    assert!(live.generated_for.is_empty());
    assert_eq!(live.objects.policies().count(), 0);
}

#[test]
fn an_invalid_memcached_isolates_and_allows_nothing() {
    for (valid, invalid) in [
        ("enabled: true\n      allowed", "enabled: yes please\n      allowed"),
        ("allowedSources", "allowedSource"),
        ("podSelector", "podSelectors"),
        ("networkPolicy", "networkpolicy"),
        ("security", "Security"),
        ("10.0.0.0/8", "10.0.0.0/99"),
        ("  monitoring", "  security: {}\n  monitoring"),
    ] {
        let text = MEMCACHED.replace(valid, invalid);
        assert_ne!(text, MEMCACHED);
        let manifests = read(&text);
        let rules = manifests.objects.policies().next().map(|policy| policy.spec.ingress.clone());
        assert_eq!(rules, Some(Some(Vec::new())), "{text}");
    }
}
