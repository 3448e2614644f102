//! A node with two pods.

use std::{
    io::Write,
    net::IpAddr,
    process::{Command, Stdio},
    time::Duration,
};

use libtest_mimic::Trial;
use weir_lab::{Lab, LabNode, LabPod, Layout};
use weir_model::{Flow, PodId, Protocol};

pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The addresses of both pods, in both families.
pub(crate) const A: &str = "10.0.0.1";
pub(crate) const B: &str = "10.0.0.2";
pub(crate) const A6: &str = "fd00::1";
pub(crate) const B6: &str = "fd00::2";

/// A node with these rules in its forward hook.
pub(crate) fn node(rules: &str) -> Lab {
    let pod = |name: &str, addresses: [&str; 2]| LabPod {
        id: PodId::new("shop", name),
        addresses: addresses.map(address).to_vec(),
        node: "node".into(),
        host_network: false,
    };
    let lab = Lab::build(&Layout {
        nodes: vec![LabNode { name: "node".into(), addresses: vec![address("192.168.0.1")] }],
        pods: vec![pod("a", [A, A6]), pod("b", [B, B6])],
        ..Layout::default()
    })
    .unwrap();
    load(
        &lab,
        &format!(
            "table inet test {{ chain f {{ type filter hook forward priority 0; {rules}; }}; }}"
        ),
    );
    lab
}

/// Loads more rules.
#[track_caller]
pub(crate) fn load(lab: &Lab, rules: &str) {
    let run = || {
        let mut child = Command::new("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the `nft` program is installed");
        child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = lab.on_node("node", run).unwrap();
    assert!(output.status.success(), "{}\n{rules}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn address(address: &str) -> IpAddr {
    address.parse().unwrap()
}

pub(crate) fn flow(from: &str, to: &str, protocol: Protocol, port: u16) -> Flow {
    Flow { from: address(from), to: address(to), protocol, port }
}

pub(crate) fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}
