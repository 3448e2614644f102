//! Agents that are not told who they are.

use std::fs;

use crate::site::{Site, end_of, eventually};

/// What an earlier agent has left.
const LEFT: &str = "demo_xyz1_np_left.netpol";

/// Agents with the name of no node, with another prefix, with another namespace and without a
/// folder: none of them touches anything, and all say what is wrong.
pub(crate) fn strangers(site: &Site) {
    fs::write(site.folder("n1").join(LEFT), "[]").unwrap();
    let all = "HostprotPols in namespace aci-containers-system is";
    let wrong: [(&str, &str, &[&str], &str); 3] = [
        (
            "n9",
            "demo_xyz1",
            &[],
            &format!(
                "{all} demo_xyz1_node_n9, the one of this node; the files stay unchanged; other nodes have one: n1, n2: check --node"
            ),
        ),
        ("n1", "kube", &[], "this node has one with the prefix demo_xyz1: check --aci-prefix"),
        (
            "n1",
            "demo_xyz1",
            &["--hpp-namespace", "default"],
            "there are no HostprotPols in namespace default",
        ),
    ];
    for (name, prefix, more, why) in wrong {
        let (code, said) = end_of(site.agent("n1", name, prefix).args(more).arg("--once"));
        assert!(code == Some(1) && said.contains(why), "{code:?} {said}");
        assert_eq!(site.files("n1"), [LEFT]);
    }
    let (code, said) = end_of(&mut site.agent("n3", "n1", "demo_xyz1"));
    assert!(code == Some(2) && said.contains("cannot read the folder"), "{code:?} {said}");
    assert!(said.contains("hint: opflex-agent creates it"), "{said}");

    // One that stays says so to whoever asks.
    let stranger = site.start_stranger("n1");
    let why = "is kube_node_n1, the one of this node";
    eventually("a word of the stranger", || {
        site.ask_agent("n1", "/readyz")
            .is_some_and(|(code, body)| code == 503 && body.contains(why))
    });
    let (_, status) = site.ask_agent("n1", "/status").unwrap();
    assert!(status.contains(why) && status.contains("\"inSync\":false"), "{status}");
    assert_eq!(site.files("n1"), [LEFT]);
    stranger.stop();

    // One that is told who it is does once what is to be done.
    let (code, said) = end_of(site.agent("n1", "n1", "demo_xyz1").arg("--once"));
    assert!(
        code == Some(0) && said.contains("removed demo_xyz1_np_left.netpol"),
        "{code:?} {said}"
    );
    assert_eq!(site.files("n1").len(), 4);
}
