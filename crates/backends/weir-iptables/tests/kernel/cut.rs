//! What connections that were cut leave behind in the rules.

use weir_datapath::Mode;
use weir_engine::{Locality, compile};
use weir_iptables::Variant;
use weir_model::Protocol;
use weir_trials::cluster::{ARRIVAL_TIMEOUT, Cluster, PODS, flow, policy, world};

use crate::{backend::Tables, node};

/// `db` lets only `api` in.
const DB: &str = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]";

/// Packets are asked whether they belong to a connection that was cut only where one was, and as long as it is remembered.
pub(crate) fn only_who_cuts_asks_about_it(variant: Variant) {
    let mut cluster = Cluster::with(Tables(variant), &[]);
    let talk = cluster
        .lab
        .converse(flow("10.0.0.2", "10.0.0.3", Protocol::Udp, 80), ARRIVAL_TIMEOUT)
        .unwrap();
    cluster.put(&policy("tight", DB));
    let asks = |cluster: &Cluster<Tables>| {
        node::saved(&cluster.lab, variant).contains("--match-set KUBE-SRC-CUT")
    };
    assert!(!asks(&cluster));
    assert_eq!(cluster.cut(), [1, 0]);
    assert!(asks(&cluster));
    drop(talk);

    let world = world(&format!("{PODS}policies:\n{}", policy("tight", DB)));
    let program = compile(&world, Locality::Node("n1".into()));
    let restart =
        || node::sync(&mut node::open(&cluster.lab, "n1", Mode::Enforce, variant), &program);
    restart();
    assert!(asks(&cluster), "who starts again remembers");
    for set in ["KUBE-SRC-CUT", "KUBE-DST-CUT"] {
        node::run(&cluster.lab, "ipset", &["flush", set], "");
    }
    restart();
    assert!(!asks(&cluster), "when all is forgotten, a restart stops asking");
}
