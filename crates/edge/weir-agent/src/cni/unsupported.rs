//! Platforms without Unix sockets have no CNI plugin.

use std::{convert::Infallible, io, path::Path, sync::mpsc::SyncSender};

use crate::AgentEvent;

/// A socket that cannot exist.
#[derive(Debug)]
pub(crate) struct PluginSocket(Infallible);

impl PluginSocket {
    /// Always fails.
    pub(crate) fn bind(_: &Path) -> io::Result<PluginSocket> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// There is nothing to remove.
    pub(crate) fn remove(_: &Path) -> io::Result<()> {
        Ok(())
    }

    pub(crate) async fn serve(self, _: SyncSender<AgentEvent>) -> io::Result<()> {
        match self.0 {}
    }
}
