//! A cluster starts, stops and leaves no process or folder behind.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

use std::{panic, path::PathBuf, process::Command};

use serde_json::json;
use weir_cluster::{Cluster, Right};

/// The processes that have the folder among their arguments.
fn processes_of(folder: &std::path::Path) -> usize {
    let output = Command::new("ps").args(["-eo", "args"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|line| line.contains(folder.to_str().unwrap())).count()
}

#[test]
fn objects_survive_a_restart_and_users_have_their_permissions_only() {
    let mut cluster = Cluster::start().unwrap();
    let namespaces = "/api/v1/namespaces";
    cluster.create(namespaces, &json!({"metadata": {"name": "shop"}})).unwrap();
    let right = Right { group: "", resources: &["namespaces"], verbs: &["get", "list"] };
    let user = cluster.user("reader", &[right]).unwrap();
    assert_ne!(user.token, cluster.admin().token);
    cluster.stop_server();
    assert!(cluster.get("/api/v1/namespaces/shop").is_err());
    cluster.start_server().unwrap();
    let shop = cluster.get("/api/v1/namespaces/shop").unwrap();
    assert_eq!(shop["metadata"]["name"], "shop");
    cluster.compact().unwrap();
    let folder = cluster.folder().to_owned();
    drop(cluster);
    assert!(!folder.exists());
    assert_eq!(processes_of(&folder), 0);
}

#[test]
fn a_panic_leaves_nothing_behind() {
    let mut folder = PathBuf::new();
    let result = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        let cluster = Cluster::start().unwrap();
        folder = cluster.folder().to_owned();
        assert!(processes_of(&folder) >= 2);
        panic!("a failing test");
    }));
    assert!(result.is_err());
    assert_ne!(folder, PathBuf::new());
    assert!(!folder.exists());
    assert_eq!(processes_of(&folder), 0);
}
