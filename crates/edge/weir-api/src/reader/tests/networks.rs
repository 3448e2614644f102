//! Networks that weir does not judge.

use expect_test::{Expect, expect};

use crate::testing::read;

#[track_caller]
fn check(text: &str, expected: Expect) {
    let manifests = read(text.trim_start_matches('\n'));
    let mut all = String::new();
    for (pod, attached) in &manifests.unjudged {
        let secondary: Vec<&str> = attached.secondary.iter().map(|name| &**name).collect();
        let primary = attached.primary.as_deref().unwrap_or("cluster network");
        all += &format!("{pod}: {primary}; {}\n", secondary.join(" "));
    }
    for finding in &manifests.findings {
        let line = finding.location.as_ref().map_or(0, |location| location.line);
        all += &format!("{line}: {:?} {} {}\n", finding.severity, finding.code, finding.message);
    }
    expected.assert_eq(&all);
}

#[test]
fn annotations_attach_secondary_networks() {
    check(
        r#"
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop, annotations: {k8s.v1.cni.cncf.io/networks: "macvlan, storage/fast@net1"}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: shop, annotations: {k8s.v1.cni.cncf.io/networks: '[{"name": "fast", "namespace": "storage"}]'}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: c, namespace: shop, annotations: {k8s.v1.cni.cncf.io/networks: '[]'}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: d, namespace: shop, annotations: {k8s.v1.cni.cncf.io/networks: '[{'}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: e, namespace: shop, annotations: {v1.multus-cni.io/default-network: kube/own}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: f, namespace: shop, annotations: {k8s.v1.cni.cncf.io/networks: x}}, spec: {hostNetwork: true}}
---
apiVersion: v1
items: [{metadata: {name: g, namespace: shop, annotations: {other: x, k8s.v1.cni.cncf.io/networks: macvlan}}}]
kind: PodList
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: h, namespace: shop}
spec: {template: {metadata: {annotations: {k8s.v1.cni.cncf.io/networks: macvlan}}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: vm, namespace: shop}
spec: {template: {spec: {domain: {devices: {}}, networks: [{name: default, pod: {}}, {name: l2, multus: {networkName: bridge}}]}}}
"#,
        expect![[r#"
            shop/a: cluster network; shop/macvlan storage/fast
            shop/b: cluster network; storage/fast
            shop/d: cluster network; shop/[{
            shop/e: network kube/own; 
            shop/g: cluster network; shop/macvlan
            shop/h: cluster network; shop/macvlan
            shop/vm: cluster network; shop/bridge
            9: Warning unjudged-network network kube/own replaces the cluster network for shop/e; weir does not judge their connections
            7: Warning unjudged-network the secondary network shop/[{ connects shop/d; weir does not judge its connections
            22: Warning unjudged-network the secondary network shop/bridge connects shop/vm; weir does not judge its connections
            1: Warning unjudged-network the secondary network shop/macvlan connects shop/a and 2 more pods; weir does not judge its connections
            1: Warning unjudged-network the secondary network storage/fast connects shop/a and 1 more pod; weir does not judge its connections
        "#]],
    );
}

#[test]
fn a_user_defined_network_replaces_the_cluster_network() {
    check(
        r#"
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: net, namespace: blue}
spec: {topology: Layer2, layer2: {role: Primary, subnets: [10.1.0.0/16]}}
---
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: more, namespace: plain}
spec: {topology: Layer2, layer2: {role: Secondary}}
---
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: shared}
spec:
  namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [green, red]}]}
  network: {topology: Layer3, layer3: {role: Primary}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: grey, labels: {k8s.ovn.org/primary-user-defined-network: ""}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: blue}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: blue}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: green}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: grey}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: plain}}
---
apiVersion: v1
kind: Pod
metadata:
  name: live
  namespace: plain
  annotations: {k8s.ovn.org/pod-networks: '{"default":{"role":"infrastructure-locked"},"plain/own":{"role":"primary"}}'}
---
{apiVersion: v1, kind: Pod, metadata: {name: host, namespace: blue}, spec: {hostNetwork: true}}
"#,
        expect![[r#"
            blue/a: UserDefinedNetwork blue/net; 
            blue/b: UserDefinedNetwork blue/net; 
            green/a: ClusterUserDefinedNetwork shared; 
            grey/a: the UserDefinedNetwork of namespace grey; 
            plain/live: network plain/own; 
            11: Warning unjudged-network ClusterUserDefinedNetwork shared replaces the cluster network for green/a; weir does not judge their connections
            1: Warning unjudged-network UserDefinedNetwork blue/net replaces the cluster network for blue/a and 1 more pod; weir does not judge their connections
            30: Warning unjudged-network network plain/own replaces the cluster network for plain/live; weir does not judge their connections
            26: Warning unjudged-network the UserDefinedNetwork of namespace grey replaces the cluster network for grey/a; weir does not judge their connections
        "#]],
    );
}
