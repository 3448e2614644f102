//! The traces of terminated connections in the rules.

use weir_datapath::Mode;
use weir_engine::{Locality, compile};
use weir_iptables::Variant;
use weir_model::Protocol;
use weir_trials::cluster::{ARRIVAL_TIMEOUT, PODS, TrialCluster, flow, policy, world};

use crate::{backend::Tables, node};

/// `db` allows only `api`.
const DB: &str = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";

/// The rules match replies of terminated connections only while such connections are remembered.
pub(crate) fn rules_match_terminated_connections_only_if_there_are_any(variant: Variant) {
    let mut cluster = TrialCluster::with(Tables(variant), &[]);
    let talk = cluster
        .lab
        .converse(flow("10.0.0.2", "10.0.0.3", Protocol::Udp, 80), ARRIVAL_TIMEOUT)
        .unwrap();
    cluster.put(&policy("tight", DB));
    let has_rules = |cluster: &TrialCluster<Tables>| {
        node::saved(&cluster.lab, variant).contains("--match-set KUBE-SRC-CUT")
    };
    assert!(!has_rules(&cluster));
    assert_eq!(cluster.cut(), [1, 0]);
    assert!(has_rules(&cluster));
    drop(talk);

    let world = world(&format!("{PODS}policies:\n{}", policy("tight", DB)));
    let program = compile(&world, Locality::Node("n1".into()));
    let restart =
        || node::sync(&mut node::open(&cluster.lab, "n1", Mode::Enforce, variant), &program);
    restart();
    assert!(has_rules(&cluster), "a restarted agent keeps the rules");
    for set in ["KUBE-SRC-CUT", "KUBE-DST-CUT"] {
        node::run(&cluster.lab, "ipset", &["flush", set], "");
    }
    restart();
    assert!(!has_rules(&cluster), "after all entries expired, a restart removes the rules");
}
