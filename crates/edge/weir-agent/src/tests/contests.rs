//! Addresses that several pods claim.

use super::*;

/// A pod that no policy selects, at the address of the web pod.
pub(super) fn thief(node: &str, more: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: thief, namespace: evil{more}}}, \
          spec: {{nodeName: {node}}}, status: {{podIP: 10.0.0.1}}}}"
    )
}

fn warnings(bench: &Bench) -> Vec<String> {
    bench.report.status().warnings.clone()
}

#[test]
fn a_claim_of_another_node_takes_no_rules_off_a_pod() {
    let mut bench = Bench::started();
    bench.write("thief.yaml", &thief("n2", ""));
    bench.turn();
    assert_eq!(bench.passes(), [2], "the policy still applies");
    let expected = "evil/thief of another node claims 10.0.0.1 of shop/web: \
                    the rules of shop/web stay in force";
    assert_eq!(warnings(&bench), [expected]);
    assert_eq!(bench.report.metrics.contested.get(), 1);

    bench.write("thief.yaml", &thief("n2", ", deletionTimestamp: '2026-01-01T00:00:00Z'"));
    bench.turn();
    assert_eq!((bench.passes(), warnings(&bench)), (vec![2], vec![]));
    assert_eq!(bench.report.metrics.contested.get(), 0);
}

#[test]
fn two_pods_of_the_node_with_one_address_are_closed() {
    let mut bench = Bench::started();
    bench.write("thief.yaml", &thief("n1", ""));
    bench.turn();
    assert_eq!(bench.passes(), [0; 0]);
    assert_eq!(
        warnings(&bench),
        ["evil/thief and shop/web of this node claim 10.0.0.1: nothing is allowed there"]
    );
    fs::remove_file(bench.disk.path().join("thief.yaml")).unwrap();
    bench.turn();
    assert_eq!((bench.passes(), warnings(&bench)), (vec![2], vec![]));
}

#[test]
fn a_contested_peer_is_allowed_only_if_every_claimant_is() {
    let mut bench = Bench::started();
    let rival = |labels: &str, more: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: rival, namespace: shop, \
              labels: {{{labels}}}{more}}}, spec: {{nodeName: n3}}, status: {{podIP: 10.0.0.2}}}}"
        )
    };
    bench.write("rival.yaml", &rival("app: other", ""));
    bench.turn();
    assert_eq!(bench.passes(), [0; 0]);
    bench.write("rival.yaml", &rival("app: api", ""));
    bench.turn();
    assert_eq!(bench.passes(), [2], "the policy selects both");
    // The address was reused: the former pod is being deleted.
    bench.write("rival.yaml", &rival("app: other", ", deletionTimestamp: '2026-01-01T00:00:00Z'"));
    bench.turn();
    assert_eq!((bench.passes(), warnings(&bench)), (vec![2], vec![]));
}
