use expect_test::{Expect, expect};

use crate::testing::everything;

#[track_caller]
fn check(text: &str, expected: Expect) {
    expected.assert_eq(&everything(text.trim_start_matches('\n')));
}

/// Y8, N10, N12.
#[test]
fn a_pod_has_its_addresses_and_the_named_ports_of_running_containers() {
    check(
        "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  nodeName: n1
  containers:
  - name: a
    ports: [{containerPort: 80, name: http}, {containerPort: 81}, {containerPort: 82, name: \"\", protocol: \"\"}]
  - name: b
    ports: [{containerPort: 53, name: dns, protocol: UDP}]
  initContainers:
  - name: setup
    ports: [{containerPort: 1, name: never}]
  - name: sidecar
    restartPolicy: Always
    ports: [{containerPort: 9090, name: metrics}]
status:
  podIP: 10.0.0.1
  podIPs: [{ip: 10.0.0.1}, {ip: \"fd00::1\"}]",
        expect![[r#"
            Namespace shop kubernetes.io/metadata.name=shop
            Pod shop/web [app=web] [10.0.0.1, fd00::1] [http=80/TCP,dns=53/UDP,metrics=9090/TCP] on n1
        "#]],
    );
}

/// H7.
#[test]
fn an_unscheduled_pod_has_no_node() {
    check(
        "
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: \"\"}, status: {podIP: 10.0.0.1}}",
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            Pod default/a [] [10.0.0.1] []
        "#]],
    );
}

/// Y5.
#[test]
fn a_completed_pod_is_finished() {
    check(
        "
{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {phase: Succeeded, podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b}, status: {phase: Failed, podIP: 10.0.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: c}, status: {phase: Pending}}",
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            Pod default/a [] [10.0.0.1] [] finished
            Pod default/b [] [10.0.0.2] [] finished
            Pod default/c [] [10.233.234.12] []
        "#]],
    );
}

#[test]
fn a_pod_with_errors_is_kept() {
    check(
        "
apiVersion: v1
kind: Pod
metadata: {name: Web, labels: {app: yes, n: 5}}
spec:
  hostNetwork: \"yes\"
  containers: [{ports: [{containerPort: 0, name: http}, {containerPort: 80, name: HTTP}, {name: x}]}]
status: {podIP: 10.0.0}
unheardOf: 5",
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            Pod default/Web [app=yes,false=5] [10.187.132.19] []
            3: error invalid Pod default/Web metadata.name
                "Web" is not a valid name: expected at most 253 lower case letters, digits, `-` and `.`, with a letter or digit at both ends of each part
                correct the name
            3: error invalid Pod default/Web metadata.labels[app]
                expected a string, found the boolean yes; quote it
                write it in double quotes
            3: error invalid Pod default/Web metadata.labels[n]
                expected a string key, found the boolean n, which means false; quote it
                write "n" in double quotes
            3: error invalid Pod default/Web metadata.labels[false]
                expected a string, found the number 5; quote it
                write it in double quotes
            5: error invalid Pod default/Web spec.hostNetwork
                expected true or false, found the string "yes"
                write true or false, without quotes
            6: error invalid Pod default/Web spec.containers[0].ports[0].containerPort
                expected a whole number from 1 to 65535, found the number 0
                choose a number from 1 to 65535
            6: error invalid Pod default/Web spec.containers[0].ports[1].name
                "HTTP" is not a valid port name: expected at most 15 lower case letters, digits and single `-` inside, with at least one letter
                correct the name
            6: error invalid Pod default/Web spec.containers[0].ports[2].containerPort
                a container port needs a number
                add `containerPort:`
            7: error invalid Pod default/Web status.podIP
                expected an IP address, found the string "10.0.0"
                write an address such as 10.0.0.1 or fd00::1
        "#]],
    );
}

/// P9.
#[test]
fn a_namespace_always_has_its_name_as_a_label() {
    check(
        "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {a: b, kubernetes.io/metadata.name: other}}}",
        expect![[r#"
            Namespace shop a=b,kubernetes.io/metadata.name=shop
        "#]],
    );
}

/// C22.
#[test]
fn a_node_has_its_ip_addresses() {
    check(
        "
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {zone: a}}
status:
  addresses:
  - {type: InternalIP, address: 192.168.0.1}
  - {type: InternalIP, address: \"fd00::1\"}
  - {type: Hostname, address: n1}
  - {type: ExternalIP, address: 203.0.113.1}",
        expect![[r#"
            Node n1 zone=a [192.168.0.1, fd00::1, 203.0.113.1]
        "#]],
    );
}

/// S2.
#[test]
fn a_pod_without_a_namespace_is_in_the_default_namespace() {
    check(
        "{apiVersion: v1, kind: Pod, metadata: {name: a}}",
        expect![[r#"
        Namespace default kubernetes.io/metadata.name=default
        Pod default/a [] [10.233.236.234] []
    "#]],
    );
}

#[test]
fn a_host_network_pod_has_the_addresses_of_its_node() {
    check(
        "
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostNetwork: true, nodeName: n1}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}}",
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            Node n1  [192.168.0.1]
            Pod default/a [] [192.168.0.1] [] on n1 host
        "#]],
    );
}

#[test]
fn unsupported_kinds_are_reported_once_and_common_ones_not_at_all() {
    check(
        "
{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
---
{apiVersion: example.com/v1, kind: Foo, metadata: {name: a}}
---
{apiVersion: example.com/v1, kind: Foo, metadata: {name: b}}
---
{apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: a}}
---
a: values file
---
[a, list]
---
text",
        expect![[r#"
            3: info unknown-kind  
                objects of kind Foo.example.com are ignored
                no action is needed, unless it should be a policy
            7: info unknown-kind  
                objects of kind Service.serving.knative.dev are ignored
                no action is needed, unless it should be a policy
            9: warning not-an-object  
                expected a Kubernetes object, found a mapping without `kind`; it was skipped
                add `apiVersion` and `kind`, or exclude the file
            11: warning not-an-object  
                expected a Kubernetes object, found a list; it was skipped
                add `apiVersion` and `kind`, or exclude the file
            13: warning not-an-object  
                expected a Kubernetes object, found the string "text"; it was skipped
                add `apiVersion` and `kind`, or exclude the file
        "#]],
    );
}

#[test]
fn services_have_addresses_ports_and_backends() {
    check(
        "
{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, 'fd96::1'], externalIPs: [192.0.2.1], selector: {app: a}, ports: [{port: 80, targetPort: http}, {name: dns, port: 53, protocol: UDP}]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.7}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: b}, spec: {clusterIP: None, ports: [{port: 0}, {targetPort: 80}, {port: 1, protocol: ICMP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a-1, labels: {kubernetes.io/service-name: a}}, addressType: IPv4, endpoints: [{addresses: [10.0.0.2, 10.0.0.1]}, {addresses: [nowhere]}], ports: [{port: 8080}, {name: all}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: c}, addressType: FQDN, endpoints: [{addresses: [example.com]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: d}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, ipFamilies: [IPv6], ports: [{port: 80, nodePort: 30080}, {port: 81, nodePort: 0}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: e}, spec: {type: ExternalName, externalName: db.example.com, ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv4]}}
---
{apiVersion: v1, kind: Service, metadata: {name: f}, spec: {type: NodePorts, externalTrafficPolicy: local}}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: g}, subsets: [{addresses: [{ip: 192.0.2.1}], notReadyAddresses: [{ip: 192.0.2.2}], ports: [{name: sql, port: 5432}]}, {addresses: [{ip: x}]}]}",
        expect![[r#"
            Service default/a ClusterIp Cluster [10.96.0.1, 192.0.2.7, fd96::1] [] [ServicePort { name: "", protocol: Tcp, port: 80, target: Name("http"), node_port: None }, ServicePort { name: "dns", protocol: Udp, port: 53, target: Number(53), node_port: None }] Some(Selector([In("app", {"a"})]))
            Service default/b Headless Cluster [] [] [] None
            Service default/d LoadBalancer Local [] [V6] [ServicePort { name: "", protocol: Tcp, port: 80, target: Number(80), node_port: Some(30080) }, ServicePort { name: "", protocol: Tcp, port: 81, target: Number(81), node_port: None }] None
            Service default/e ExternalName("db.example.com") Cluster [] [] [] None
            Service default/f ClusterIp Cluster [] [] [] None
            EndpointSlice default/a-1 of a [10.0.0.1, 10.0.0.2] [EndpointPort { name: "", protocol: Tcp, port: 8080 }]
            EndpointSlice default/c of  [] []
            EndpointSlice default/g/0 of g [192.0.2.1, 192.0.2.2] [EndpointPort { name: "sql", protocol: Tcp, port: 5432 }]
            EndpointSlice default/g/1 of g [] []
            3: error invalid Service default/b spec.ports[0].port
                expected a whole number from 1 to 65535, found the number 0
                choose a number from 1 to 65535
            3: error invalid Service default/b spec.ports[1].port
                a port of a Service needs a number
                add `port:`
            3: error invalid Service default/b spec.ports[2].protocol
                expected TCP, UDP or SCTP, found the string "ICMP"
                write TCP, UDP or SCTP
            5: error invalid EndpointSlice default/a-1 endpoints
                expected an IP address, found the string "nowhere"
                write an address such as 10.0.0.1 or fd00::1
            13: error invalid Service default/f spec.type
                expected ClusterIP, NodePort, LoadBalancer or ExternalName, found the string "NodePorts"
                did you mean `NodePort`?
            13: error invalid Service default/f spec.externalTrafficPolicy
                expected Cluster or Local, found the string "local"
                did you mean `Local`?
            15: error invalid Endpoints default/g subsets[1]
                expected an IP address, found the string "x"
                write an address such as 10.0.0.1 or fd00::1
        "#]],
    );
}

#[test]
fn metadata_of_other_kinds_is_read_tolerantly() {
    check(
        "
{apiVersion: v1, kind: Pod, metadata: {name: 5, namespace: y, label: {a: b}}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: no, labels: {a: b}, lables: {c: d}}}",
        expect![[r#"
            Namespace no a=b,kubernetes.io/metadata.name=no
            Namespace y kubernetes.io/metadata.name=y
            Pod y/5 [] [10.0.0.1] []
            1: warning unknown-field Pod y/5 metadata.label
                there is no field "label" here
                did you mean `labels`?
            1: error invalid Pod y/5 metadata.name
                expected a string, found the number 5; quote it
                write it in double quotes
            1: error invalid Pod y/5 metadata.namespace
                expected a string, found the boolean y; quote it
                write it in double quotes
            3: warning unknown-field Namespace no metadata.lables
                there is no field "lables" here
                did you mean `labels`?
            3: error invalid Namespace no metadata.name
                expected a string, found the boolean no; quote it
                write it in double quotes
        "#]],
    );
}

#[test]
fn ipv4_mapped_ipv6_addresses_are_ipv4() {
    check(
        "
{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {podIP: \"::ffff:10.0.0.1\", podIPs: [{ip: 10.0.0.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: \"::ffff:10.0.0.2\"}]}}",
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            Node n1  [10.0.0.2]
            Pod default/a [] [10.0.0.1] []
        "#]],
    );
    let case = "{name: a, pods: [{name: a, ips: [\"::ffff:10.0.0.1\"]}], probes: [{from: {ip: \"::ffff:8.8.8.8\"}, to: {pod: default/a}, port: 1, expect: allow}]}";
    let case = crate::cases("f".into(), case.as_bytes()).remove(0);
    let shown: String = case.objects.iter().map(crate::testing::object).collect();
    assert_eq!(shown, "Pod default/a [] [10.0.0.1] []\n");
    assert_eq!(case.probes[0].from.to_string(), "8.8.8.8");
}
