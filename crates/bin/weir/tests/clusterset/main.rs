//! Two clusters and a broker, each with a real API server, with controllers, agents and real
//! packets between the clusters. `cargo xtask cluster build` provides the server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod away;
#[path = "../cluster/objects.rs"]
#[allow(dead_code, reason = "others need more of it")]
mod objects;
mod packets;
mod set;
#[path = "../cluster/site.rs"]
#[allow(dead_code, reason = "others need more of it")]
mod site;

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

use set::Set;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // All tests share one ClusterSet, which they stop and start.
    arguments.test_threads = Some(1);
    if !arguments.list {
        if let Err(error) = weir_lab::enter() {
            eprintln!("error: {error}\nhint: {}", error.hint().unwrap_or("run the tests as root"));
            return ExitCode::FAILURE;
        }
        // The API servers listen on the loopback of an empty network namespace.
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.is_ok_and(|status| status.success()), "`ip link set lo up` has failed");
    }
    let trials = vec![
        trial("policies_apply_between_clusters", packets::follow_policies),
        trial("rules_follow_changes_of_remote_pods", packets::follow_pods),
        trial("rules_follow_the_labels_of_remote_namespaces", packets::follow_namespaces),
        trial("while_the_broker_is_down_no_verdict_changes", away::broker),
        trial("a_killed_member_expires_and_returns", away::member),
    ];
    let conclusion = libtest_mimic::run(&arguments, trials);
    set::end();
    conclusion.exit_code()
}

fn trial(name: &str, test: fn(&mut Set)) -> Trial {
    Trial::test(name, move || {
        set::with(test);
        Ok(())
    })
}
