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
fn files_are_rendered_with_the_names_and_the_space_of_the_agent() {
    let render = |more: &str| {
        let options =
            "render --datapath opflex --aci-prefix demo -f examples/aci/manifests -o json";
        let text = stdout(&format!("{options} {more}"));
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        answer["files"].as_object().unwrap().clone()
    };
    let is_named = |name: &&String| name.starts_with("demo_np_shop_");
    for node in ["", " --node node-1"] {
        let [hash, policy, both] = ["hash", "policy", "both"]
            .map(|names| render(&format!("--aci-space tenant --group-names {names}{node}")));
        assert_eq!(hash.keys().filter(is_named).count(), 0);
        assert!(policy.keys().filter(is_named).count() > 0, "{:?}", policy.keys());
        let all: serde_json::Map<String, serde_json::Value> =
            hash.iter().chain(&policy).map(|(name, file)| (name.clone(), file.clone())).collect();
        assert_eq!(both, all);
        for (name, file) in &both {
            let uri = file[0]["uri"].as_str().unwrap();
            assert!(uri.starts_with("/PolicyUniverse/PolicySpace/tenant/"), "{name}: {uri}");
        }
    }
}

#[test]
fn a_probe_of_a_service_address_names_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let manifests = std::fs::canonicalize("../../../examples/aci/manifests").unwrap();
    let test = format!(
        "name: t\nmanifests: [{}]\nprobes:\n- {{from: {{pod: shop/web}}, to: {{ip: 10.96.0.77}}, port: 80, expect: allow}}\n",
        manifests.display()
    );
    let file = folder.path().join("tests.yaml");
    std::fs::write(&file, test).unwrap();
    let expected =
        "10.96.0.77 is the address of Service prod/db, and policies apply to its backends";
    for datapath in ["opflex", "sim"] {
        let output = weir(&format!("test --datapath {datapath} {}", file.display()));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(expected) && text.contains("write `{service: prod/db}`"), "{text}");
        assert!(!text.contains("bug in weir"), "{text}");
    }
    let text =
        stdout("explain -f examples/aci/manifests --from shop/web --to 10.96.0.77 --port 80");
    assert!(text.starts_with("allowed: shop/web → prod/svc/db 80/TCP"), "{text}");
    assert!(text.contains("allowed  prod/db  5432/TCP"), "{text}");
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
