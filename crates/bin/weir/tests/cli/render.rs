use std::fs;

use expect_test::expect;

use crate::{check, json, stderr, stdout, weir, weir_reading};

#[test]
fn rules_that_are_shared_are_printed_once() {
    let answer = json(&weir("render -f examples/shop/manifests -o json"));
    assert_eq!(answer["endpoints"].as_array().unwrap().len(), 7);
    let shared: u64 =
        answer["rules"].as_array().unwrap().iter().map(|r| r["endpoints"].as_u64().unwrap()).sum();
    assert_eq!(shared, 7);
    assert!(answer["rules"].as_array().unwrap().len() < 7);
    assert!(!answer["sets"].as_array().unwrap().is_empty());
}

#[test]
fn an_unknown_node_is_an_error() {
    let nodes = |count: u32| -> String {
        let node = |n| format!("{{apiVersion: v1, kind: Node, metadata: {{name: worker-{n}}}}}\n");
        (1..=count).map(node).collect::<Vec<_>>().join("---\n")
    };
    for (count, hint) in [(2, "the nodes are worker-1, worker-2;"), (20, "did you mean worker-1")] {
        let output = weir_reading("render -f - --node worker1", &nodes(count));
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(hint), "{}", stderr(&output));
    }
}

/// The golden tests of the backend check the rules themselves.
#[test]
fn iptables_rules_have_the_format_of_its_programs() {
    let output = weir("render -f examples/shop/manifests --datapath iptables");
    let text = String::from_utf8_lossy(&output.stdout);
    let parts: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    let heads = ["# ipset save", "# iptables-save -t filter", "# ip6tables-save -t filter"];
    assert_eq!(parts, heads);
    let ours = |word: &&str| word.starts_with("KUBE-") || word.starts_with("inet6:KUBE-");
    for line in text.lines().filter(|line| line.starts_with("create ")) {
        let name = line.split(' ').nth(1).unwrap_or_default();
        assert!(ours(&name) && name.len() <= 31, "{line}");
    }
    assert_eq!(text.matches("\nCOMMIT\n").count(), 2);
    assert_eq!(output.status.code(), Some(0));
}

/// The golden tests of the backend check the elements and the programs themselves.
#[test]
fn ebpf_is_printed_as_maps_and_programs() {
    let output = weir("render -f examples/shop/manifests --datapath ebpf");
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(text.starts_with("config: epoch 1, enforce\n"), "{text}");
    // The address of payments/checkout, whose policy allows one port.
    assert!(text.contains("\naddress 10.243.47.192: pod 4\n"), "{text}");
    assert!(text.contains("\npod 4: kind 6; "), "{text}");
    assert!(text.contains(" 8443/TCP: allow\n"), "{text}");
    for family in ["IPv4", "IPv6"] {
        let program = format!("\nprogram for {family}:\n    0: r2 = u64[r1 +0]\n");
        assert!(text.contains(&program), "{text}");
    }
}

/// The golden tests of the backend check the rules themselves.
#[test]
fn acls_have_the_format_of_hns() {
    let pods = json(&weir("render -f examples/shop/manifests --datapath hcn -o json"));
    let pods = pods["endpoints"].as_array().unwrap();
    assert_eq!(pods.len(), 7);
    let checkout = pods.iter().find(|pod| pod["Pod"] == "payments/checkout").unwrap();
    assert_eq!(checkout["IpAddresses"][0], "10.243.47.192");
    let policies = checkout["Policies"].as_array().unwrap();
    assert!(policies.iter().all(|policy| policy["Type"] == "ACL"));
    let ids = policies.iter().map(|policy| policy["Settings"]["Id"].as_str().unwrap());
    let granted: Vec<&str> = ids.filter(|id| id.contains("payments/checkout#in")).collect();
    assert_eq!(granted, ["weir:NetworkPolicy/payments/checkout#in.0"]);
}

/// The golden tests of the backend check the files themselves.
#[test]
fn opflex_files_match_the_groups_of_the_pods() {
    let all = json(&weir(
        "render -f examples/shop/manifests --datapath opflex --aci-prefix demo -o json",
    ));
    let files = all["files"].as_object().unwrap();
    assert!(files.contains_key("demo_np_static-discovery.netpol"));
    for (name, objects) in files {
        assert_eq!(objects[0]["subject"], "GbpLocalSecGroup");
        assert_eq!(
            format!("{}.netpol", objects[0]["properties"][0]["data"].as_str().unwrap()),
            *name
        );
    }
    for (pod, groups) in all["groups"].as_object().unwrap() {
        for group in groups.as_array().unwrap() {
            assert!(
                files.contains_key(&format!("{}.netpol", group.as_str().unwrap())),
                "{pod} {group}"
            );
        }
    }
    let text =
        stdout(&weir("render -f examples/shop/manifests --datapath opflex --aci-prefix demo"));
    assert_eq!(text.lines().filter(|line| line.starts_with("# ")).count(), files.len());
    let kinds: Vec<&str> = all["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["kind"].as_str().unwrap())
        .collect();
    assert!(kinds.contains(&"HostprotPol") && kinds.contains(&"HostprotRemoteIpContainer"));
}

#[test]
fn an_invalid_prefix_is_rejected() {
    let output = weir("render -f examples/shop/manifests --datapath opflex --aci-prefix Demo");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("expected lower case letters"), "{}", stderr(&output));
}

#[test]
fn options_without_effect_are_rejected() {
    for refused in [
        "iptables -o yaml",
        "ebpf -o json",
        "hcn -n shop",
        "opflex -n shop",
        "nftables -n shop",
        "ebpf -n shop",
    ] {
        let output = weir(&format!("render -f examples/shop/manifests --datapath {refused}"));
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{refused}");
    }
}

/// `sim` and `hcn` have an entry for every pod, the others a skeleton of a ruleset. None of these
/// says why there are no rules.
#[test]
fn rendering_no_rules_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, documents: &[&str]| {
        let path = folder.path().join(name);
        fs::write(&path, documents.join("\n---\n")).unwrap();
        path.display().to_string()
    };
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}, spec: {nodeName: n1}, status: {podIPs: [{ip: 10.0.0.1}]}}";
    let own = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}, spec: {nodeName: n1, hostNetwork: true}, status: {podIPs: [{ip: 10.0.0.1}]}}";
    let node = "{apiVersion: v1, kind: Node, metadata: {name: n2}}";
    let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: np, namespace: shop}, spec: {podSelector: {}}}";
    let other = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: np, namespace: other}, spec: {podSelector: {}}}";
    let cases = [
        (file("a.yaml", &[policy]), "", "the input has no pods;"),
        (file("b.yaml", &[pod, node, policy]), "--node n2", "the input has no pods on node n2;"),
        (file("c.yaml", &[pod]), "", "the input has no policies"),
        (file("d.yaml", &[pod, other]), "", "no policy selects a pod"),
        (file("e.yaml", &[pod, other]), "--node n1", "no policy selects a pod on node n1"),
        (file("f.yaml", &[own, policy]), "", "no pod has an address of its own"),
    ];
    for datapath in ["sim", "nftables", "iptables", "ebpf", "hcn", "opflex"] {
        for (path, options, why) in &cases {
            let output = weir(&format!("render -f {path} --datapath {datapath} {options}"));
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(0), "{datapath} {why}: {said}");
            let note = format!("note: there are no rules, because {why}");
            assert!(said.contains(&note), "{datapath} {why}: {said}");
        }
        let output = weir(&format!("render -f {} --datapath {datapath}", cases[1].0));
        assert_eq!(stderr(&output), "", "{datapath}: there are rules");
    }
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: other}}";
    let empty = file("g.yaml", &[pod, policy, namespace]);
    let output = weir(&format!("render -f {empty} -n other"));
    assert!(stderr(&output).contains("no pods in namespace other"), "{}", stderr(&output));
    let acls = weir(&format!("render -f {} --datapath hcn -o json", cases[0].0));
    assert_eq!(json(&acls)["endpoints"], serde_json::json!([]));
    assert!(stderr(&acls).contains("no pods"), "{}", stderr(&acls));
}

#[test]
fn the_rules_of_one_policy_can_be_printed() {
    let shop = "render -f examples/shop/manifests --datapath iptables";
    let text = stdout(&weir(&format!("{shop} --policy shop/db")));
    let is_named = |line: &&str| line.contains("shop/db");
    assert!(
        text.lines().any(|line| line.starts_with("add KUBE-DST-") && is_named(&line)),
        "{text}"
    );
    assert!(text.lines().any(|line| line.starts_with("-A KUBE-") && is_named(&line)), "{text}");
    for other in ["shop/metrics", "payments/checkout", "KUBE-ROUTER-FORWARD", "KUBE-DST-LOCAL"] {
        let whole = stdout(&weir(shop));
        assert!(whole.contains(other) && !text.contains(&format!(" {other} ")), "{other}\n{text}");
    }
    let all = stdout(&weir(shop));
    let missing =
        text.lines().find(|line| !line.is_empty() && !all.lines().any(|one| one == *line));
    assert_eq!(missing, None, "each line is also in the whole output");

    let unknown = weir(&format!("{shop} --policy shop/bd"));
    let message = stderr(&unknown);
    assert!(message.contains("there is no policy shop/bd"), "{message}");
    assert!(message.contains("did you mean shop/db?"), "{message}");
    let refused = weir("render -f examples/shop/manifests --datapath nftables --policy shop/db");
    let message = stderr(&refused);
    assert!(message.contains("`nftables` cannot print the rules of one policy"), "{message}");
    assert!(message.contains("--datapath iptables"), "{message}");
}

#[test]
fn a_policy_without_pods_on_the_node_is_said_to_have_none() {
    let manifests = "
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop}, spec: {nodeName: n1}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: shop}, spec: {podSelector: {}}}
";
    let render = |rest: &str| {
        let command = format!("render -f - --datapath iptables --policy shop/deny {rest}");
        stdout(&weir_reading(&command, manifests))
    };
    assert_eq!(render("--node n2"), "# NetworkPolicy shop/deny selects no pod on node n2\n");
    let text = render("--node n1");
    assert!(text.contains("\"shop/deny ingress: KUBE-NWPLCY-ISOLATED-INGRESS\""), "{text}");
    assert!(text.contains("add KUBE-DST-ISOLATED 10.0.0.1 comment"), "{text}");
}

#[test]
fn the_policies_that_memcacheds_become_are_printed_as_manifests() {
    let of_one = weir("render -f examples/memcached/manifests --generated");
    check(
        &of_one,
        expect![[r#"
        # Memcached default/my-cache
        ---
        apiVersion: networking.k8s.io/v1
        kind: NetworkPolicy
        metadata:
          name: my-cache
          namespace: default
        spec:
          podSelector: {matchLabels: {app.kubernetes.io/instance: my-cache, app.kubernetes.io/managed-by: memcached-operator, app.kubernetes.io/name: memcached}}
          policyTypes: [Ingress]
          ingress:
          - from:
            - namespaceSelector: {matchLabels: {env: production}}
              podSelector: {matchLabels: {app: my-webapp}}
            ports:
            - {protocol: TCP, port: 11211}
            - {protocol: TCP, port: 11212}
            - {protocol: TCP, port: 9150}
        --- exit 0
    "#]],
    );
    let policy = stdout(&of_one);
    let clusters =
        "--cluster east=examples/memcached/manifests --cluster west=examples/clusterset/west";
    let of_set = weir(&format!("render {clusters}"));
    let (head, rest) = policy.split_once('\n').unwrap();
    let expected = format!("# east: {}\n{rest}", head.trim_start_matches("# "));
    assert_eq!(stdout(&of_set), expected);
    // The manifest is the policy that counts: without the Memcached, the verdicts are the same.
    let without =
        std::fs::read_to_string(crate::root().join("examples/memcached/manifests/cache.yaml"));
    let without = without.unwrap();
    let (before, after) = without.split_once("apiVersion: memcached").unwrap();
    let (_, after) = after.split_once("---\n").unwrap();
    let manifests = format!("{before}{after}{rest}");
    let output = weir_reading("diff examples/memcached/manifests -", &manifests);
    assert_eq!(output.status.code(), Some(0), "{}", crate::text_of(&output));
    let none = weir("render -f examples/shop/manifests --generated");
    assert_eq!(stdout(&none), "# there are no Memcacheds with a policy\n");
}
