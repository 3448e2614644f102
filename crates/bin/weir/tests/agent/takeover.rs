//! A node with the rules of kube-router in nftables (`--use-nftables-for-netpol`).

use std::{thread, time::Duration};

use serde_json::Value;
use weir_model::Verdict;

use crate::{
    filter::Filter,
    life::verdict,
    node::Node,
    prober::Prober,
    swap::{CLOSED, DB, OPEN, WEB},
};

/// The tables as kube-router leaves them, except that denied packets are dropped and not rejected, as
/// probes expect. Only the pod `web` can reach the open port of `db`.
fn tables() -> String {
    let pod = |chain: &str, address: &str, policy: &str| {
        format!(
            "  chain {chain} {{
    jump KUBE-NWPLCY-COMMON
    ip daddr {address} fib saddr type local accept
    {policy}
    ip saddr {address} jump KUBE-NWPLCY-DEFAULT
    meta mark & 0x10000 != 0x10000 limit rate 10/minute burst 10 packets log group 100
    meta mark & 0x10000 != 0x10000 counter drop
    meta mark set meta mark & 0xfffeffff
    meta mark set meta mark | 0x20000
  }}
"
        )
    };
    let (web, db) = (WEB.to_string(), DB.to_string());
    let (web_chain, db_chain) = ("KUBE-POD-FW-SFWYEMHFNRDYLVI2", "KUBE-POD-FW-BBVBJO4MW45TRJMT");
    let pods = [
        pod(web_chain, &web, &format!("ip daddr {web} jump KUBE-NWPLCY-DEFAULT")),
        pod(db_chain, &db, &format!("ip daddr {db} jump KUBE-NWPLCY-GTYHGD7CNPEFEHMY")),
    ];
    let hook = |name: &str| {
        let jumps = [(&web, web_chain), (&db, db_chain)].map(|(address, chain)| {
            format!("    ip daddr {address} jump {chain}\n    ip saddr {address} jump {chain}\n")
        });
        format!(
            "  chain KUBE-ROUTER-{name} {{
    type filter hook {} priority 0; policy accept;
{}    jump KUBE-NWPLCY-TAIL
    meta mark & 0x20000 == 0x20000 accept
  }}
",
            name.to_lowercase(),
            jumps.concat()
        )
    };
    format!(
        "table ip kube-router-filter-ipv4 {{
  set KUBE-SRC-AQQBINHAUUC2ZIKD {{ type ipv4_addr; elements = {{ {web} }} }}
  set KUBE-DST-LZMGPE4DM7H32TLN {{ type ipv4_addr; elements = {{ {db} }} }}
  chain KUBE-NWPLCY-COMMON {{
    ct state invalid drop
    ct state established,related accept
    icmp type echo-request accept
  }}
  chain KUBE-NWPLCY-DEFAULT {{ meta mark set meta mark | 0x10000; }}
  chain KUBE-NWPLCY-TAIL {{ meta mark & 0x20000 == 0x20000 accept; }}
  chain KUBE-NWPLCY-GTYHGD7CNPEFEHMY {{
    ip saddr @KUBE-SRC-AQQBINHAUUC2ZIKD ip daddr @KUBE-DST-LZMGPE4DM7H32TLN udp dport {OPEN} counter meta mark set meta mark | 0x10000 return comment \"shop/db ingress pods\"
  }}
{}{}}}
table ip6 kube-router-filter-ipv6 {{
  chain KUBE-ROUTER-FORWARD {{ type filter hook forward priority 0; policy accept; }}
}}
table ip kube-router-nat {{ }}
",
        pods.concat(),
        ["INPUT", "FORWARD", "OUTPUT"].map(hook).concat()
    )
}

/// A node on which kube-router stopped and left its tables.
fn node(filter: Filter) -> Node {
    let node = Node::with(filter);
    let file = node.folder.path().with_extension("nft");
    std::fs::write(&file, tables()).unwrap();
    node.run_ok(&format!("nft -f {}", file.display()));
    assert_eq!([verdict(&node, OPEN), verdict(&node, CLOSED)], [Verdict::Allow, Verdict::Deny]);
    node
}

fn leftovers(node: &Node) -> Value {
    let (_, body) = node.get("/status").unwrap();
    serde_json::from_str::<Value>(&body).unwrap()["leftovers"].take()
}

pub(crate) fn tables_are_replaced(filter: Filter) {
    let node = node(filter);
    let probing = Prober::new(&node.lab, WEB, DB, OPEN, CLOSED).start();
    let agent = node.started(&[]);
    node.until("the tables are gone", || !node.run_ok("nft list tables").contains("kube-router-f"));
    thread::sleep(Duration::from_millis(200));
    probing.stop().check(500);
    assert_eq!([verdict(&node, OPEN), verdict(&node, CLOSED)], [Verdict::Allow, Verdict::Deny]);
    assert!(agent.log().contains("removed the rules that weir's rules replace"), "{}", agent.log());
    assert!(node.run_ok("nft list tables").contains("table ip kube-router-nat"), "others stay");
    node.until("nothing is left over", || leftovers(&node) == serde_json::json!([]));
}

pub(crate) fn audit_keeps_the_tables() {
    let node = node(Filter::Nftables);
    let _agent = node.started(&["--audit"]);
    node.until("they are reported", || leftovers(&node).to_string().contains("kube-router"));
    thread::sleep(Duration::from_millis(500));
    assert_eq!(verdict(&node, CLOSED), Verdict::Deny, "kube-router's rules stay in force");
}
