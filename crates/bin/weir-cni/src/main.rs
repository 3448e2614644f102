//! The plugin, as a program.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let variable = |name: &str| std::env::var(name).ok();
    ExitCode::from(weir_cni::run(weir_cni::Call {
        arguments: std::env::args().skip(1).collect(),
        variable: &variable,
        input: &mut std::io::stdin(),
        output: &mut std::io::stdout(),
        messages: &mut std::io::stderr(),
    }))
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("error: weir-cni is for Linux\nhint: build it for a Linux target");
    ExitCode::from(2)
}
