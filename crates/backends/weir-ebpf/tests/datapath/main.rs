//! The backend in a real kernel: packets and connections.
//! Needs root, a kernel with netfilter programs (6.6), and the program `ip`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests without the default harness")]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod backend;
#[cfg(target_os = "linux")]
mod disturb;
#[cfg(target_os = "linux")]
mod fast_lane;
#[cfg(target_os = "linux")]
mod own;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    backend::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
