//! Agents that do not verify the API server.

use std::fs;

use serde_json::{Value, json};

use crate::site::{Site, run_to_end};

/// The warning about an unverified API server is logged once, independent of the number of
/// connections.
pub(crate) fn the_warning_is_logged_once(site: &Site) {
    let text = fs::read_to_string(site.kubeconfig("agent")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let cluster = config["clusters"][0]["cluster"].as_object_mut().unwrap();
    assert!(cluster.remove("certificate-authority").is_some());
    cluster.insert("insecure-skip-tls-verify".into(), json!(true));
    let server = cluster["server"].as_str().unwrap().to_owned();
    let path = site.kubeconfig("agent").with_file_name("careless");
    fs::write(&path, config.to_string()).unwrap();
    let mut agent = site.agent("n1", "n1", "demo_xyz1");
    let (code, said) = run_to_end(agent.env("KUBECONFIG", path).arg("--once"));
    assert_eq!(code, Some(0), "{said}");
    let warnings: Vec<&str> = said.lines().filter(|line| line.contains("WARN")).collect();
    let [warning] = &warnings[..] else { panic!("{said}") };
    assert!(warning.contains(&format!("the certificate of {server}/ is not verified")), "{said}");
}
