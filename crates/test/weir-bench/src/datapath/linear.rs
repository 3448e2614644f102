use std::fmt::{Display, Formatter, Result};

use super::cluster::{PORT, PolicyLoad, local, server};
use crate::workload::LOCAL_PODS;

/// The policies of a cluster in kube-router's layout, reduced to the rules on the path of a packet to a
/// pod. One rule per pod selects the pod's chain, and that chain calls the chains of its policies in
/// order, each with its own set, until one sets a mark.
pub(crate) struct Linear(pub(crate) PolicyLoad);

impl Display for Linear {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "table inet linear {{")?;
        for policy in 0..self.0.policies {
            let peers: Vec<String> = self.0.peers(policy).map(|peer| peer.to_string()).collect();
            let peers = peers.join(", ");
            writeln!(f, "set peers-{policy} {{ type ipv4_addr; elements = {{ {peers} }}; }}")?;
        }
        for policy in 0..self.0.policies {
            policy_chain(f, &format!("policy-{policy}"), policy)?;
        }
        policy_chain(f, "others", 0)?;
        for pod in 0..LOCAL_PODS {
            writeln!(f, "chain pod-{pod} {{")?;
            writeln!(f, "ct state established,related accept")?;
            writeln!(f, "ct state invalid drop")?;
            if local(pod) == server() {
                for policy in 0..self.0.policies {
                    writeln!(f, "jump policy-{policy}")?;
                }
            } else {
                writeln!(f, "jump others")?;
            }
            writeln!(f, "meta mark & 0x10000 == 0 reject")?;
            writeln!(f, "meta mark set meta mark & 0xfffeffff")?;
            writeln!(f, "meta mark set meta mark | 0x20000")?;
            writeln!(f, "}}")?;
        }
        writeln!(f, "chain forward {{")?;
        writeln!(f, "type filter hook forward priority filter; policy accept;")?;
        for pod in 0..LOCAL_PODS {
            let address = local(pod);
            writeln!(f, "ip daddr {address} jump pod-{pod}")?;
            writeln!(f, "ip saddr {address} jump pod-{pod}")?;
        }
        writeln!(f, "meta mark & 0x20000 == 0x20000 accept")?;
        writeln!(f, "}}\n}}")
    }
}

fn policy_chain(f: &mut Formatter<'_>, name: &str, peers: usize) -> Result {
    writeln!(f, "chain {name} {{")?;
    for protocol in ["tcp", "udp"] {
        writeln!(
            f,
            "ip saddr @peers-{peers} {protocol} dport {PORT} meta mark set meta mark | 0x10000"
        )?;
        writeln!(f, "meta mark & 0x10000 == 0x10000 return")?;
    }
    writeln!(f, "}}")
}
