//! Beside aci-containers: its settings, the names of its groups, and `/hpp`.

use std::fs;

use serde_json::{Value, json};
use weir_cluster::http_get;

use crate::{
    policy, schema,
    site::{Site, eventually, free_ports},
};

fn config(direct: bool) -> Value {
    let settings = json!({"enable-hpp-direct": direct}).to_string();
    json!({
        "metadata": {"name": "aci-containers-config"},
        "data": {"controller-config": settings, "host-agent-config": "{}"},
    })
}

const CONFIG: &str = "/api/v1/namespaces/aci-containers-system/configmaps";

#[test]
fn weir_runs_beside_aci_containers() {
    let mut site = Site::new();
    site.pod("default", "web", "n1", &["10.2.0.10"], json!({"app": "web"}));
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    site.cluster.create(policies, &policy("one", "web")).unwrap();
    site.cluster.create(policies, &policy("two", "web")).unwrap();

    // With enable-hpp-direct, aci-containers writes the objects itself.
    site.cluster.create(CONFIG, &config(true)).unwrap();
    site.start_controller();
    eventually("the reason", || {
        let log = fs::read_to_string(site.log()).unwrap();
        log.contains("`enable-hpp-direct` is true in controller-config of the ConfigMap")
    });
    assert_eq!(site.pols(), [""; 0]);
    // They are not weir's to remove.
    let theirs = json!({
        "apiVersion": "aci.hpp/v1",
        "kind": "HostprotPol",
        "metadata": {"name": "demo-xyz1-np-theirs"},
        "spec": {"name": "demo_xyz1_np_theirs"},
    });
    site.cluster.create(&site.path("hostprotpols"), &theirs).unwrap();
    let (code, said) = site.cleanup("controller", &[]);
    let why = "`enable-hpp-direct` is true in controller-config of the ConfigMap";
    assert!(code == Some(2) && said.contains(why), "{code:?} {said}");
    assert_eq!(site.pols(), ["demo-xyz1-np-theirs"]);
    site.cluster.patch(&format!("{CONFIG}/aci-containers-config"), &config(false)).unwrap();
    eventually("objects", || site.pols().len() == 6);

    // Without it, host agents name the groups after the policies.
    let [port, standby, metrics] = free_ports();
    let address = format!("127.0.0.1:{port}");
    let at = format!("127.0.0.1:{metrics}");
    let names = ["--group-names", "policy", "--hpp-http", &address, "--metrics", &at];
    site.start_agent_with("n1", &names);
    let own = ["demo_xyz1_np_default_one.netpol", "demo_xyz1_np_default_two.netpol"];
    eventually("a file for each policy", || {
        let files = site.files("n1");
        files.len() == 6 && own.iter().all(|name| files.contains(&(*name).to_owned()))
    });
    eventually("a ready agent", || site.ask_agent("n1", "status").0 == Some(0));
    let (_, said) = site.ask_agent("n1", "status");
    assert!(said.contains("datapath    opflex: ") && said.contains("6 files"), "{said}");
    let (_, said) = site.ask_agent("n1", "status -o json");
    schema::check(&serde_json::from_str(&said).unwrap());
    let scrape = |path: &str| http_get(([127, 0, 0, 1], metrics).into(), path).unwrap();
    let (code, text) = scrape("/metrics");
    assert!(code == 200 && text.contains("weir_opflex_in_sync 1"), "{text}");
    assert_eq!(scrape("/status").0, 404);
    let (code, said) = site.ask_agent("n1", "drops");
    let why = "writes files for opflex-agent, and weir does not see the packets";
    assert!(code == Some(2) && said.contains(why), "{code:?} {said}");
    assert_eq!(
        site.rendered_with("n1", &["--group-names", "policy"]),
        site.on_disk("n1"),
        "`weir render` prints the same files"
    );
    let text = site.file("n1", own[0]).unwrap();
    assert!(text.contains("GbpLocalSecGroup/demo_xyz1_np_default_one/"), "{text}");
    site.cluster.delete(&format!("{policies}/two")).unwrap();
    eventually("the file of the second to go", || site.file("n1", own[1]).is_none());
    assert_eq!(site.file("n1", own[0]), Some(text));

    // The agent serves /hpp as the leader does, and a standby names the leader.
    let hpp = |port: u16| http_get(([127, 0, 0, 1], port).into(), "/hpp");
    eventually("the same /hpp", || {
        hpp(port).is_some_and(|(code, text)| {
            code == 200 && serde_json::from_str::<Value>(&text).unwrap() == site.hpp()
        })
    });
    let _standby = site.start_standby(standby);
    eventually("the leader's name", || {
        hpp(standby).is_some_and(|(code, text)| {
            code == 503
                && text.starts_with("this process is a standby; ")
                && text.ends_with(" leads\n")
        })
    });
    site.stop_controller();
    eventually("the standby to lead", || hpp(standby).is_some_and(|(code, _)| code == 200));
}
