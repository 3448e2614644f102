//! Cisco ACI without a cluster: the example, and what to render.

use crate::weir;

fn stdout(command: &str) -> String {
    let output = weir(command);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_example_passes_its_tests() {
    for datapath in ["opflex", "sim"] {
        let text = stdout(&format!("test --datapath {datapath} examples/aci/tests.yaml"));
        assert!(text.ends_with("5 passed, 0 failed\n"), "{text}");
    }
}

#[test]
fn the_example_opens_its_services() {
    let text = stdout(
        "render --datapath opflex --aci-prefix demo_xyz1 --node node-1 -f examples/aci/manifests",
    );
    for (rule, address) in
        [("service_tcp_80-ipv4", "10.96.0.77"), ("service_udp_53-ipv4", "10.96.0.10")]
    {
        let subnet = format!("|networkpolicy-egress|{rule}\"");
        assert!(
            text.contains(&subnet) && text.contains(&format!("\"{address}\"")),
            "{rule}: {text}"
        );
    }
}

#[test]
fn rendering_nothing_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("namespace.yaml");
    std::fs::write(&file, "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n").unwrap();
    let text = stdout(&format!("render --datapath opflex -f {}", file.display()));
    assert!(text.starts_with("# there is no NetworkPolicy in the input, so no pod"), "{text}");
    let pod =
        "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}, spec: {nodeName: n1}}";
    let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: np, namespace: other}, spec: {podSelector: {}}}";
    let other = folder.path().join("other.yaml");
    std::fs::write(&other, format!("{pod}\n---\n{policy}\n")).unwrap();
    let text = stdout(&format!("render --datapath opflex --node n1 -f {}", other.display()));
    assert!(text.starts_with("# no NetworkPolicy selects a pod of node n1"), "{text}");
    let text = stdout("render --datapath opflex -f examples/aci/manifests");
    assert!(!text.starts_with('#') || text.starts_with("# kube_"), "{text}");
    let json = stdout(&format!("render --datapath opflex -o json -f {}", file.display()));
    assert!(json.contains("there is no NetworkPolicy in the input"), "{json}");
}
