//! The CEL rules of the definitions that `weir crds` prints, and of the definitions of admin
//! policies, evaluated here and, if available, by an API server that supports CEL.
//!
//! The API server of the other tests is too old for CEL. `cargo xtask test crds` installs a newer
//! one for definitions alone; a newer kube-apiserver in KUBEBUILDER_ASSETS works as well. Without
//! either, the test that needs it is skipped with a message.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

mod cases;
mod policies;
mod rules;
mod server;
#[path = "../live/yaml.rs"]
mod yaml;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = vec![
        trial("rules_reject_invalid_objects_and_nothing_else", rules::reject_invalid_objects),
        trial("every_rule_is_violated_by_some_object", rules::are_all_tested),
        trial("rules_for_admin_policies_reject_invalid_objects", policies::rules_agree),
        trial("weir_rejects_admin_policies_as_the_rules_do", policies::weir_agrees),
    ];
    if server::is_available() {
        trials.push(trial(
            "an_api_server_accepts_all_definitions_and_rejects_the_same_objects",
            server::agrees,
        ));
        trials
            .push(trial("an_api_server_rejects_the_same_admin_policies", policies::server_agrees));
    } else {
        eprintln!(
            "skipped: definitions on an API server that evaluates CEL; `cargo xtask test crds` installs one and runs it"
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
