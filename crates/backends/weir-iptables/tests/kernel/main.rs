//! The kernel as third reader: random clusters, whose nodes enforce what was planned, and real connections in them.

mod agreement;
mod machine;
mod steps;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use weir_iptables::Variant;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if let Err(error) = weir_lab::enter() {
        eprintln!("error: {error}\nhint: {}", error.hint().unwrap_or("run the tests as root"));
        return ExitCode::FAILURE;
    }
    let mut trials = Vec::new();
    for variant in [Variant::Nft, Variant::Legacy] {
        let word = format!("{variant:?}").to_lowercase();
        let mut test = |name: &str, run: fn(Variant) -> Result<(), String>| {
            let run = move || run(variant).map_err(Into::into);
            trials.push(Trial::test(format!("{word}::{name}"), run));
        };
        test("engine_oracle_and_kernel_agree_on_random_clusters", agreement::all);
        test("change_by_change_the_kernel_has_what_a_fresh_start_would_put_there", steps::all);
        test("it_does_what_every_datapath_must", machine::conforms);
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
