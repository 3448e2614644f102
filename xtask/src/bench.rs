//! `cargo xtask bench`: installs the programs that a benchmark needs, then runs weir-bench.

use anyhow::Result;

use crate::{cluster, shell, test};

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let prints_help = arguments.iter().any(|word| ["help", "-h", "--help"].contains(word));
    match arguments.first() {
        _ if prints_help => {}
        Some(&"datapath") => test::kernel_tools()?,
        Some(&("cluster" | "fleet")) => {
            test::kernel_tools()?;
            cluster::build()?;
        }
        Some(&"hpp") if !arguments.contains(&"--memory") => cluster::build()?,
        _ => {}
    }
    let mut bench = shell::command("cargo", &["run", "--release", "-p", "weir-bench", "--"]);
    bench.args(arguments);
    shell::run(bench)
}
