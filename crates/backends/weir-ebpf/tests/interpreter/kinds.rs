//! The size of the maps: they grow with the kinds of peers, and only the addresses with the peers.

use std::{collections::BTreeSet, net::IpAddr};

use weir_datapath::Planner;
use weir_ebpf::{Tables, layout::Identity};
use weir_model::Delta;
use weir_trials::cluster::{PODS, policy};

use crate::{planner, rules};

/// The maps of a node whose pod `db` accepts pods like `api`, of which another node has this many. Each
/// of those has a label of its own, which no policy selects.
fn tables(remote: u32) -> Tables {
    let pods = (0..remote).map(|number| {
        let address = remote_address(number);
        format!("- {{namespace: shop, name: p{number}, labels: {{app: api, id: i{number}}}, ips: [{address}], node: n2}}\n")
    });
    let spec = "podSelector: {matchLabels: {app: db}}, ingress: [
        {from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 80}, {port: 443}]}]";
    let pods: String = pods.collect();
    let rules = rules(&format!("{PODS}{pods}policies:\n{}", policy("db", spec)));
    let mut planner = planner();
    planner.plan(&rules, &Delta::from(&rules));
    planner.tables().clone()
}

fn remote_address(number: u32) -> IpAddr {
    let [_, _, high, low] = number.to_be_bytes();
    [10, 1, high, low].into()
}

#[test]
fn ten_thousand_peers_of_one_kind_need_only_addresses() {
    let (few, many) = (tables(1), tables(10_000));
    let identities: BTreeSet<Identity> =
        (0..10_000).map(|number| many.addresses[&remote_address(number)]).collect();
    assert_eq!(identities.len(), 1, "{identities:?}");
    assert_eq!(many.addresses.len() - few.addresses.len(), 9_999);
    assert_eq!((many.kinds.len(), many.decisions.len()), (1, 1));
    assert_eq!(Tables { addresses: few.addresses.clone(), ..many }, few);
}
