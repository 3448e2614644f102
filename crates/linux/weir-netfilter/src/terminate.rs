//! Ending established connections, for backends whose rules accept tracked connections.

use std::{collections::BTreeSet, net::IpAddr, thread, time::Duration};

use rustix::thread::{MembarrierCommand, membarrier};
use weir_datapath::{ApplyError, ApplyErrorKind};
use weir_model::{Flow, Protocol};

use crate::{Connection, Conntrack, ConntrackError};

/// How long a backend blocks the replies of a terminated TCP or SCTP connection.
const BLOCK_REPLIES: Duration = Duration::from_secs(24 * 60 * 60);

/// The same for UDP, where any packet may open a connection: the kernel's own timeout.
const BLOCK_UDP_REPLIES: Duration = Duration::from_secs(120);

/// The upper bound of the time a packet spends in the rules, for kernels without `membarrier`.
const PACKET_TIME: Duration = Duration::from_millis(20);

/// How long a backend blocks the replies of a terminated connection.
pub fn block_time(protocol: Protocol) -> Duration {
    match protocol {
        Protocol::Udp => BLOCK_UDP_REPLIES,
        Protocol::Tcp | Protocol::Sctp => BLOCK_REPLIES,
    }
}

/// Waits until every packet that was inside the rules has left them: until each CPU has
/// rescheduled once.
pub fn wait_for_packets() {
    if membarrier(MembarrierCommand::Global).is_err() {
        thread::sleep(PACKET_TIME);
    }
}

impl Conntrack {
    /// Ends the forbidden connections that involve one of `addresses`. Returns how many it ended.
    ///
    /// `block_replies` must make the rules drop the replies of these connections. Otherwise a reply
    /// in flight would look like a new connection in the other direction.
    pub fn terminate(
        &mut self,
        addresses: &BTreeSet<IpAddr>,
        is_forbidden: &dyn Fn(&Flow) -> bool,
        block_replies: impl FnOnce(&BTreeSet<Connection>) -> Result<(), ApplyError>,
    ) -> Result<usize, ApplyError> {
        // A connection that the old rules have just accepted is listed only afterwards.
        wait_for_packets();
        let mut forbidden = BTreeSet::new();
        let listed = self.list(|connection| {
            let flow = connection.flow();
            let is_involved = addresses.contains(&flow.from) || addresses.contains(&flow.to);
            if is_involved && is_forbidden(&flow) {
                forbidden.insert(connection);
            }
        });
        listed.map_err(ConntrackError::into_apply_error)?;
        block_replies(&forbidden)?;
        // An error on one connection must not keep the others alive.
        let mut first_error = None;
        for connection in &forbidden {
            let deleted = self.delete(connection).map_err(ConntrackError::into_apply_error);
            first_error = first_error.or(deleted.err());
        }
        first_error.map_or(Ok(forbidden.len()), Err)
    }
}

impl ConntrackError {
    /// The error of a datapath whose conntrack failed.
    pub fn into_apply_error(self) -> ApplyError {
        let what = "cannot terminate connections".to_owned();
        ApplyError { kind: ApplyErrorKind::Unavailable, what, source: self.into() }
    }
}
