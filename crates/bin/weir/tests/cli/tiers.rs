use expect_test::expect;

use crate::{check, weir_reading};

const GUARDED: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, containers: []}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: probe, namespace: shop}
spec: {nodeName: n1, hostNetwork: true, containers: []}
status: {podIP: 192.168.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: n2, containers: []}
status: {podIP: 10.0.0.2}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: guard}
spec:
  tier: Admin
  priority: 0
  subject: {namespaces: {}}
  ingress:
  - {action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 22}}}]}
  - {action: Pass, from: [{namespaces: {}}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}
";

#[test]
fn the_tiers_are_explained_in_order() {
    let ask = |arguments: &str| weir_reading(&format!("explain -f - -n shop {arguments}"), GUARDED);
    check(
        &ask("--from web --to db --port 80"),
        expect![[r#"
            allowed: shop/web → shop/db 80/TCP

            egress of shop/web (10.0.0.1): allowed
              no policy isolates it for egress

            ingress of shop/db (10.0.0.2): allowed
              deferred by ClusterNetworkPolicy guard ingress[1].from[0] -:28
                pass from pods [*]/*, any port
              allowed by NetworkPolicy shop/db ingress[0].from[0] -:33
                allow from pods shop/app=web, any port
              isolated by:
                NetworkPolicy shop/db  -:30
            --- exit 0
        "#]],
    );
    check(
        &ask("--from web --to db --port 22"),
        expect![[r#"
            denied: shop/web → shop/db 22/TCP

            egress of shop/web (10.0.0.1): allowed
              no policy isolates it for egress

            ingress of shop/db (10.0.0.2): denied
              denied by ClusterNetworkPolicy guard ingress[0].from[0] -:27
                deny from pods [*]/*, 22/TCP
              isolated by:
                NetworkPolicy shop/db  -:30

            no added policy can override this rule; to allow the connection, change:
              ClusterNetworkPolicy guard ingress[0].from[0] -:27
            --- exit 1
        "#]],
    );
    check(
        &ask("--from probe --to web --port 22"),
        expect![[r#"
            allowed: shop/probe → shop/web 22/TCP
            shop/probe uses the network of its node: policies treat it as a node, not as a pod

            egress of 192.168.0.1: allowed
              no pod has this address, so no policy applies

            ingress of shop/web (10.0.0.1): allowed
              it runs on node n1; policies do not apply between a pod and its node
            --- exit 0
        "#]],
    );
}

const BASELINE: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
status: {podIP: 10.0.0.2}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: guard}
spec:
  priority: 10
  subject: {namespaces: {}}
  ingress: [{action: Pass, from: [{namespaces: {}}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec:
  subject: {namespaces: {}}
  ingress: [{action: Deny, from: [{namespaces: {}}]}]
";

#[test]
fn the_remedy_of_a_passed_connection_is_an_admin_policy_before_the_pass() {
    let ask = "explain -f - --from shop/web --to shop/db --port 80";
    check(
        &weir_reading(ask, BASELINE),
        expect![[r#"
            denied: shop/web → shop/db 80/TCP

            egress of shop/web (10.0.0.1): allowed
              no policy isolates it for egress

            ingress of shop/db (10.0.0.2): denied
              deferred by AdminNetworkPolicy guard ingress[0].from[0] -:17
                pass from pods [*]/*, any port
              denied by BaselineAdminNetworkPolicy default ingress[0].from[0] -:24
                deny from pods [*]/*, any port

            the smallest policy that would allow it:
            apiVersion: policy.networking.k8s.io/v1alpha1
            kind: AdminNetworkPolicy
            metadata:
              name: allow-db-ingress-80-tcp
            spec:
              priority: 9
              subject:
                pods:
                  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
                  podSelector: {matchLabels: {app: db}}
              ingress:
              - action: Allow
                from:
                - pods:
                    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
                    podSelector: {matchLabels: {app: web}}
                ports:
                - portNumber: {protocol: TCP, port: 80}
            --- exit 1
        "#]],
    );
}

#[test]
fn admin_policies_without_a_matching_rule_are_named() {
    let ask = "explain -f - --from 203.0.113.7 --to shop/db --port 80";
    check(
        &weir_reading(ask, BASELINE),
        expect![[r#"
            allowed: 203.0.113.7 → shop/db 80/TCP

            egress of 203.0.113.7: allowed
              no pod has this address, so no policy applies

            ingress of shop/db (10.0.0.2): allowed
              no rule of AdminNetworkPolicy guard (-:11) and BaselineAdminNetworkPolicy default (-:19) matches, and no NetworkPolicy isolates it for ingress
            --- exit 0
        "#]],
    );
}
