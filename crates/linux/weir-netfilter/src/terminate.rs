//! Ending established connections, for backends whose rules accept tracked connections.

use std::{
    collections::BTreeSet,
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::thread::{MembarrierCommand, membarrier};
use weir_datapath::{ApplyError, ApplyErrorKind, EndingFlows};
use weir_model::Protocol;

use crate::{Connection, Conntrack, ConntrackError, address::addresses_over, ending::Endings};

/// How long a backend blocks the replies of a terminated TCP or SCTP connection.
const BLOCK_REPLIES: Duration = Duration::from_secs(24 * 60 * 60);

/// The same for UDP, where any packet may open a connection: the kernel's own timeout.
const BLOCK_UDP_REPLIES: Duration = Duration::from_secs(120);

/// The same for all other protocols: the kernel's own timeout.
const BLOCK_OTHER_REPLIES: Duration = Duration::from_secs(600);

/// The upper bound of the time a packet spends in the rules, for kernels without `membarrier`.
const PACKET_TIME: Duration = Duration::from_millis(20);

/// How long a backend blocks the replies of a terminated connection.
pub fn block_time(protocol: u8) -> Duration {
    match Protocol::from_number(protocol) {
        Some(Protocol::Udp) => BLOCK_UDP_REPLIES,
        Some(Protocol::Tcp | Protocol::Sctp) => BLOCK_REPLIES,
        None => BLOCK_OTHER_REPLIES,
    }
}

/// Waits until every packet that was inside the rules has left them: until each CPU has
/// rescheduled once.
pub fn wait_for_packets() {
    if membarrier(MembarrierCommand::Global).is_err() {
        thread::sleep(PACKET_TIME);
    }
}

/// A wait for packets by another thread.
#[derive(Debug, Default)]
pub(crate) struct PacketWait(Option<JoinHandle<()>>);

impl PacketWait {
    /// Whether every packet has left the rules that was inside at the first call.
    fn is_over(&mut self) -> bool {
        if self.0.is_none() {
            self.0 = thread::Builder::new().name("packets".into()).spawn(wait_for_packets).ok();
        }
        // Without a thread, `end` waits.
        self.0.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the rest of the time. The next call of `is_over` is a first call again.
    fn end(&mut self) {
        if self.0.take().is_none_or(|thread| thread.join().is_err()) {
            wait_for_packets();
        }
    }
}

impl Conntrack {
    /// Whether all packets have left the rules that were inside at the first call since the last
    /// `terminate`. It does not wait.
    pub fn have_packets_left(&mut self) -> bool {
        self.packets.is_over()
    }

    /// Ends connections. Returns how many it ended. It waits until `have_packets_left`.
    ///
    /// `block_replies` must make the rules drop the replies of these connections. Otherwise a reply
    /// in flight would look like a new connection in the other direction.
    pub fn terminate(
        &mut self,
        ending: &EndingFlows<'_>,
        block_replies: impl FnOnce(&BTreeSet<Connection>) -> Result<(), ApplyError>,
    ) -> Result<usize, ApplyError> {
        let own = addresses_over(&mut self.route).map_err(ConntrackError::Addresses);
        let own = own.map_err(ConntrackError::into_apply_error)?;
        // A connection that the old rules have just accepted is listed only afterwards.
        self.packets.end();
        let mut endings = Endings::default();
        let listed = self.list(|connection| endings.add(connection, ending, &own));
        listed.map_err(ConntrackError::into_apply_error)?;
        endings.add_expected();
        let Endings { all, to_block, .. } = endings;
        block_replies(&to_block)?;
        // An error on one connection must not keep the others alive.
        let mut first_error = None;
        for connection in &all {
            let deleted = self.delete(connection).map_err(ConntrackError::into_apply_error);
            first_error = first_error.or(deleted.err());
        }
        first_error.map_or(Ok(all.len()), Err)
    }
}

impl ConntrackError {
    /// The error of a datapath whose conntrack failed.
    pub fn into_apply_error(self) -> ApplyError {
        let what = "cannot terminate connections".to_owned();
        ApplyError { kind: ApplyErrorKind::Unavailable, what, source: self.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_wait_for_packets_ends_and_starts_again() {
        let mut wait = PacketWait::default();
        for _ in 0..2 {
            let end = Instant::now() + Duration::from_secs(60);
            while !wait.is_over() {
                assert!(Instant::now() < end, "it takes milliseconds");
                thread::sleep(Duration::from_millis(1));
            }
            wait.end();
            assert!(wait.0.is_none());
        }
        // Without a thread, the caller waits.
        wait.end();
    }
}
