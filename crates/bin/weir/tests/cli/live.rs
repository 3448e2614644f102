//! Commands that read a cluster. `cargo xtask cluster build` provides the API server.

use std::path::Path;

use expect_test::expect;
use serde_json::json;
use weir_cluster::{Cluster, Right};

use crate::{check, command, stderr, stdout};

/// Runs weir with a kubeconfig.
fn weir(arguments: &str, kubeconfig: &Path) -> std::process::Output {
    command()
        .args(arguments.split_whitespace())
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .output()
        .unwrap()
}

/// Creates a shop in which only the web server may reach the database.
fn shop(cluster: &Cluster) {
    let namespace = json!({"metadata": {"name": "shop", "labels": {"team": "shop"}}});
    cluster.create("/api/v1/namespaces", &namespace).unwrap();
    let pods = "/api/v1/namespaces/shop/pods";
    for (name, address) in [("web", "10.0.0.1"), ("db", "10.0.0.2"), ("cart", "10.0.0.3")] {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
        });
        cluster.create(pods, &pod).unwrap();
        let status =
            json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
        cluster.patch(&format!("{pods}/{name}/status"), &status).unwrap();
    }
    let policy = json!({
        "metadata": {"name": "db"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{
                "from": [{"podSelector": {"matchLabels": {"app": "web"}}}],
                "ports": [{"port": 5432}],
            }],
        },
    });
    cluster.create("/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies", &policy).unwrap();
}

#[test]
fn every_command_that_reads_manifests_reads_a_cluster() {
    let cluster = Cluster::start().unwrap();
    shop(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = cluster.admin().write_kubeconfig(folder.path()).unwrap();

    check(
        &weir("explain --from shop/cart --to shop/db --port 5432", &kubeconfig),
        expect![[r#"
            denied: shop/cart → shop/db 5432/TCP

            egress of shop/cart (10.0.0.3): allowed
              no policy isolates it for egress

            ingress of shop/db (10.0.0.2): denied
              isolated by:
                NetworkPolicy shop/db
              no rule matches; nearest:
                NetworkPolicy shop/db ingress[0].from[0]: the peer does not match
                  allow from pods shop/app=web, 5432/TCP

            the smallest policy that would allow it:
            apiVersion: networking.k8s.io/v1
            kind: NetworkPolicy
            metadata:
              name: allow-db-ingress-5432-tcp
              namespace: shop
            spec:
              podSelector: {matchLabels: {app: db}}
              policyTypes: [Ingress]
              ingress:
              - from:
                - podSelector: {matchLabels: {app: cart}}
                ports:
                - {protocol: TCP, port: 5432}
            --- exit 1
        "#]],
    );
    let allowed =
        weir("explain -n shop --from web --to db --port 5432 --context test", &kubeconfig);
    assert_eq!(allowed.status.code(), Some(0), "{}", stderr(&allowed));
    check(
        &weir("matrix -n shop --port 5432", &kubeconfig),
        expect![[r#"
            from ↓  to →  shop/cart  shop/db  shop/web  outside
            shop/cart     ·          ✗        ✓         ✓
            shop/db       ✓          ·        ✓         ✓
            shop/web      ✓          ✓        ·         ✓
            outside       ✓          ✗        ✓         ·

            ✓ all, ~ some of: 5432/TCP
            ✗ closed, on every port
            --- exit 0
        "#]],
    );
    check(
        &weir("lint", &kubeconfig),
        expect![[r#"
        nothing found
        --- exit 0
    "#]],
    );
    let rendered = weir("render --datapath nftables --node n1", &kubeconfig);
    assert!(stdout(&rendered).contains("10.0.0.2"), "{}{}", stdout(&rendered), stderr(&rendered));

    let new = folder.path().join("new.yaml");
    std::fs::write(
        &new,
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, \
         spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}], ports: [{port: 5432}]}]}}",
    )
    .unwrap();
    check(
        &weir(&format!("diff {}", new.display()), &kubeconfig),
        expect![[r#"
        opened
          +  shop/cart  →  shop/db  5432/TCP
        --- exit 1
    "#]],
    );
    check(
        &weir("explain -n nowhere --from a --to b --port 1", &kubeconfig),
        expect![[r#"
        --- stderr
        error: there is no namespace nowhere
        hint: did you mean shop?
        --- exit 2
    "#]],
    );

    let right = Right { group: "", resources: &["namespaces"], verbs: &["list"] };
    let user = cluster.user("guest", &[right]).unwrap();
    let guests = tempfile::tempdir().unwrap();
    let kubeconfig = user.write_kubeconfig(guests.path()).unwrap();
    check(
        &weir("lint", &kubeconfig),
        expect![[r#"
        --- stderr
        error: not allowed to list networkpolicies.networking.k8s.io
        hint: grant it with a ClusterRole: apiGroups ["networking.k8s.io"], resources ["networkpolicies"], verbs ["list"]
        --- exit 2
    "#]],
    );
}

#[test]
fn services_of_a_cluster_are_read_if_an_end_needs_them() {
    let cluster = Cluster::start().unwrap();
    shop(&cluster);
    let service = json!({
        "metadata": {"name": "db"},
        "spec": {"selector": {"app": "db"}, "ports": [{"port": 80, "targetPort": 5432}]},
    });
    let service = cluster.create("/api/v1/namespaces/shop/services", &service).unwrap();
    let address = service["spec"]["clusterIP"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = cluster.admin().write_kubeconfig(folder.path()).unwrap();
    for to in ["shop/svc/db", address] {
        let allowed = weir(&format!("explain --from shop/web --to {to} --port 80"), &kubeconfig);
        assert_eq!(allowed.status.code(), Some(0), "{}", stderr(&allowed));
        assert!(stdout(&allowed).contains("shop/db  5432/TCP"), "{}", stdout(&allowed));
    }
    let backend = json!({"service": {"name": "db", "port": {"number": 80}}});
    let ingress = json!({"metadata": {"name": "db"}, "spec": {"defaultBackend": backend}});
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/shop/ingresses";
    cluster.create(ingresses, &ingress).unwrap();
    let route = "explain --from 203.0.113.7 --to shop/ingress/db";
    let served = weir(&format!("{route} --ingress-controller shop/web"), &kubeconfig);
    assert_eq!(served.status.code(), Some(0), "{}", stderr(&served));
    let matrix = stdout(&weir("matrix -n shop --ingress-controller shop/web", &kubeconfig));
    assert!(matrix.contains("ingress: the ports that routes lead to, from shop/web"), "{matrix}");
    let list = &["list"];
    let rights = [
        Right { group: "", resources: &["pods", "namespaces", "nodes"], verbs: list },
        Right { group: "networking.k8s.io", resources: &["networkpolicies"], verbs: list },
    ];
    let user = cluster.user("guest", &rights).unwrap();
    let kubeconfig = user.write_kubeconfig(folder.path()).unwrap();
    let unknown = weir(route, &kubeconfig);
    assert_eq!(unknown.status.code(), Some(2));
    let unread_routes = "not allowed to list ingresses.networking.k8s.io";
    assert!(stderr(&unknown).contains(unread_routes), "{}", stderr(&unknown));
    assert_eq!(weir("matrix -n shop", &kubeconfig).status.code(), Some(0));
    let pods = weir("explain --from shop/web --to shop/db --port 5432", &kubeconfig);
    assert_eq!((pods.status.code(), stderr(&pods)), (Some(0), String::new()));
    let unread = "not allowed to list services: Services and their addresses are unknown";
    let noted = weir(&format!("explain --from shop/web --to {address} --port 80"), &kubeconfig);
    assert!(stdout(&noted).contains(unread), "{}", stdout(&noted));
    let failed = weir("explain --from shop/web --to shop/svc/db --port 80", &kubeconfig);
    assert_eq!(failed.status.code(), Some(2));
    assert!(stderr(&failed).contains(unread), "{}", stderr(&failed));
}

/// A minimal definition of Memcached, in one version.
fn memcacheds(version: &str) -> serde_json::Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "metadata": {"name": "memcacheds.memcached.c5c3.io"},
        "spec": {
            "group": "memcached.c5c3.io", "scope": "Namespaced",
            "names": {"kind": "Memcached", "plural": "memcacheds", "singular": "memcached", "listKind": "MemcachedList"},
            "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// The output about a shop with a Memcached in this version: lint, explain, and lint without the
/// right to read it.
fn output_with_memcacheds(cluster: &Cluster, version: &str) -> [String; 3] {
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = cluster.create(definitions, &memcacheds(version)).unwrap();
    let path = format!("/apis/memcached.c5c3.io/{version}/namespaces/shop/memcacheds");
    eventually("it is served", || cluster.get(&path).is_ok());
    let memcached = json!({
        "apiVersion": format!("memcached.c5c3.io/{version}"), "kind": "Memcached", "metadata": {"name": "cache"},
        "spec": {"security": {"networkPolicy": {"enabled": true, "allowedSources": []}}},
    });
    let memcached = cluster.create(&path, &memcached).unwrap();
    let policy = json!({
        "metadata": {"name": "cache", "ownerReferences": [{
            "apiVersion": format!("memcached.c5c3.io/{version}"), "kind": "Memcached", "name": "cache",
            "uid": memcached["metadata"]["uid"], "controller": true,
        }]},
        "spec": {"podSelector": {"matchLabels": {"app": "cash"}}, "ingress": [{"ports": [{"port": 11211}]}]},
    });
    let policies = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
    cluster.create(policies, &policy).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = cluster.admin().write_kubeconfig(folder.path()).unwrap();
    let lint = stdout(&weir("lint", &kubeconfig));
    let selected = json!({"spec": {"podSelector": {"matchLabels": {"app": "web"}}}});
    cluster.patch(&format!("{policies}/cache"), &selected).unwrap();
    let connection = stdout(&weir("explain --from shop/cart --to shop/web --port 80", &kubeconfig));
    let list = &["list"];
    let rights = [
        Right { group: "", resources: &["pods", "namespaces", "nodes"], verbs: list },
        Right { group: "networking.k8s.io", resources: &["networkpolicies"], verbs: list },
    ];
    let user = cluster.user("guest", &rights).unwrap();
    let kubeconfig = user.write_kubeconfig(folder.path()).unwrap();
    let restricted = stdout(&weir("lint", &kubeconfig));
    cluster.delete(&format!("{policies}/cache")).unwrap();
    let name = definition["metadata"]["name"].as_str().unwrap();
    cluster.delete(&format!("{definitions}/{name}")).unwrap();
    eventually("it is gone", || cluster.get(&format!("{definitions}/{name}")).is_err());
    [lint, connection, restricted]
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed().as_secs() < 60, "{what}: not within a minute");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn memcacheds_of_a_cluster_are_read_in_either_version() {
    let cluster = Cluster::start().unwrap();
    shop(&cluster);
    let [lint, connection, restricted] = output_with_memcacheds(&cluster, "v1alpha1");
    expect![[r#"
        warning: an empty list of allowedSources allows everyone, not no one [memcached-everyone]
          Memcached shop/cache spec.security.networkPolicy.allowedSources
          hint: list the allowed sources, or remove the list to allow everyone
        1 warning
    "#]]
    .assert_eq(&lint);
    assert!(connection.contains("created for Memcached shop/cache"), "{connection}");
    expect![[r#"
        info: not allowed to list memcacheds.memcached.c5c3.io: Memcacheds are not checked, their NetworkPolicies are [memcacheds-unread]
          hint: grant it with a ClusterRole: apiGroups ["memcached.c5c3.io"], resources ["memcacheds"], verbs ["list"]
        1 note
    "#]].assert_eq(&restricted);
    assert_eq!(output_with_memcacheds(&cluster, "v1beta1"), [lint, connection, restricted]);
}

#[test]
fn an_unusable_kubeconfig_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let unreachable = weir_cluster::Access {
        url: "https://127.0.0.1:1".into(),
        ca: String::new(),
        token: "x".into(),
    };
    let kubeconfig = unreachable.write_kubeconfig(folder.path()).unwrap();
    let other = stderr(&weir("lint --context other", &kubeconfig));
    assert!(other.contains(": it has no context other, only test\nhint: "), "{other}");
    // Without a CA certificate, so that nothing fails before the connection.
    let user = |user: serde_json::Value| {
        let server = serde_json::json!({"server": "http://127.0.0.1:1"});
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": "test", "user": user}],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        stderr(&weir("lint", &kubeconfig))
    };
    let refused = user(serde_json::json!({}));
    let server = "error: cannot reach the API server: http://127.0.0.1:1/ (context test): ";
    assert!(refused.starts_with(server) && refused.contains("refused"), "{refused}");
    let plugin = user(serde_json::json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "no-such-plugin",
        "interactiveMode": "Never",
    }}));
    let program = "error: cannot get credentials for the API server: no-such-plugin: No such file";
    assert!(plugin.starts_with(program), "{plugin}");
    std::fs::write(&kubeconfig, "not: [a kubeconfig").unwrap();
    let broken = weir("lint", &kubeconfig);
    assert_eq!(broken.status.code(), Some(2));
    assert_eq!(stderr(&broken).lines().count(), 2, "an error and a hint: {}", stderr(&broken));
}
