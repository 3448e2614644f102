//! Output that is printed again every few seconds.

use std::{
    io::{self, Write},
    thread,
    time::Duration,
};

use super::agents::print_message;
use crate::exit::Exit;

/// The time between two readings.
const INTERVAL: Duration = Duration::from_secs(5);

/// Reads a state and writes it, again and again, until the reader of standard output closes the pipe.
/// The first reading must succeed. The message of a later failure is printed once.
pub(crate) fn refresh<T>(
    mut read: impl FnMut() -> anyhow::Result<T>,
    mut write: impl FnMut(T, &mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    // Unbuffered, so that each state appears when it was read.
    let mut out = anstream::stdout().lock();
    let mut last_failure = None;
    let mut state = Ok(read()?);
    loop {
        match state {
            Ok(state) => {
                last_failure = None;
                // One write, so that an interrupted command does not leave a part of a table.
                let mut text = Vec::new();
                write(state, &mut text)?;
                match out.write_all(&text).and_then(|()| out.flush()) {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        return Ok(Exit::Yes);
                    }
                    written => written?,
                }
            }
            Err(error) => {
                let failure = format!("{error:#}; trying again");
                if last_failure.as_ref() != Some(&failure) {
                    print_message(&failure);
                    last_failure = Some(failure);
                }
            }
        }
        thread::sleep(INTERVAL);
        state = read();
    }
}
