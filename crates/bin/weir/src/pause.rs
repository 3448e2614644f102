use std::thread;

use clap::Args;

use crate::exit::Exit;

/// Wait until the process is killed
///
/// Keeps a container running that has nothing left to do. Its pod needs a short grace period.
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct PauseCommand {}

impl PauseCommand {
    pub(crate) fn run(&self) -> anyhow::Result<Exit> {
        loop {
            thread::park();
        }
    }
}
