use std::process::Output;

use expect_test::expect;

use crate::{check, command, stderr, stdout, weir};

/// Fails if the demo could not run.
#[track_caller]
fn ran(output: Output) -> Output {
    let needs = "this test needs root or user namespaces, and the program nft";
    assert_ne!(output.status.code(), Some(2), "{needs}: {}", stderr(&output));
    output
}

#[test]
fn policies_take_effect_one_by_one() {
    check(
        &ran(weir("demo")),
        expect![[r#"
            This demo builds a cluster of 5 pods on 2 nodes. Each of them is a network
            namespace on this machine. Then it applies network policies, one after the
            other, as nftables rules, and tries all 30 connections after each one. It
            touches nothing outside these namespaces, and removes them at the end.

            ✓ connects   ✗ blocked   + opened by this policy   - closed by this policy

            Without policies

                                               shop  shop  shop  monitoring  kube-system
              from ↓  to →           internet  web   api   db    prometheus  dns
              port                   443       8080  8080  5432  9090        53/UDP
              internet               ·         ✓     ✓     ✓     ✓           ✓
              shop/web               ✓         ·     ✓     ✓     ✓           ✓
              shop/api               ✓         ✓     ·     ✓     ✓           ✓
              shop/db                ✓         ✓     ✓     ·     ✓           ✓
              monitoring/prometheus  ✓         ✓     ✓     ✓     ·           ✓
              kube-system/dns        ✓         ✓     ✓     ✓     ✓           ·

               30 of 30 connections pass

            1. NetworkPolicy shop/default-deny
               No pod of the shop accepts connections unless another policy allows them.
                 podSelector: {}
                 policyTypes: [Ingress]

                                               shop  shop  shop  monitoring  kube-system
              from ↓  to →           internet  web   api   db    prometheus  dns
              port                   443       8080  8080  5432  9090        53/UDP
              internet               ·         ✗-    ✗-    ✗-    ✓           ✓
              shop/web               ✓         ·     ✗-    ✗-    ✓           ✓
              shop/api               ✓         ✗-    ·     ✗-    ✓           ✓
              shop/db                ✓         ✗-    ✗-    ·     ✓           ✓
              monitoring/prometheus  ✓         ✗-    ✗-    ✗-    ·           ✓
              kube-system/dns        ✓         ✗-    ✗-    ✗-    ✓           ·

               15 of 30 connections pass, 15 closed (-)
               Why is internet → shop/web 8080/TCP closed?
                 ingress of shop/web: isolated by NetworkPolicy shop/default-deny, and no
                 rule matches

            2. NetworkPolicy shop/web
               Every source can connect to the web server, on its one port.
                 podSelector: {matchLabels: {app: web}}
                 ingress:
                 - ports: [{port: 8080}]

                                               shop  shop  shop  monitoring  kube-system
              from ↓  to →           internet  web   api   db    prometheus  dns
              port                   443       8080  8080  5432  9090        53/UDP
              internet               ·         ✓+    ✗     ✗     ✓           ✓
              shop/web               ✓         ·     ✗     ✗     ✓           ✓
              shop/api               ✓         ✓+    ·     ✗     ✓           ✓
              shop/db                ✓         ✓+    ✗     ·     ✓           ✓
              monitoring/prometheus  ✓         ✓+    ✗     ✗     ·           ✓
              kube-system/dns        ✓         ✓+    ✗     ✗     ✓           ·

               20 of 30 connections pass, 5 opened (+)
               Why is internet → shop/web 8080/TCP open?
                 ingress of shop/web: allowed by NetworkPolicy shop/web ingress[0]

            3. NetworkPolicy shop/api
               Only the web server can connect to the api.
                 podSelector: {matchLabels: {app: api}}
                 ingress:
                 - from: [{podSelector: {matchLabels: {app: web}}}]
                   ports: [{port: http}]

                                               shop  shop  shop  monitoring  kube-system
              from ↓  to →           internet  web   api   db    prometheus  dns
              port                   443       8080  8080  5432  9090        53/UDP
              internet               ·         ✓     ✗     ✗     ✓           ✓
              shop/web               ✓         ·     ✓+    ✗     ✓           ✓
              shop/api               ✓         ✓     ·     ✗     ✓           ✓
              shop/db                ✓         ✓     ✗     ·     ✓           ✓
              monitoring/prometheus  ✓         ✓     ✗     ✗     ·           ✓
              kube-system/dns        ✓         ✓     ✗     ✗     ✓           ·

               21 of 30 connections pass, 1 opened (+)
               Why is shop/web → shop/api 8080/TCP open?
                 egress of shop/web: no policy isolates it for egress; ingress of shop/api:
                 allowed by NetworkPolicy shop/api ingress[0].from[0]

            4. NetworkPolicy shop/db
               Only the api can connect to the database.
                 podSelector: {matchLabels: {app: db}}
                 ingress:
                 - from: [{podSelector: {matchLabels: {app: api}}}]
                   ports: [{port: sql}]

                                               shop  shop  shop  monitoring  kube-system
              from ↓  to →           internet  web   api   db    prometheus  dns
              port                   443       8080  8080  5432  9090        53/UDP
              internet               ·         ✓     ✗     ✗     ✓           ✓
              shop/web               ✓         ·     ✓     ✗     ✓           ✓
              shop/api               ✓         ✓     ·     ✓+    ✓           ✓
              shop/db                ✓         ✓     ✗     ·     ✓           ✓
              monitoring/prometheus  ✓         ✓     ✗     ✗     ·           ✓
              kube-system/dns        ✓         ✓     ✗     ✗     ✓           ·

               22 of 30 connections pass, 1 opened (+)
               Why is shop/api → shop/db 5432/TCP open?
                 egress of shop/api: no policy isolates it for egress; ingress of shop/db:
                 allowed by NetworkPolicy shop/db ingress[0].from[0]

            5. NetworkPolicy shop/egress
               Pods of the shop can connect only to each other and to DNS.
                 podSelector: {}
                 policyTypes: [Egress]
                 egress:
                 - to: [{podSelector: {}}]
                 - to:
                   - namespaceSelector: {}
                     podSelector: {matchLabels: {k8s-app: kube-dns}}
                   ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]

                                               shop  shop  shop  monitoring  kube-system
              from ↓  to →           internet  web   api   db    prometheus  dns
              port                   443       8080  8080  5432  9090        53/UDP
              internet               ·         ✓     ✗     ✗     ✓           ✓
              shop/web               ✗-        ·     ✓     ✗     ✗-          ✓
              shop/api               ✗-        ✓     ·     ✓     ✗-          ✓
              shop/db                ✗-        ✓     ✗     ·     ✗-          ✓
              monitoring/prometheus  ✓         ✓     ✗     ✗     ·           ✓
              kube-system/dns        ✓         ✓     ✗     ✗     ✓           ·

               16 of 30 connections pass, 6 closed (-)
               Why is shop/web → internet 443/TCP closed?
                 egress of shop/web: isolated by NetworkPolicy shop/egress, and no rule
                 matches; NetworkPolicy shop/egress egress[0].to[0] matches except for the
                 peer

            6. ClusterNetworkPolicy quarantine
               The web server could be compromised. The platform team denies all its
               outgoing connections, regardless of the shop's own policies.
                 tier: Admin
                 priority: 10
                 subject:
                   pods:
                     namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
                     podSelector: {matchLabels: {app: web}}
                 egress:
                 - {name: cut-off, action: Deny, to: [{networks: [0.0.0.0/0, "::/0"]}]}

                                               shop  shop  shop  monitoring  kube-system
              from ↓  to →           internet  web   api   db    prometheus  dns
              port                   443       8080  8080  5432  9090        53/UDP
              internet               ·         ✓     ✗     ✗     ✓           ✓
              shop/web               ✗         ·     ✗-    ✗     ✗           ✗-
              shop/api               ✗         ✓     ·     ✓     ✗           ✓
              shop/db                ✗         ✓     ✗     ·     ✗           ✓
              monitoring/prometheus  ✓         ✓     ✗     ✗     ·           ✓
              kube-system/dns        ✓         ✓     ✗     ✗     ✓           ·

               14 of 30 connections pass, 2 closed (-)
               Why is shop/web → shop/api 8080/TCP closed?
                 egress of shop/web: denied by ClusterNetworkPolicy quarantine
                 egress[0].to[0]

            A dropped packet: internet → shop/api 8080/TCP
               The node reports each packet that it drops; `weir drops` lists them.
               Report: 203.0.113.7:10217 → 10.0.2.10:8080, TCP, 60 bytes, log prefix "weir
               ingress".
               Reason: ingress of shop/api: isolated by NetworkPolicy shop/api and
               NetworkPolicy shop/default-deny, and no rule matches; NetworkPolicy shop/api
               ingress[0].from[0] matches except for the peer.

            The result of 6 policies

              ┌───────────────────────┬──────────┬─────┬─────┬────┬────────────┬─────┐
              │ from ↓  to →          │ internet │ web │ api │ db │ prometheus │ dns │
              ├───────────────────────┼──────────┼─────┼─────┼────┼────────────┼─────┤
              │ internet              │    ·     │  ✓  │  ✗  │ ✗  │     ✓      │  ✓  │
              │ shop/web              │    ✗     │  ·  │  ✗  │ ✗  │     ✗      │  ✗  │
              │ shop/api              │    ✗     │  ✓  │  ·  │ ✓  │     ✗      │  ✓  │
              │ shop/db               │    ✗     │  ✓  │  ✗  │ ·  │     ✗      │  ✓  │
              │ monitoring/prometheus │    ✓     │  ✓  │  ✗  │ ✗  │     ·      │  ✓  │
              │ kube-system/dns       │    ✓     │  ✓  │  ✗  │ ✗  │     ✓      │  ·  │
              └───────────────────────┴──────────┴─────┴─────┴────┴────────────┴─────┘

            210 real connections tried, every verdict matches the compiled rules.

            Try it with your own manifests:
              weir matrix -f DIR                             which pods reach which
              weir explain -f DIR --from A --to B --port 80  the reason, and a fix
              weir test FILE --datapath nftables             real connections, as here
            --- exit 0
        "#]],
    );
}

#[test]
fn the_demo_fits_into_80_columns() {
    let text = stdout(&ran(weir("demo")));
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(long.is_empty(), "{long:?}");
    assert!(!text.contains('\u{1b}'));
    let coloured = stdout(&command().arg("demo").env("CLICOLOR_FORCE", "1").output().unwrap());
    assert!(coloured.contains("\u{1b}[1m\u{1b}[31m✗-\u{1b}[0m"), "{coloured}");
}
