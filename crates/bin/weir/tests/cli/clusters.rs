use expect_test::expect;

use crate::{check, weir, weir_reading};

const BOTH: &str =
    "--cluster east=examples/clusterset/east --cluster west=examples/clusterset/west";
const ASK: &str = "controller --enable clusterset";

#[test]
fn a_remote_pod_is_allowed_by_the_line_that_selects_it() {
    check(
        &weir(&format!("explain {BOTH} --from west:shop/api --to east:shop/db --port 5432")),
        expect![[r#"
            allowed: west:shop/api → east:shop/db 5432/TCP

            egress of west:shop/api (10.2.0.3): allowed
              no policy isolates it for egress

            ingress of east:shop/db (10.1.0.2): allowed
              allowed by ClusterSetNetworkPolicy east:shop/db ingress[0].from[0] examples/clusterset/east/shop.yaml:28
                allow from pods [kubernetes.io/metadata.name=shop]/app=api, 5432/TCP
              isolated by:
                ClusterSetNetworkPolicy east:shop/db  examples/clusterset/east/shop.yaml:21
            --- exit 0
        "#]],
    );
}

#[test]
fn a_denied_remote_pod_gets_a_policy_that_would_allow_it() {
    check(
        &weir(&format!("explain {BOTH} --from west:shop/report --to east:shop/db --port 5432")),
        expect![[r#"
            denied: west:shop/report → east:shop/db 5432/TCP
            apply ClusterSetNetworkPolicy shop/allow-db-ingress-5432-tcp in cluster east

            egress of west:shop/report (10.2.0.4): allowed
              no policy isolates it for egress

            ingress of east:shop/db (10.1.0.2): denied
              isolated by:
                ClusterSetNetworkPolicy east:shop/db  examples/clusterset/east/shop.yaml:21
              no rule matches; nearest:
                ClusterSetNetworkPolicy east:shop/db ingress[0].from[0] examples/clusterset/east/shop.yaml:28: the peer does not match
                  allow from pods [kubernetes.io/metadata.name=shop]/app=api, 5432/TCP

            the smallest policy that would allow it:
            apiVersion: submariner.io/v1alpha1
            kind: ClusterSetNetworkPolicy
            metadata:
              name: allow-db-ingress-5432-tcp
              namespace: shop
            spec:
              podSelector: {matchLabels: {app: db}}
              policyTypes: [Ingress]
              ingress:
              - from:
                - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
                  podSelector: {matchLabels: {app: report}}
                ports:
                - {protocol: TCP, port: 5432}
            --- exit 1
        "#]],
    );
}

#[test]
fn a_network_policy_does_not_select_pods_of_other_clusters() {
    check(
        &weir(&format!("explain {BOTH} --from west:shop/api --to east:shop/api --port 8080")),
        expect![[r#"
            denied: west:shop/api → east:shop/api 8080/TCP
            apply ClusterSetNetworkPolicy shop/allow-api-ingress-8080-tcp in cluster east

            egress of west:shop/api (10.2.0.3): allowed
              no policy isolates it for egress

            ingress of east:shop/api (10.1.0.3): denied
              isolated by:
                NetworkPolicy east:shop/api  examples/clusterset/east/shop.yaml:33
              no rule matches; nearest:
                NetworkPolicy east:shop/api ingress[0].from[0] examples/clusterset/east/shop.yaml:40: the peer does not match
                  allow from pods [submariner-io/clusterID=east]/*, any port

            the smallest policy that would allow it:
            apiVersion: submariner.io/v1alpha1
            kind: ClusterSetNetworkPolicy
            metadata:
              name: allow-api-ingress-8080-tcp
              namespace: shop
            spec:
              podSelector: {matchLabels: {app: api}}
              policyTypes: [Ingress]
              ingress:
              - from:
                - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
                  podSelector: {matchLabels: {app: api}}
                ports:
                - {protocol: TCP, port: 8080}
            --- exit 1
        "#]],
    );
}

#[test]
fn the_matrix_has_the_pods_of_all_clusters() {
    check(
        &weir(&format!("matrix {BOTH} --port 5432")),
        expect![[r#"
        from ↓  to →      east:shop/api  east:shop/db  west:shop/api  west:shop/report  outside
        east:shop/api     ·              ✓             ✓              ✓                 ✓
        east:shop/db      ✓              ·             ✓              ✓                 ✓
        west:shop/api     ✗              ✓             ·              ✓                 ✓
        west:shop/report  ✗              ✗             ✓              ·                 ✓
        outside           ✗              ✗             ✓              ✓                 ·

        ✓ all, ~ some, ✗ none of: 5432/TCP
        --- exit 0
    "#]],
    );
}

#[test]
fn tests_can_probe_several_clusters() {
    check(
        &weir(&format!("test {BOTH} examples/clusterset/tests.yaml")),
        expect![[r#"
        ok   the api reaches the database from every cluster, and no other pod does (5 probes)
        5 passed, 0 failed
        --- exit 0
    "#]],
    );
    // The clusters translate such a policy to NetworkPolicies, which have files.
    check(
        &weir(&format!("test --datapath opflex {BOTH} examples/clusterset/tests.yaml")),
        expect![[r#"
        ok   the api reaches the database from every cluster, and no other pod does (5 probes)
        5 passed, 0 failed
        --- exit 0
    "#]],
    );
    check(
        &weir(&format!("test {BOTH} examples/shop/tests.yaml")),
        expect![[r#"
            --- stderr
            error: examples/shop/tests.yaml:1: with --cluster, a test may contain only probes
            hint: move its objects and manifests to the folder of a cluster
            --- exit 2
        "#]],
    );
    check(
        &weir_reading(
            &format!("test {BOTH} -"),
            "name: typo\nprobes:\n- {from: {pod: \"north:shop/api\"}, to: {pod: \"east:shop/db\"}, port: 1, expect: deny}\n",
        ),
        expect![[r#"
            FAIL typo
                   -:3: error: there is no pod north:shop/api in this case [invalid]
                     case typo probes[0].from.pod
                     hint: `north` is a cluster of a set: say where its manifests are, `weir test --cluster north=PATH …`, or correct the name
                 north:shop/api → east:shop/db 1/TCP: cannot be tried  -:3
                   there is no pod north:shop/api
            0 passed, 1 failed
            --- exit 1
        "#]],
    );
}

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
fn clusters_cannot_be_combined_with_other_sources() {
    check(
        &weir("matrix --cluster east"),
        expect![[r#"
        --- stderr
        error: invalid value 'east' for '--cluster <NAME=PATH>': expected NAME=PATH, as in `east=clusters/east`

        For more information, try '--help'.
        --- exit 2
    "#]],
    );
    check(
        &weir("matrix --cluster East=examples/clusterset/east"),
        expect![[r#"
            --- stderr
            error: invalid value 'East=examples/clusterset/east' for '--cluster <NAME=PATH>': "East" is not a valid cluster name: use a-z, 0-9 and `-`

            For more information, try '--help'.
            --- exit 2
        "#]],
    );
    check(
        &weir(&format!("matrix {BOTH} -f examples/shop/manifests")),
        expect![[r#"
            --- stderr
            error: --cluster cannot be combined with -f, --kubeconfig or --context
            hint: give the manifests of each cluster with --cluster NAME=PATH
            --- exit 2
        "#]],
    );
}

#[test]
fn the_controller_names_its_missing_options() {
    check(
        &weir(ASK),
        expect![[r#"
            --- stderr
            error: controller clusterset needs the id of this cluster
            hint: set it with `--cluster-id ID`
            --- exit 2
        "#]],
    );
    check(
        &weir(&format!("{ASK} --cluster-id East")),
        expect![[r#"
            --- stderr
            error: "East" is not a valid cluster id
            hint: use up to 63 characters of a-z, 0-9 and `-`, and no `-` at either end
            --- exit 2
        "#]],
    );
    check(
        &weir(&format!("{ASK} --cluster-id east")),
        expect![[r#"
            --- stderr
            error: controller clusterset needs the networks of this cluster's pods
            hint: set them with `--pod-cidr CIDR`: other clusters reject addresses outside of them
            --- exit 2
        "#]],
    );
    check(
        &weir(&format!("{ASK} --cluster-id east --pod-cidr 10.1.0.0/16")),
        expect![[r#"
            --- stderr
            error: controller clusterset needs the broker
            hint: set it with `--broker-kubeconfig PATH`, or `--broker-url URL --broker-token-file PATH --broker-ca-file PATH`
            --- exit 2
        "#]],
    );
    check(
        &weir(&format!(
            "{ASK} --cluster-id east --pod-cidr 10.1.0.0/16 --broker-url http://broker.example --broker-token-file token"
        )),
        expect![[r#"
            --- stderr
            error: http://broker.example is not an HTTPS URL
            hint: give a URL that starts with `https://`: without TLS the token would be readable on the network
            --- exit 2
        "#]],
    );
    check(
        &weir(&format!(
            "{ASK} --cluster-id east --pod-cidr 10.1.0.0/16 --broker-url https://broker.example --broker-token-file token --cluster-expiry 10"
        )),
        expect![[r#"
            --- stderr
            error: --cluster-expiry must be at least 3 × --cluster-renewal
            hint: raise --cluster-expiry, or lower --cluster-renewal
            --- exit 2
        "#]],
    );
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
        ("--pod-cidr 0.0.0.0/0".to_owned(), "0.0.0.0/0 contains every address"),
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
            "other\nhint: check --broker-kubeconfig and --broker-context\n",
        ),
    ] {
        let output = weir(&format!("{ask} {options}"));
        assert_eq!(output.status.code(), Some(2), "{options}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(message), "{options}: {text}");
    }
}

#[test]
fn an_unknown_pod_of_a_cluster_is_not_parsed_as_an_address() {
    check(
        &weir(&format!("explain {BOTH} --from west:shop/nope --to east:shop/db --port 5432")),
        expect![[r#"
            --- stderr
            error: there is no pod west:shop/nope
            hint: did you mean west:shop/api?
            --- exit 2
        "#]],
    );
    check(
        &weir(&format!("explain {BOTH} --from north:shop/api --to east:shop/db --port 5432")),
        expect![[r#"
            --- stderr
            error: there is no cluster north
            hint: the clusters are east, west; add one with `--cluster north=PATH`
            --- exit 2
        "#]],
    );
    check(
        &weir(&format!("explain {BOTH} --from west:api --to east:shop/db --port 5432")),
        expect![[r#"
            --- stderr
            error: west:api has no namespace
            hint: with several clusters, use `cluster:namespace/pod`, such as `west:NAMESPACE/api`
            --- exit 2
        "#]],
    );
    check(
        &weir("explain -f examples/clusterset/east --from west:shop/api --to shop/db --port 5432"),
        expect![[r#"
            --- stderr
            error: there is no cluster west
            hint: load the cluster with `--cluster west=PATH`
            --- exit 2
        "#]],
    );
    check(
        &weir(&format!("explain {BOTH} --from fd00::zz:1 --to east:shop/db --port 5432")),
        expect![[r#"
            --- stderr
            error: fd00::zz:1 is not an address
            hint: an IPv4 address has four numbers from 0 to 255; an IPv6 address has hexadecimal numbers and `:`
            --- exit 2
        "#]],
    );
    check(
        &weir(&format!("explain {BOTH} --from fd00::12345 --to east:shop/db --port 5432")),
        expect![[r#"
            --- stderr
            error: fd00::12345 is not an address
            hint: an IPv4 address has four numbers from 0 to 255; an IPv6 address has hexadecimal numbers and `:`
            --- exit 2
        "#]],
    );
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
