//! The guard when another datapath replaces this one, and after a cleanup.

use weir_datapath::{Datapath, Guard, Mode, Tunnel};
use weir_iptables::{Iptables, Variant};
use weir_model::Program;

use crate::node;

/// The chains of the guard go with the rules of policies, and its sets with theirs.
pub(crate) fn the_guard_goes_with_the_rules(variant: Variant) {
    let lab = node::without_pods();
    let mut driver = node::open(&lab, "n1", Mode::Enforce, variant);
    let own = [[10, 0, 0, 1].into(), "fd00::1".parse().unwrap()];
    let guard = Guard {
        links: [("veth1".into(), own.into())].into(),
        tunnels: [Tunnel::Udp(8472), Tunnel::Protocol(4)].into(),
        pods: own.into(),
        records: [(1, "shop/web end".to_owned())].into(),
    };
    let install = |datapath: &mut Iptables| {
        assert_eq!(datapath.guard().unwrap().enforce(&guard).unwrap(), [""; 0]);
        let saved = node::saved(&lab, variant);
        for part in ["-j WEIR-GUARD", ":WEIR-TUNNEL-POD", "weir-own", "inet6:weir-pods", "end"] {
            assert!(saved.contains(part), "{part}\n{saved}");
        }
    };
    node::sync(&mut driver, &Program::default());
    install(&mut driver.datapath);
    let removed = lab.on_node("n1", || {
        driver.datapath.remove_rules()?;
        driver.datapath.remove_sets()
    });
    removed.unwrap().unwrap();
    let left = node::saved(&lab, variant);
    assert!(!left.contains("WEIR") && !left.contains("weir"), "{left}");

    install(&mut driver.datapath);
    driver.remove().unwrap();
    let left = node::saved(&lab, variant);
    assert!(!left.contains("WEIR") && !left.contains("weir"), "{left}");
}
