//! Platforms without Unix sockets have no CNI plugin.

use std::{convert::Infallible, io, path::Path, sync::mpsc::SyncSender};

use crate::Event;

/// A socket that cannot exist.
#[derive(Debug)]
pub(crate) struct Socket(Infallible);

impl Socket {
    /// Always fails.
    pub(crate) fn bind(_: &Path) -> io::Result<Socket> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) async fn serve(self, _: SyncSender<Event>) -> io::Result<()> {
        match self.0 {}
    }
}
