use weir_datapath::{ApplyError, Mode, Rejection};
use weir_iptables::{Iptables, Variant};
use weir_trials::{Backend, Rejects};

use crate::node;

/// A variant of iptables, as a backend of the common trials.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables(pub(crate) Variant);

impl Backend for Tables {
    type Datapath = Iptables;

    fn open(self, mode: Mode) -> Result<Iptables, ApplyError> {
        Iptables::open(mode, Some(self.0))
    }

    fn iptables(self) -> [&'static str; 2] {
        match self.0 {
            Variant::Nft => ["iptables-nft", "ip6tables-nft"],
            Variant::Legacy => ["iptables-legacy", "ip6tables-legacy"],
        }
    }

    fn guard_disturbances(self) -> Vec<String> {
        let [v4, v6] = ["iptables", "ip6tables"].map(|name| node::program(name, self.0));
        vec![
            format!("{v4} -t raw -F PREROUTING"),
            format!("{v6} -t raw -F WEIR-GUARD"),
            format!("{v4} -t raw -I WEIR-SPOOFED 1 -j RETURN"),
            format!("{v4} -t raw -I PREROUTING 1 -j ACCEPT"),
            "ipset del weir-own 10.0.0.1,p0".to_owned(),
            "ipset flush weir-records".to_owned(),
        ]
    }

    fn disturbances(self) -> Vec<String> {
        let [v4, v6] = ["iptables", "ip6tables"].map(|name| node::program(name, self.0));
        vec![
            format!("{v4} -I KUBE-ROUTER-FORWARD 1 -j DROP"),
            format!("{v4} -F KUBE-NWPLCY-COMMON"),
            format!("{v4} -F FORWARD"),
            "ipset flush KUBE-DST-LOCAL".to_owned(),
            format!("{v6} -F KUBE-NWPLCY-COMMON"),
        ]
    }
}

impl Rejects for Tables {
    fn open_rejecting(self, mode: Mode, rejection: Rejection) -> Result<Iptables, ApplyError> {
        self.open(mode).map(|tables| tables.with_rejection(rejection))
    }
}
