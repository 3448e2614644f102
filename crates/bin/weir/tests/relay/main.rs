//! An agent, relays and real packets. The API server is one of this test, so that each trial decides
//! what it answers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

#[expect(dead_code, reason = "the tests of the relay need more of it")]
#[path = "../../../../edge/weir-relay/tests/relay/api.rs"]
mod api;
#[path = "../../../../edge/weir-relay/tests/relay/certificate.rs"]
mod certificate;
#[path = "../cluster/partition.rs"]
mod partition;
#[path = "../agent/prober.rs"]
mod prober;
mod site;
mod trouble;

use std::process::ExitCode;

use weir_trials::trial;

fn main() -> ExitCode {
    let trials = vec![trial("failures_of_relays_change_no_verdict", trouble::no_verdict_changes)];
    weir_trials::main(|| trials)
}
