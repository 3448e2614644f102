//! `weir check`, in network namespaces that take the place of nodes.

use std::process::{Command, Output};

use crate::{stderr, stdout};

/// Runs `weir check` in a new network namespace, after a script that prepares it.
fn check(prepare: &str, arguments: &str) -> Output {
    // A file system that shows the links of the new namespace.
    let script =
        format!(r#"mount -t sysfs sysfs /sys && {prepare} && exec "$0" check {arguments}"#);
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_weir")]);
    command.output().unwrap()
}

#[test]
fn a_node_that_lacks_nothing_passes() {
    for datapath in ["nftables", "iptables"] {
        let output = check("true", &format!("--datapath {datapath}"));
        assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn settings_and_other_engines_are_named() {
    let prepare = "nft add table ip calico && ip link add cni0 type bridge && \
                   echo 0 >/proc/sys/net/bridge/bridge-nf-call-ip6tables";
    let output = check(prepare, "");
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}{}", stderr(&output));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("net.bridge.bridge-nf-call-ip6tables is 0"), "{text}");
    assert!(lines[1].starts_with("rules of Calico also filter packets of pods"), "{text}");
}

#[test]
fn without_permission_the_datapath_is_named() {
    let weir = env!("CARGO_BIN_EXE_weir");
    let mut command = Command::new("unshare");
    command.args(["--net", "setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]);
    let output = command.args([weir, "check"]).output().unwrap();
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}{}", stderr(&output));
    assert!(text.contains("CAP_NET_ADMIN"), "{text}");
}

#[test]
fn a_datapath_without_a_kernel_has_no_check() {
    let output = check("true", "--datapath opflex");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("`--datapath nftables`"), "{}", stderr(&output));
}
