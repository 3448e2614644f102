use std::{
    io::Read,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use expect_test::expect;
use weir_cluster::Cluster;

use crate::{check, command, stdout, weir};

#[test]
fn an_unknown_controller_is_rejected_with_the_known_ones() {
    for names in ["memcache", "memcached,other", ""] {
        let output = weir(&format!("controller --enable={names}"));
        assert_eq!(output.status.code(), Some(2), "{names}");
        let error = crate::stderr(&output);
        assert!(error.contains("for '--enable <NAMES>'"), "{error}");
        assert!(
            error.contains("[possible values: clusterset, conditions, hpp, memcached]"),
            "{error}"
        );
    }
    assert_eq!(weir("controller").status.code(), Some(2));
}

#[test]
fn an_invalid_namespace_is_rejected() {
    for name in ["Foo Bar", "Foo", "-a", ""] {
        let mut command = command();
        let output = command.args(["controller", "--enable", "memcached"]);
        let output = output.arg(format!("--namespace={name}")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}");
        let error = crate::stderr(&output);
        assert!(error.contains("expected a namespace"), "{error}");
    }
}

#[test]
fn definitions_are_printed_for_all_controllers_or_for_one() {
    let only = stdout(&weir("crds --only memcached"));
    assert!(
        only.starts_with("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n")
    );
    assert!(only.contains("\n  name: memcacheds.memcached.c5c3.io\n"));
    assert!(!only.contains("\n---\n"));
    assert!(stdout(&weir("crds")).contains(&only));
    let none = weir("crds --only conditions");
    assert_eq!((none.status.code(), stdout(&none)), (Some(0), String::new()));
    assert!(crate::stderr(&none).contains("the controller conditions needs no definitions"));
    let other = weir("crds --only other");
    let error = crate::stderr(&other);
    assert!(error.contains("[possible values: clusterset, conditions, hpp, memcached]"), "{error}");
    assert_eq!(other.status.code(), Some(2));
}

#[test]
fn without_a_cluster_the_controller_logs_a_hint_and_retries() {
    let mut child = command()
        .args(["controller", "--enable", "memcached", "--http", "off", "--log-format", "json"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    let mut byte = [0];
    let stderr = child.stderr.as_mut().unwrap();
    while !text.ends_with('\n') && stderr.read(&mut byte).unwrap() == 1 {
        text.push(byte[0].into());
    }
    assert!(
        text.contains(
            "cannot acquire the lease kube-system/weir-controller: there is no kubeconfig; "
        ),
        "{text}"
    );
    assert!(child.try_wait().unwrap().is_none());
    end(&mut child);
}

/// Ends a process by SIGTERM and returns its exit status.
fn end(child: &mut std::process::Child) -> Option<i32> {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    child.wait().unwrap().code()
}

#[test]
fn a_controller_runs_until_sigterm_and_releases_its_lease() {
    let cluster = Cluster::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = cluster.admin().write_kubeconfig(folder.path()).unwrap();
    let mut child = command()
        .args(["controller", "--enable", "memcached", "--http", "off", "--namespace", "default"])
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/weir-controller";
    let holder = || {
        let lease = cluster.get(lease).ok()?;
        lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
    };
    let start = Instant::now();
    while holder().is_none_or(|holder| holder.is_empty()) {
        assert!(start.elapsed() < Duration::from_secs(60), "no controller took the lease");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(end(&mut child), Some(0));
    assert_eq!(holder().as_deref(), Some(""));
}

#[test]
fn explain_names_the_owner_of_a_generated_policy() {
    let input = "\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: cache-0, namespace: shop, labels: {app.kubernetes.io/instance: cache}}
status: {podIP: 10.0.0.2}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: cache
  namespace: shop
  ownerReferences:
  - {apiVersion: memcached.c5c3.io/v1alpha1, kind: Memcached, name: cache, uid: u, controller: true, blockOwnerDeletion: true}
spec:
  podSelector: {matchLabels: {app.kubernetes.io/instance: cache}}
  policyTypes: [Ingress]
  ingress: [{ports: [{protocol: TCP, port: 11211}]}]
";
    let question = "explain -f - --from shop/web --to shop/cache-0 --port 22";
    check(
        &crate::weir_reading(question, input),
        expect![[r#"
            denied: shop/web → shop/cache-0 22/TCP

            egress of shop/web (10.0.0.1): allowed
              no policy isolates it for egress

            ingress of shop/cache-0 (10.0.0.2): denied
              isolated by:
                NetworkPolicy shop/cache  -:11, created for Memcached shop/cache
              no rule matches; nearest:
                NetworkPolicy shop/cache ingress[0] -:21: the port does not match
                  allow from anyone, 11211/TCP

            the smallest policy that would allow it:
            apiVersion: networking.k8s.io/v1
            kind: NetworkPolicy
            metadata:
              name: allow-cache-0-ingress-22-tcp
              namespace: shop
            spec:
              podSelector: {matchLabels: {app.kubernetes.io/instance: cache}}
              policyTypes: [Ingress]
              ingress:
              - from:
                - podSelector: {matchLabels: {app: web}}
                ports:
                - {protocol: TCP, port: 22}
            --- exit 1
        "#]],
    );
    let json = crate::json(&crate::weir_reading(&format!("{question} -o json"), input));
    let policy = &json["ingress"]["isolatedBy"][0];
    assert_eq!(policy["madeFor"], "Memcached shop/cache");
}
