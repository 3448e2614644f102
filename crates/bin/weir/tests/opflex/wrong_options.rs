//! Agents with wrong options.

use std::fs;

use crate::site::{Site, eventually, run_to_end};

/// A file of an earlier agent.
const LEFT: &str = "demo_xyz1_np_left.netpol";

/// Agents with an unknown node, a wrong prefix, a wrong namespace or a missing folder write nothing
/// and report the problem.
pub(crate) fn agents_with_wrong_options(site: &Site) {
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
        let (code, said) = run_to_end(site.agent("n1", name, prefix).args(more).arg("--once"));
        assert!(code == Some(1) && said.contains(why), "{code:?} {said}");
        assert_eq!(site.files("n1"), [LEFT]);
    }
    let (code, said) = run_to_end(&mut site.agent("n3", "n1", "demo_xyz1"));
    assert!(code == Some(2) && said.contains("cannot read the folder"), "{code:?} {said}");
    assert!(said.contains("hint: opflex-agent creates it"), "{said}");

    // A running agent reports the problem over HTTP.
    let agent = site.start_with_wrong_prefix("n1");
    let why = "is kube_node_n1, the one of this node";
    eventually("the agent reports its problem", || {
        site.get_from_agent("n1", "/readyz")
            .is_some_and(|(code, body)| code == 503 && body.contains(why))
    });
    let (_, status) = site.get_from_agent("n1", "/status").unwrap();
    assert!(status.contains(why) && status.contains("\"inSync\":false"), "{status}");
    assert_eq!(site.files("n1"), [LEFT]);
    agent.stop();

    // With the right options, `--once` writes the files.
    let (code, said) = run_to_end(site.agent("n1", "n1", "demo_xyz1").arg("--once"));
    assert!(
        code == Some(0) && said.contains("removed demo_xyz1_np_left.netpol"),
        "{code:?} {said}"
    );
    assert_eq!(site.files("n1").len(), 4);
}
