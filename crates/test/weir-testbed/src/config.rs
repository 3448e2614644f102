//! The configuration of the programs. Options that some versions of Kubernetes lack depend on the
//! version.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
};

/// The networks of Services.
pub(crate) const SERVICES: &str = "10.96.0.0/16,fd96::/112";
/// The networks of all pods.
pub(crate) const PODS: &str = "10.244.0.0/16,fd44::/16";
/// The image of pod sandboxes.
pub(crate) const PAUSE_IMAGE: &str = "localhost/weir-testbed-pause:1";

/// An address of the network between nodes; the control plane has number 1.
pub(crate) fn rack_v4(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 31, 77, number)
}

/// The same as [`rack_v4`] for IPv6.
pub(crate) fn rack_v6(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd31, 0x77, 0, 0, 0, 0, 0, number.into())
}

/// The networks of the pods of a node.
pub(crate) fn pod_networks(number: u8) -> [String; 2] {
    [format!("10.244.{number}.0/24"), format!("fd44:{number}::/64")]
}

/// The feature gates of one program. Dual-stack is on by default since 1.21, ephemeral containers since
/// 1.23; later versions reject the names.
pub(crate) fn feature_gates(minor: u32) -> Option<&'static str> {
    match minor {
        0..=20 => Some("IPv6DualStack=true,EphemeralContainers=true"),
        21..=22 => Some("EphemeralContainers=true"),
        _ => None,
    }
}

/// A kubeconfig with a token. Another name in the certificate is expected if one is given.
pub(crate) fn kubeconfig(server: &str, name: Option<&str>, ca: &Path, token: &str) -> String {
    let name = name.map(|name| format!("\n    tls-server-name: {name}")).unwrap_or_default();
    let ca = ca.display();
    format!(
        "apiVersion: v1
kind: Config
current-context: weir
contexts:
- name: weir
  context: {{cluster: weir, user: admin}}
clusters:
- name: weir
  cluster:
    server: {server}
    certificate-authority: {ca}{name}
users:
- name: admin
  user: {{token: {token}}}
"
    )
}

/// The configuration of containerd. The kernel denies a lower OOM score without CAP_SYS_RESOURCE.
pub(crate) fn containerd() -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/opt/cni/bin"
  conf_dir = "/etc/cni/net.d"
"#
    )
}

/// The configuration of the kubelet.
pub(crate) fn kubelet(minor: u32) -> String {
    let mut text = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
resolvConf: \"\"
oomScoreAdj: 0
imageGCHighThresholdPercent: 100
evictionHard: {imagefs.available: \"0%\", nodefs.available: \"0%\", nodefs.inodesFree: \"0%\"}
nodeStatusUpdateFrequency: 2s
syncFrequency: 5s
"
    .to_owned();
    if let Some(gates) = feature_gates(minor) {
        text.push_str(&format!("featureGates: {{{}}}\n", gates.replace('=', ": ")));
    }
    if minor >= 27 {
        text.push_str("containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n");
    }
    if minor >= 31 {
        text.push_str("failCgroupV1: false\n");
    }
    text
}

/// The flags of the kubelet.
pub(crate) fn kubelet_flags(minor: u32, node: &str, address: Ipv4Addr) -> Vec<String> {
    let mut flags = vec![
        "--config=/etc/kubernetes/kubelet".to_owned(),
        "--kubeconfig=/etc/kubernetes/kubeconfig".to_owned(),
        format!("--hostname-override={node}"),
        format!("--node-ip={address}"),
    ];
    // The default is Docker before 1.24, and later versions lack the flag.
    if minor < 24 {
        flags.push("--container-runtime=remote".to_owned());
    }
    if minor < 27 {
        flags
            .push("--container-runtime-endpoint=unix:///run/containerd/containerd.sock".to_owned());
    }
    flags
}

/// The mode of kube-proxy on a node. Where the version has the mode nftables, every second node uses it,
/// so that tests meet both.
pub(crate) fn proxy_mode(minor: u32, number: u8) -> &'static str {
    if minor >= 31 && number.is_multiple_of(2) { "nftables" } else { "iptables" }
}

/// The configuration of kube-proxy. A network namespace cannot change the limits of connection tracking.
pub(crate) fn kube_proxy(minor: u32, node: &str, mode: &str) -> String {
    let gates = feature_gates(minor).filter(|_| minor <= 20);
    let gates = gates.map(|_| "featureGates: {IPv6DualStack: true}\n").unwrap_or_default();
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {{kubeconfig: /etc/kubernetes/kubeconfig}}
clusterCIDR: {PODS}
hostnameOverride: {node}
mode: {mode}
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
oomScoreAdj: 0
{gates}"
    )
}

/// The CNI configuration of a node.
pub(crate) fn cni(number: u8) -> String {
    let [v4, v6] = pod_networks(number);
    format!(
        r#"{{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [
    {{
      "type": "bridge",
      "bridge": "cni0",
      "isGateway": true,
      "hairpinMode": true,
      "ipam": {{
        "type": "host-local",
        "dataDir": "/run/cni-ipam",
        "ranges": [[{{"subnet": "{v4}"}}], [{{"subnet": "{v6}"}}]],
        "routes": [{{"dst": "0.0.0.0/0"}}, {{"dst": "::/0"}}]
      }}
    }},
    {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
  ]
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The versions in which an option came or went, and some that did not exist when this was written.
    const MINORS: [u32; 9] = [20, 21, 23, 24, 27, 30, 31, 37, u32::MAX];

    #[test]
    fn later_versions_have_no_option_that_was_removed() {
        for minor in MINORS {
            let flags = kubelet_flags(minor, "n1", rack_v4(11)).join(" ");
            assert_eq!(flags.contains("--container-runtime=remote"), minor < 24, "{minor}");
            let endpoint = [flags.as_str(), &kubelet(minor)];
            let named = endpoint.map(|text| text.contains("containerd.sock"));
            assert_eq!(named, [minor < 27, minor >= 27], "exactly once, {minor}");
            let proxy = kube_proxy(minor, "n1", "iptables");
            let gates = [kubelet(minor), proxy].map(|text| text.contains("featureGates"));
            assert_eq!(gates, [minor <= 22, minor <= 20], "{minor}");
        }
    }

    #[test]
    fn both_modes_of_kube_proxy_are_used_where_they_exist() {
        for minor in MINORS {
            let expected = if minor >= 31 { "nftables" } else { "iptables" };
            assert_eq!([1, 2].map(|node| proxy_mode(minor, node)), ["iptables", expected]);
        }
    }
}
