//! Traffic that passes kube-proxy, the kubelet or a node.

use serde_json::json;

use crate::{
    pods::{deny_all, idle, namespace, policy, server},
    site::{EBPF, IPTABLES, Site, succeed},
};

pub(crate) fn services_with_nftables(site: &mut Site) {
    site.helm_upgrade(&[]);
    services_and_hosts(site, "traffic");
}

pub(crate) fn probes_with_nftables(site: &mut Site) {
    site.helm_upgrade(&[]);
    kubelet_probes(site, "probes");
}

pub(crate) fn with_ebpf(site: &mut Site) {
    site.helm_upgrade(&[EBPF]);
    services_and_hosts(site, "traffic-ebpf");
    kubelet_probes(site, "probes-ebpf");
}

pub(crate) fn with_iptables(site: &mut Site) {
    site.helm_upgrade(&[IPTABLES]);
    services_and_hosts(site, "traffic-iptables");
    kubelet_probes(site, "probes-iptables");
}

/// Services, host ports and host networks: policies judge the packets after translation.
fn services_and_hosts(site: &Site, name: &str) {
    let port = 8080;
    let mut published = server(name, "published", "n2", port);
    published["spec"]["containers"][0]["ports"] =
        json!([{"containerPort": port, "hostPort": 9080}]);
    let mut host = idle(name, "host", "n1");
    host["spec"]["hostNetwork"] = true.into();
    let mut host_server = server(name, "host-server", "n2", 8099);
    host_server["spec"]["hostNetwork"] = true.into();
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": name, "name": "service"},
        "spec": {"type": "NodePort", "selector": {"pod": "published"}, "ports": [{"port": 80, "targetPort": port}]},
    });
    let only_friend = json!({
        "podSelector": {"matchLabels": {"pod": "published"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": "friend"}}}], "ports": [{"port": port}]}],
    });
    // A second one on the other node, whose kube-proxy may use another mode.
    let second = |label: &str| {
        let mut pod = idle(name, &format!("{label}-2"), "n2");
        pod["metadata"]["labels"]["pod"] = label.into();
        pod
    };
    site.apply(&[
        namespace(name),
        published,
        host,
        host_server,
        service,
        idle(name, "friend", "n1"),
        idle(name, "other", "n1"),
        second("friend"),
        second("other"),
        policy(name, "only-friend", only_friend),
    ]);
    let pods = ["published", "friend", "other", "friend-2", "other-2", "host", "host-server"];
    site.await_pods(name, &pods);
    let address = site.address(name, "published");
    let cluster_ip = site.field(name, "service/service", ".spec.clusterIP");
    let node_port = site.field(name, "service/service", ".spec.ports[0].nodePort");
    let (node, _) = site.testbed.nodes()[1].addresses();
    let [direct, by_service] = [format!("TCP/{address}:{port}"), format!("TCP/{cluster_ip}:80")];
    let on_host = format!("TCP/{node}:8099");
    // kube-proxy and the portmap plugin follow the pods after a moment.
    for friend in ["friend", "friend-2"] {
        site.wait_until("the Service has its backend", || {
            site.connect_from(name, friend, std::slice::from_ref(&by_service)) == "a"
        });
    }
    assert_eq!(site.connect_from(name, "other-2", &[direct.clone(), by_service.clone()]), "dd");
    let targets = [direct.clone(), by_service.clone(), on_host.clone()];
    assert_eq!(site.connect_from(name, "friend", &targets), "aaa");
    assert_eq!(
        site.connect_from(name, "other", &targets),
        "dda",
        "a host network pod has no policies"
    );
    // From the host network of another node.
    assert_eq!(site.connect_from(name, "host", &[direct, by_service]), "dd");

    // From outside the cluster, by the ports of a node.
    let outside = [format!("TCP/{node}:9080"), format!("TCP/{node}:{node_port}")];
    let connect = |targets: &[String]| {
        let mut weir = site.testbed.command(env!("CARGO_BIN_EXE_weir"));
        succeed(weir.arg("connect").args(targets)).trim().to_owned()
    };
    assert_eq!(connect(&outside), "dd");
    let open = json!({
        "podSelector": {"matchLabels": {"pod": "published"}},
        "ingress": [{"from": [{"ipBlock": {"cidr": "172.31.77.0/24"}}]}],
    });
    site.apply(&[policy(name, "outside", open)]);
    site.wait_until("the new policy is in force", || connect(&outside) == "aa");
    site.delete_namespace(name);
}

/// The kubelet checks the pods of its node: a node always reaches its own pods.
fn kubelet_probes(site: &Site, name: &str) {
    let check = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 5});
    let pods = ["n1", "n2"].map(|node| {
        let mut pod = server(name, node, node, 8080);
        pod["spec"]["containers"][0]["readinessProbe"] = check.clone();
        pod["spec"]["containers"][0]["livenessProbe"] = check.clone();
        pod
    });
    site.apply(&[namespace(name), deny_all(name)]);
    site.apply(&pods);
    site.await_pods(name, &["n1", "n2"]);
    // The probes of the pods themselves are denied.
    let target = format!("TCP/{}:8080", site.address(name, "n2"));
    assert_eq!(site.connect_from(name, "n1", &[target]), "d");
    for pod in ["pod/n1", "pod/n2"] {
        assert_eq!(site.field(name, pod, ".status.containerStatuses[0].restartCount"), "0");
    }
    site.delete_namespace(name);
}
