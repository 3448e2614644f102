//! The definitions that `weir crds` prints: their rules in CEL, evaluated here, and by an API server that knows CEL if there is one.
//!
//! The API server of the other tests is too old for that. `cargo xtask test crds` gets a newer one for definitions alone; a newer
//! kube-apiserver in KUBEBUILDER_ASSETS does as well. Without either the tests that need it are not run, which is said, and do
//! not count.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod cases;
mod rules;
mod server;
#[path = "../live/yaml.rs"]
mod yaml;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = vec![
        trial("rules_refuse_what_they_should_and_nothing_else", rules::refuse_what_they_should),
        trial("every_rule_is_broken_by_some_object", rules::are_all_tried),
    ];
    if server::is_there() {
        trials.push(trial(
            "an_api_server_takes_all_definitions_and_refuses_the_same",
            server::agrees,
        ));
    } else {
        eprintln!(
            "not run: definitions at an API server that evaluates CEL; `cargo xtask test crds` gets one and runs it"
        );
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}
