use std::fmt::Write;

use anyhow::Result;
use weir_iptables::Variant;

use super::{
    backend,
    cluster::{PORT, PolicyLoad, local, server},
    program::SystemProgram,
};
use crate::workload::LOCAL_PODS;

/// The same policies as iptables rules and ipsets, in kube-router's order.
pub(crate) struct LinearIptables {
    variant: Variant,
    sets: String,
    rules: String,
}

impl LinearIptables {
    pub(crate) fn new(cluster: PolicyLoad, variant: Variant) -> Self {
        LinearIptables { variant, sets: sets(cluster), rules: rules(cluster) }
    }

    /// Loads them in the namespace of this thread.
    pub(crate) fn load(&self) -> Result<()> {
        SystemProgram("ipset").run(&["restore"], &self.sets)?;
        backend::restore(self.variant).run(&["-w"], &self.rules).map(drop)
    }
}

fn sets(cluster: PolicyLoad) -> String {
    let mut text = String::new();
    for policy in 0..cluster.policies {
        _ = writeln!(text, "create peers-{policy} hash:ip maxelem 200000");
        for peer in cluster.peers(policy) {
            _ = writeln!(text, "add peers-{policy} {peer}");
        }
    }
    for (name, pods) in
        [("selected", vec![server()]), ("others", (0..LOCAL_PODS).map(local).collect())]
    {
        _ = writeln!(text, "create {name} hash:ip");
        for pod in pods {
            _ = writeln!(text, "add {name} {pod}");
        }
    }
    text
}

fn rules(cluster: PolicyLoad) -> String {
    let mut chains: Vec<String> =
        ["router-forward", "common", "policy-others"].map(str::to_owned).into();
    chains.extend((0..LOCAL_PODS).map(|pod| format!("pod-{pod}")));
    chains.extend((0..cluster.policies).map(|policy| format!("policy-{policy}")));
    let mut text = String::from("*filter\n");
    for chain in chains {
        _ = writeln!(text, ":{chain} - [0:0]");
    }
    let mut rule = |chain: &str, rest: &str| _ = writeln!(text, "-A {chain} {rest}");
    rule("FORWARD", "-m comment --comment \"kube-router netpol\" -j router-forward");
    rule("common", "-m conntrack --ctstate INVALID -j DROP");
    rule("common", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
    rule("common", "-p icmp -m icmp --icmp-type 8 -j ACCEPT");
    for pod in 0..LOCAL_PODS {
        let (chain, address) = (format!("pod-{pod}"), local(pod));
        for end in ["-d", "-s"] {
            let to = format!("-m comment --comment \"{chain}\" -j {chain}");
            rule("router-forward", &format!("{end} {address} {to}"));
            let bridged = "-m physdev --physdev-is-bridged";
            rule("router-forward", &format!("{end} {address} {bridged} {to}"));
        }
        rule(&chain, "-j common");
        rule(&chain, &format!("-d {address} -m addrtype --src-type LOCAL -j ACCEPT"));
        let policies = if address == server() {
            (0..cluster.policies).map(|policy| policy.to_string()).collect()
        } else {
            vec!["others".to_owned()]
        };
        for policy in policies {
            let to = format!("-d {address} -m comment --comment \"shop/{policy} policy\"");
            rule(&chain, &format!("{to} -j policy-{policy}"));
        }
        let log = "-m limit --limit 10/min --limit-burst 10 -j NFLOG --nflog-group 100";
        rule(&chain, &format!("-m mark ! --mark 0x10000/0x10000 {log}"));
        rule(&chain, "-m mark ! --mark 0x10000/0x10000 -j REJECT");
        rule(&chain, "-j MARK --set-xmark 0x0/0x10000");
        rule(&chain, "-j MARK --set-xmark 0x20000/0x20000");
    }
    rule("router-forward", "-m mark --mark 0x20000/0x20000 -j ACCEPT");
    let policies = (0..cluster.policies).map(|policy| (policy.to_string(), policy, "selected"));
    for (name, peers, selected) in policies.chain([("others".to_owned(), 0, "others")]) {
        let chain = format!("policy-{name}");
        for protocol in ["tcp", "udp"] {
            let fits = format!(
                "-m comment --comment \"shop/{name} ingress pods\" -m set --match-set peers-{peers} src \
                 -m set --match-set {selected} dst -p {protocol} -m {protocol} --dport {PORT}"
            );
            rule(&chain, &format!("{fits} -j MARK --set-xmark 0x10000/0x10000"));
            rule(&chain, &format!("{fits} -m mark --mark 0x10000/0x10000 -j RETURN"));
        }
    }
    text + "COMMIT\n"
}
