use expect_test::expect;

use crate::{check, weir, weir_reading};

const ASK: &str = "controller --enable clusterset";

#[test]
fn a_policy_that_the_api_server_would_reject_fails_the_tests_of_its_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let tests = folder.path().join("tests.yaml");
    std::fs::write(
        &tests,
        "name: closed\nprobes:\n- {from: {ip: 203.0.113.7}, to: {pod: \"east:shop/db\"}, port: 1, expect: deny}\n",
    )
    .unwrap();
    let east = "
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop}, status: {podIP: 10.1.0.2}}
---
apiVersion: submariner.io/v1alpha1
kind: ClusterSetNetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {}, ingres: []}
";
    let message = weir_reading(&format!("test --cluster east=- {}", tests.display()), east);
    check(
        &message,
        expect![[r#"
            FAIL closed
                   -:7: error: there is no field "ingres" here; expected podSelector, policyTypes, ingress, egress [unknown-field]
                     ClusterSetNetworkPolicy shop/db spec.ingres
                     hint: did you mean `ingress`?
            0 passed, 1 failed
            --- exit 1
        "#]],
    );
}

#[test]
fn opflex_gets_files_only_for_the_translated_policy() {
    let output = weir("render -f examples/clusterset/east --datapath opflex");
    let text = String::from_utf8_lossy(&output.stdout);
    let first = text.lines().next().unwrap();
    let finding = "# ClusterSetNetworkPolicy shop/db: only the NetworkPolicies that the clusterset";
    assert!(first.starts_with(finding), "{first}");
}

#[test]
fn an_invalid_member_cidr_is_rejected() {
    let ask = format!("{ASK} --cluster-id east --pod-cidr 10.1.0.0/16 --broker-kubeconfig k");
    for wrong in ["west", "West=10.2.0.0/16", "west=10.2.0.0/33"] {
        let message = weir(&format!("{ask} --member-cidr {wrong}"));
        assert_eq!(message.status.code(), Some(2), "{wrong}");
        let text = String::from_utf8_lossy(&message.stderr);
        assert!(text.contains("--member-cidr"), "{text}");
    }
}

#[test]
fn the_controller_rejects_invalid_options_at_startup() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let access = weir_cluster::Access {
        url: "https://127.0.0.1:1".into(),
        ca: String::new(),
        token: "x".into(),
    };
    let kubeconfig = access.write_kubeconfig(folder.path()).unwrap().display().to_string();
    std::fs::write(at("token"), "x\n").unwrap();
    std::fs::write(at("empty"), "\n").unwrap();
    let ask = format!("{ASK} --kubeconfig {kubeconfig} --http off --cluster-id east");
    let (token, empty) = (at("token"), at("empty"));
    let direct = "--pod-cidr 10.1.0.0/16 --broker-url https://127.0.0.1:1 --broker-token-file";
    for (options, message) in [
        (
            "--pod-cidr 0.0.0.0/1 --pod-cidr 128.0.0.0/1".to_owned(),
            "error: --pod-cidr: its networks have more IPv4 addresses than a /8\n",
        ),
        ("--publish-namespaces team=a=b".to_owned(), "\"a=b\" is not a label value"),
        ("--pod-cidr 10.1.0.0/33".to_owned(), "expected a network such as 10.1.0.0/16"),
        (
            format!("{direct} {token} --member-cidr east=10.2.0.0/16"),
            "error: --member-cidr names this cluster, east\n",
        ),
        (format!("{direct} {token} --cluster-renewal {}", u64::MAX), "is not in 1..=31536000"),
        (format!("{direct} {empty}"), "empty does not contain a token\n"),
        (format!("{direct} nowhere"), "error: cannot find nowhere\n"),
        (
            format!("{direct} {token} --broker-ca-file {token}"),
            "token does not contain certificates in PEM\n",
        ),
        (
            "--pod-cidr 10.1.0.0/16 --broker-kubeconfig nowhere".to_owned(),
            "error: cannot use the broker: cannot use the kubeconfig nowhere: ",
        ),
        (
            format!(
                "--pod-cidr 10.1.0.0/16 --broker-kubeconfig {kubeconfig} --broker-context other"
            ),
            "it has no context other, only test\nhint: check --broker-kubeconfig and --broker-context\n",
        ),
    ] {
        let output = weir(&format!("{ask} {options}"));
        assert_eq!(output.status.code(), Some(2), "{options}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(message), "{options}: {text}");
    }
}

#[test]
fn lint_does_not_warn_about_generated_policies() {
    let shard = "
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {containers: [{name: c, image: i}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: csnp-00000000-0000-0000-0000-000000000001-i4-00000000-0
  namespace: shop
  ownerReferences:
  - {apiVersion: submariner.io/v1alpha1, kind: ClusterSetNetworkPolicy, name: db, uid: 00000000-0000-0000-0000-000000000001, controller: true}
spec:
  podSelector: {matchLabels: {app: gone}}
  policyTypes: [Ingress]
  ingress: [{from: [{ipBlock: {cidr: 10.2.0.1/32}}, {ipBlock: {cidr: 10.2.0.1/32}}]}]
";
    let message = weir_reading("lint -f -", shard);
    assert_eq!(String::from_utf8_lossy(&message.stdout), "nothing found\n");
    // The same policy, written by hand, gets a warning.
    let by_hand = shard
        .lines()
        .filter(|line| !line.contains("ownerRef") && !line.contains("controller: true"));
    let message = weir_reading("lint -f -", &by_hand.collect::<Vec<_>>().join("\n"));
    assert!(String::from_utf8_lossy(&message.stdout).contains("warning"));
}

#[test]
fn render_shows_the_network_policies_of_a_policy() {
    let clusters =
        "--cluster east=examples/clusterset/east --cluster west=examples/clusterset/west";
    check(
        &weir(&format!("render {clusters}")),
        expect![[r#"
        # east: ClusterSetNetworkPolicy shop/db
        ---
        apiVersion: networking.k8s.io/v1
        kind: NetworkPolicy
        metadata:
          name: csnp-db
          namespace: shop
        spec:
          podSelector: {matchLabels: {app: db}}
          policyTypes: [Ingress]
          ingress:
          - from:
            - podSelector: {matchLabels: {app: api}}
            ports:
            - {protocol: TCP, port: sql}
        ---
        apiVersion: networking.k8s.io/v1
        kind: NetworkPolicy
        metadata:
          name: csnp-db-i4-00000000-0
          namespace: shop
        spec:
          podSelector: {matchLabels: {app: db}}
          policyTypes: [Ingress]
          ingress:
          - from:
            - ipBlock:
                cidr: 10.2.0.3/32
            ports:
            - {protocol: TCP, port: sql}
        --- exit 0
    "#]],
    );
    let output = weir(&format!("render {clusters} -n shop -o json"));
    let all = &crate::json(&output)["policies"];
    let names = all[0]["networkPolicies"].as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|one| one["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!((all[0]["cluster"].as_str(), names.len()), (Some("east"), 2), "{names:?}");
    let output = weir(&format!("render {clusters} --datapath nftables"));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_cluster_by_context_needs_the_context() {
    let folder = tempfile::tempdir().unwrap();
    let access = weir_cluster::Access {
        url: "https://127.0.0.1:1".into(),
        ca: String::new(),
        token: "x".into(),
    };
    let kubeconfig = access.write_kubeconfig(folder.path()).unwrap().display().to_string();
    for (arguments, message) in [
        (format!("--kubeconfig {kubeconfig} --cluster east=context:nowhere"), "nowhere"),
        ("--cluster east=context:".to_owned(), "expected a context"),
        (
            format!("--kubeconfig {kubeconfig} --cluster east=examples/clusterset/east"),
            "an unused --kubeconfig",
        ),
        (
            "--cluster east=context:a --cluster east=context:b".to_owned(),
            "cluster east has two contexts",
        ),
    ] {
        let output = weir(&format!("matrix {arguments}"));
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        let text = crate::stderr(&output);
        assert!(text.contains(message), "{arguments}: {text}");
    }
}
