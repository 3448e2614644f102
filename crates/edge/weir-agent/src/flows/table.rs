//! Connections of a datapath's own table that connection tracking does not report.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    mem,
    net::IpAddr,
    time::Duration,
};

use weir_datapath::TrackedConnection;
use weir_model::Protocol;

use super::Link;

/// The interval of readings.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);

/// Finds new connections by comparing readings of the table.
///
/// A connection that is new in one reading is returned with the next one, unless connection tracking
/// has reported it by then: its event can come a little later than the entry.
#[derive(Debug, Default)]
pub(super) struct TableDifference {
    hasher: RandomState,
    /// The connections of the last reading; `None` before the first.
    known: Option<HashSet<u64>>,
    /// The new ones among them.
    new: HashMap<u64, Link>,
    /// The connections that were reported since the last reading, and before it.
    reported: HashSet<u64>,
    reported_before: HashSet<u64>,
}

impl TableDifference {
    /// Connection tracking reported a connection.
    pub(super) fn report(&mut self, connection: &TrackedConnection) {
        let hash = self.hash(connection);
        self.reported.insert(hash);
    }

    /// The table and connection tracking number the messages of protocols without ports differently.
    fn hash(&self, connection: &TrackedConnection) -> u64 {
        let TrackedConnection { client: (from, _), server: (to, _), protocol } = connection;
        match Protocol::from_number(*protocol) {
            Some(_) => self.hasher.hash_one(connection),
            None => self.hasher.hash_one((from, to, protocol)),
        }
    }

    /// Takes a reading. Returns the connections that nothing else reported.
    ///
    /// The connections of the first reading are older than the agent and do not count.
    pub(super) fn read(
        &mut self,
        table: impl FnOnce(&mut dyn FnMut(TrackedConnection)),
    ) -> Vec<Link> {
        let mut known = HashSet::new();
        let mut new = HashMap::new();
        table(&mut |connection| {
            let hash = self.hash(&connection);
            known.insert(hash);
            if self.known.as_ref().is_some_and(|before| !before.contains(&hash)) {
                new.insert(hash, link(&connection));
            }
        });
        self.known = Some(known);
        let due = mem::replace(&mut self.new, new);
        let is_reported =
            |hash: &u64| self.reported.contains(hash) || self.reported_before.contains(hash);
        let found = due.into_iter().filter(|(hash, _)| !is_reported(hash));
        let found = found.map(|(_, link)| link).collect();
        self.reported_before = mem::take(&mut self.reported);
        found
    }
}

fn link(connection: &TrackedConnection) -> Link {
    let TrackedConnection { client: (from, _), server: (to, port), protocol } = *connection;
    let port = Protocol::from_number(protocol).map(|_| port);
    Link { from, to, protocol, port }
}

/// A connection as connection tracking reports it.
pub(super) fn tracked(
    client: (IpAddr, u16),
    server: (IpAddr, u16),
    protocol: u8,
) -> TrackedConnection {
    TrackedConnection { client, server, protocol }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(client_port: u16) -> TrackedConnection {
        let [client, server] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        tracked((client, client_port), (server, 80), 6)
    }

    fn read(difference: &mut TableDifference, ports: &[u16]) -> usize {
        let all = ports.iter().map(|port| connection(*port));
        difference.read(|each| all.for_each(each)).len()
    }

    #[test]
    fn connections_count_once_and_only_if_nothing_else_reports_them() {
        let mut difference = TableDifference::default();
        assert_eq!(read(&mut difference, &[1]), 0, "older than the agent");
        assert_eq!(read(&mut difference, &[1, 2, 3, 4]), 0, "events may be on their way");
        difference.report(&connection(2));
        assert_eq!(read(&mut difference, &[1, 2, 3]), 2, "even if one is gone");
        assert_eq!(read(&mut difference, &[1, 2, 3, 5]), 0);
        assert_eq!(read(&mut difference, &[5]), 1);
        difference.report(&connection(6));
        assert_eq!(read(&mut difference, &[5, 6]), 0);
        assert_eq!(read(&mut difference, &[5, 6]), 0, "reported before its entry was read");
    }

    #[test]
    fn a_table_that_comes_later_has_only_new_connections() {
        let mut difference = TableDifference::default();
        assert_eq!(read(&mut difference, &[]), 0);
        assert_eq!(read(&mut difference, &[1]), 0);
        assert_eq!(read(&mut difference, &[1]), 1);
    }
}
