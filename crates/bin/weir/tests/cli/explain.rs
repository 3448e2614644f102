use expect_test::expect;

use crate::{check, json, stderr, weir, weir_reading};

#[test]
fn a_denied_connection_is_explained_with_a_remedy() {
    check(
        &weir("explain -f examples/shop/manifests --from shop/api --to shop/db --port sql"),
        expect![[r#"
            denied: shop/api → shop/db 5432/TCP

            egress of shop/api (10.192.4.42, synthetic): allowed
              allowed by NetworkPolicy shop/api egress[0].to[0] examples/shop/manifests/policies/shop.yaml:54
                allow to pods shop/app=db, 5432/TCP
              isolated by:
                NetworkPolicy shop/api           examples/shop/manifests/policies/shop.yaml:41
                NetworkPolicy shop/default-deny  examples/shop/manifests/policies/shop.yaml:2
                NetworkPolicy shop/dns           examples/shop/manifests/policies/shop.yaml:10

            ingress of shop/db (10.237.159.27, synthetic): denied
              isolated by:
                NetworkPolicy shop/db            examples/shop/manifests/policies/shop.yaml:65
                NetworkPolicy shop/default-deny  examples/shop/manifests/policies/shop.yaml:2
                NetworkPolicy shop/metrics       examples/shop/manifests/policies/shop.yaml:79
              no rule matches; nearest:
                NetworkPolicy shop/db ingress[0].from[0] examples/shop/manifests/policies/shop.yaml:73: names port postgres, which shop/db does not have (it names metrics, sql)
                  allow from pods shop/app=api, port postgres

            worth a look:
            examples/shop/manifests/policies/shop.yaml:75: warning: no destination pod has a port named postgres, so this allows nothing [unknown-port-name]
              NetworkPolicy shop/db spec.ingress[0].ports[0]
              hint: the destination pods have ports named metrics, sql; or give the port's number
            examples/shop/manifests/policies/shop.yaml:88: warning: matches no pod here; the entry before it is a separate peer and admits every pod of its namespaces [split-peer]
              NetworkPolicy shop/metrics spec.ingress[0].from[1]
              hint: to select these pods in those namespaces, merge the two entries: remove the `-` before podSelector

            the smallest policy that would allow it:
            apiVersion: networking.k8s.io/v1
            kind: NetworkPolicy
            metadata:
              name: allow-db-ingress-5432-tcp
              namespace: shop
            spec:
              podSelector: {matchLabels: {app: db, tier: back}}
              policyTypes: [Ingress]
              ingress:
              - from:
                - podSelector: {matchLabels: {app: api, tier: back}}
                ports:
                - {protocol: TCP, port: 5432}
            --- exit 1
        "#]],
    );
}

#[test]
fn a_near_miss_is_named() {
    check(
        &weir(
            "explain -f examples/shop/manifests --from shop/web --to shop/deployment/api --port 9100",
        ),
        expect![[r#"
            denied: shop/web → shop/api 9100/TCP

            egress of shop/web (10.134.156.248, synthetic): denied
              isolated by:
                NetworkPolicy shop/default-deny  examples/shop/manifests/policies/shop.yaml:2
                NetworkPolicy shop/dns           examples/shop/manifests/policies/shop.yaml:10
                NetworkPolicy shop/web           examples/shop/manifests/policies/shop.yaml:25
              no rule matches; nearest:
                NetworkPolicy shop/web egress[0].to[0] examples/shop/manifests/policies/shop.yaml:36: the port does not match
                  allow to port "http"/TCP of pods shop/app=api

            ingress of shop/api (10.192.4.42, synthetic): denied
              isolated by:
                NetworkPolicy shop/api           examples/shop/manifests/policies/shop.yaml:41
                NetworkPolicy shop/default-deny  examples/shop/manifests/policies/shop.yaml:2
                NetworkPolicy shop/metrics       examples/shop/manifests/policies/shop.yaml:79
              no rule matches; nearest:
                NetworkPolicy shop/api ingress[0].from[0] examples/shop/manifests/policies/shop.yaml:49: the port does not match
                  allow from pods shop/app=web, 8080/TCP
                NetworkPolicy shop/metrics ingress[0].from[0] examples/shop/manifests/policies/shop.yaml:87: the peer does not match
                  allow from pods [team=platform]/*, 9100/TCP
                NetworkPolicy shop/metrics ingress[0].from[1] examples/shop/manifests/policies/shop.yaml:88: the peer does not match
                  allow from pods shop/app=prometheus, 9100/TCP

            worth a look:
            examples/shop/manifests/policies/shop.yaml:88: warning: matches no pod here; the entry before it is a separate peer and admits every pod of its namespaces [split-peer]
              NetworkPolicy shop/metrics spec.ingress[0].from[1]
              hint: to select these pods in those namespaces, merge the two entries: remove the `-` before podSelector

            the smallest policy that would allow it:
            apiVersion: networking.k8s.io/v1
            kind: NetworkPolicy
            metadata:
              name: allow-web-egress-9100-tcp
              namespace: shop
            spec:
              podSelector: {matchLabels: {app: web, tier: front}}
              policyTypes: [Egress]
              egress:
              - to:
                - podSelector: {matchLabels: {app: api, tier: back}}
                ports:
                - {protocol: TCP, port: 9100}
            ---
            apiVersion: networking.k8s.io/v1
            kind: NetworkPolicy
            metadata:
              name: allow-api-ingress-9100-tcp
              namespace: shop
            spec:
              podSelector: {matchLabels: {app: api, tier: back}}
              policyTypes: [Ingress]
              ingress:
              - from:
                - podSelector: {matchLabels: {app: web, tier: front}}
                ports:
                - {protocol: TCP, port: 9100}
            --- exit 1
        "#]],
    );
}

#[test]
fn an_allowed_connection_exits_with_0() {
    check(
        &weir("explain -f examples/shop/manifests -n shop --from 203.0.113.7 --to web --port http"),
        expect![[r#"
            allowed: 203.0.113.7 → shop/web 8080/TCP

            egress of 203.0.113.7: allowed
              no pod has this address, so no policy applies

            ingress of shop/web (10.134.156.248, synthetic): allowed
              allowed by NetworkPolicy shop/web ingress[0] examples/shop/manifests/policies/shop.yaml:32
                allow from anyone, 8080/TCP
              isolated by:
                NetworkPolicy shop/default-deny  examples/shop/manifests/policies/shop.yaml:2
                NetworkPolicy shop/metrics       examples/shop/manifests/policies/shop.yaml:79
                NetworkPolicy shop/web           examples/shop/manifests/policies/shop.yaml:25
            --- exit 0
        "#]],
    );
}

#[test]
fn the_explanation_as_json() {
    let output = weir(
        "explain -f examples/shop/manifests --from payments/checkout --to 203.0.113.7 --port 443 -o json",
    );
    assert_eq!(output.status.code(), Some(1));
    let answer = json(&output);
    assert_eq!(answer["verdict"], "deny");
    assert_eq!(answer["ingress"]["reason"], "no-pod");
    assert_eq!(answer["egress"]["reason"], "isolated");
    assert_eq!(answer["egress"]["nearest"][0]["missing"], "peer");
    assert!(answer["remedy"]["add"][0].as_str().unwrap().contains("203.0.113.7/32"));
}

#[test]
fn the_remedy_allows_the_connection() {
    let ask = "explain --from shop/api --to shop/db --port sql";
    let answer = json(&weir(&format!("{ask} -f examples/shop/manifests -o json")));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("remedy.yaml");
    let policies: Vec<&str> =
        answer["remedy"]["add"].as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
    std::fs::write(&file, policies.join("---\n")).unwrap();
    let cured = weir(&format!("{ask} -f examples/shop/manifests -f {}", file.display()));
    assert_eq!(cured.status.code(), Some(0));
}

#[test]
fn unknown_ends_are_errors_with_a_hint() {
    let shop = "explain -f examples/shop/manifests --port 80";
    for arguments in [
        "--from shop/weeb --to shop/db",
        "--from shop/deployment/weeb --to shop/db",
        "--from web --to shop/db",
        "--from a/b/c/d --to shop/db",
        "--from 2001:db8::1 --to shop/db",
    ] {
        let output = weir(&format!("{shop} {arguments}"));
        assert_eq!(output.status.code(), Some(2), "{arguments}");
    }
    check(
        &weir(&format!("{shop} --from web --to shop/db")),
        expect![[r#"
        --- stderr
        error: there is no pod default/web
        hint: did you mean shop/web?
        --- exit 2
    "#]],
    );
    check(
        &weir("explain -f examples/shop/manifests --port htpp --from shop/api --to shop/web"),
        expect![[r#"
            --- stderr
            error: shop/web has no port htpp
            hint: its named ports are http, metrics; a number works too
            --- exit 2
        "#]],
    );
}

const ENDS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: done, namespace: shop, labels: {app: done}}
status: {podIP: 10.0.0.9, phase: Succeeded}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {containers: [{name: db, image: db, ports: [{name: sql, containerPort: 5432}]}]}
status: {podIPs: [{ip: 10.0.0.2}, {ip: 'fd00::2'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
status: {podIPs: [{ip: 10.0.0.3}, {ip: 'fd00::3'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: dns, namespace: shop, labels: {app: dns}}
spec: {containers: [{name: dns, image: dns, ports: [{name: dns, containerPort: 53}, {name: dns, containerPort: 53, protocol: UDP}]}]}
status: {podIP: 10.0.0.4}
---
apiVersion: v1
kind: Pod
metadata: {name: agent, namespace: shop}
spec: {hostNetwork: true, containers: []}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from:
    - ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.4/32, 10.0.0.9/32]}
    - ipBlock: {cidr: 192.0.2.0/24}
    - podSelector: {matchLabels: {app: none}}
    - podSelector: {matchLabels: {app: nobody}}
    - podSelector: {matchLabels: {app: nil}}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
";

fn ask(arguments: &str) -> std::process::Output {
    weir_reading(&format!("explain -f - -n shop {arguments}"), ENDS)
}

#[test]
fn a_near_miss_of_a_block_names_its_reason() {
    check(
        &ask("--from dns --to db --port 5432"),
        expect![[r#"
            denied: shop/dns → shop/db 5432/TCP

            egress of shop/dns (10.0.0.4): allowed
              no policy isolates it for egress

            ingress of shop/db (10.0.0.2): denied
              isolated by:
                NetworkPolicy shop/db  -:28
              no rule matches; nearest:
                NetworkPolicy shop/db ingress[0].from[0] -:35: 10.0.0.4 is in the exception 10.0.0.4/32
                  allow from 10.0.0.0/24 except 10.0.0.4/32, 10.0.0.9/32, any port
                NetworkPolicy shop/db ingress[0].from[1] -:36: 10.0.0.4 is not in the block
                  allow from 192.0.2.0/24, any port
                NetworkPolicy shop/db ingress[0].from[2] -:37: the peer does not match
                  allow from pods shop/app=none, any port
                and 2 more; -o json lists all

            worth a look:
            -:37: warning: no pod of namespace shop has app=none [peer-matches-nothing]
              NetworkPolicy shop/db spec.ingress[0].from[2]
              hint: the pods there have app=db, app=dns, app=web
            -:38: warning: no pod of namespace shop has app=nobody [peer-matches-nothing]
              NetworkPolicy shop/db spec.ingress[0].from[3]
              hint: the pods there have app=db, app=dns, app=web
            -:39: warning: no pod of namespace shop has app=nil [peer-matches-nothing]
              NetworkPolicy shop/db spec.ingress[0].from[4]
              hint: the pods there have app=db, app=dns, app=web

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
                - podSelector: {matchLabels: {app: dns}}
                ports:
                - {protocol: TCP, port: 5432}
            --- exit 1
        "#]],
    );
}

#[test]
fn the_other_family_is_mentioned() {
    check(
        &ask("--from web --to db --port sql"),
        expect![[r#"
            allowed: shop/web → shop/db 5432/TCP
            evaluated for IPv4; IPv6 is denied: see `--ip-family IPv6`

            egress of shop/web (10.0.0.3): allowed
              no policy isolates it for egress

            ingress of shop/db (10.0.0.2): allowed
              allowed by NetworkPolicy shop/db ingress[0].from[0] -:35
                allow from 10.0.0.0/24 except 10.0.0.4/32, 10.0.0.9/32, any port
              isolated by:
                NetworkPolicy shop/db  -:28
            --- exit 0
        "#]],
    );
    check(
        &ask("--from web --to db --port sql --ip-family ipv6"),
        expect![[r#"
            denied: shop/web → shop/db 5432/TCP
            evaluated for IPv6; IPv4 is allowed: see `--ip-family IPv4`

            egress of shop/web (fd00::3): allowed
              no policy isolates it for egress

            ingress of shop/db (fd00::2): denied
              isolated by:
                NetworkPolicy shop/db  -:28
              no rule matches; nearest:
                NetworkPolicy shop/db ingress[0].from[0] -:35: fd00::3 is IPv6, the block is IPv4
                  allow from 10.0.0.0/24 except 10.0.0.4/32, 10.0.0.9/32, any port
                NetworkPolicy shop/db ingress[0].from[1] -:36: fd00::3 is IPv6, the block is IPv4
                  allow from 192.0.2.0/24, any port
                NetworkPolicy shop/db ingress[0].from[2] -:37: the peer does not match
                  allow from pods shop/app=none, any port
                and 2 more; -o json lists all

            worth a look:
            -:37: warning: no pod of namespace shop has app=none [peer-matches-nothing]
              NetworkPolicy shop/db spec.ingress[0].from[2]
              hint: the pods there have app=db, app=dns, app=web
            -:38: warning: no pod of namespace shop has app=nobody [peer-matches-nothing]
              NetworkPolicy shop/db spec.ingress[0].from[3]
              hint: the pods there have app=db, app=dns, app=web
            -:39: warning: no pod of namespace shop has app=nil [peer-matches-nothing]
              NetworkPolicy shop/db spec.ingress[0].from[4]
              hint: the pods there have app=db, app=dns, app=web

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
                - podSelector: {matchLabels: {app: web}}
                ports:
                - {protocol: TCP, port: 5432}
            --- exit 1
        "#]],
    );
    check(
        &ask("--from dns --to db --port sql --ip-family IPv6"),
        expect![[r#"
            --- stderr
            error: dns has no IPv6 address
            hint: leave out --ip-family, or use the other family
            --- exit 2
        "#]],
    );
}

#[test]
fn a_remedy_does_not_name_a_temporary_address() {
    check(
        &ask("--from agent --to db --port 5432"),
        expect![[r#"
            denied: shop/agent → shop/db 5432/TCP
            shop/agent uses the network of its node: policies treat it as a node, not as a pod

            egress of 10.142.148.158 (synthetic): allowed
              no pod has this address, so no policy applies

            ingress of shop/db (10.0.0.2): denied
              isolated by:
                NetworkPolicy shop/db  -:28
              no rule matches; nearest:
                NetworkPolicy shop/db ingress[0].from[0] -:35: 10.142.148.158 is not in the block
                  allow from 10.0.0.0/24 except 10.0.0.4/32, 10.0.0.9/32, any port
                NetworkPolicy shop/db ingress[0].from[1] -:36: 10.142.148.158 is not in the block
                  allow from 192.0.2.0/24, any port
                NetworkPolicy shop/db ingress[0].from[2] -:37: the peer does not match
                  allow from pods shop/app=none, any port
                and 2 more; -o json lists all

            worth a look:
            -:37: warning: no pod of namespace shop has app=none [peer-matches-nothing]
              NetworkPolicy shop/db spec.ingress[0].from[2]
              hint: the pods there have app=db, app=dns, app=web
            -:38: warning: no pod of namespace shop has app=nobody [peer-matches-nothing]
              NetworkPolicy shop/db spec.ingress[0].from[3]
              hint: the pods there have app=db, app=dns, app=web
            -:39: warning: no pod of namespace shop has app=nil [peer-matches-nothing]
              NetworkPolicy shop/db spec.ingress[0].from[4]
              hint: the pods there have app=db, app=dns, app=web

            shop/agent has no address yet: once it has one, allow the address of its node with an ipBlock
            --- exit 1
        "#]],
    );
    let gone = ask("--from 10.0.0.9 --to db --port 5432 -o json");
    let answer = json(&gone);
    assert_eq!(answer["remedy"]["add"], serde_json::Value::Null);
    let note = answer["remedy"]["note"].as_str().unwrap();
    assert!(note.starts_with("10.0.0.9 belonged to shop/done"), "{note}");
}

#[test]
fn ends_have_several_forms_and_errors_name_the_problem() {
    for (arguments, message) in [
        (
            "--from done --to db --port 1",
            "error: shop/done has finished and no longer owns an address\nhint: name a running pod, or the address 10.0.0.9\n",
        ),
        ("--from web --to 10.0.0.300 --port 1", "error: 10.0.0.300 is not an address\n"),
        (
            "--from web --to 10.0.0.0/24 --port 1",
            "error: 10.0.0.0/24 is a network\nhint: give one of its addresses\n",
        ),
        (
            "--from shop/weeb --to db --port 1",
            "error: there is no pod shop/weeb\nhint: did you mean shop/web?\n",
        ),
        (
            "--from n1 --to db --port 1",
            "error: n1 is a node, not a pod\nhint: give one of its addresses, such as 192.168.0.1\n",
        ),
        (
            "--from web --to 10.0.0.2 --port sql",
            "error: 10.0.0.2 has no port sql\nhint: the ports of an address have no names: name the pod, or give a number\n",
        ),
        (
            "--from web --to dns --port dns",
            "error: dns has several ports named dns: 53/TCP, 53/UDP\nhint: add the protocol: `--port dns/UDP`\n",
        ),
    ] {
        let output = ask(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(stderr(&output).contains(message), "{arguments}: {}", stderr(&output));
    }
    // An IPv4-mapped IPv6 address is an IPv4 address.
    let mapped = json(&ask("--from ::ffff:192.0.2.1 --to db --port 5432 -o json"));
    assert_eq!((&mapped["from"], &mapped["verdict"]), (&"192.0.2.1".into(), &"allow".into()));
    assert_eq!(ask("--from shop/po/web --to dns --port dns/UDP").status.code(), Some(0));
    let shop = "explain -f examples/shop/manifests --port 5432 --from shop/api";
    for workload in ["shop/deploy/web", "shop/Deployment/web", "shop/deployments/web"] {
        let output = weir(&format!("{shop} --to {workload}"));
        assert_eq!(output.status.code(), Some(1), "{workload}: {}", stderr(&output));
    }
    let output = weir(&format!("{shop} --to shop/deploy/weeb"));
    assert!(stderr(&output).ends_with("hint: did you mean shop/deployment/web?\n"));
}

#[test]
fn a_pod_whose_address_another_pod_owns_gets_a_note() {
    let pod = |name: &str, born: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: a, creationTimestamp: '{born}'}}\nstatus: {{podIP: 10.0.0.1}}\n"
        )
    };
    let manifests = pod("old", "2026-01-01T00:00:00Z") + &pod("young", "2026-01-02T00:00:00Z");
    let output =
        crate::weir_reading("explain -f - --from 10.9.9.9 --to a/old --port 80", &manifests);
    let text = crate::stdout(&output);
    assert!(text.contains("a/old does not own 10.0.0.1: a/young has the same address"), "{text}");
}
