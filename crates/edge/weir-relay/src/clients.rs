//! Connections whose token has not been reviewed, counted by client.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The most such connections of one client, so that few pods cannot take the places of agents.
const MAX_OF_CLIENT: usize = 32;

/// The number of connections of each client.
#[derive(Debug, Default)]
pub(crate) struct UnreviewedConnections(Mutex<HashMap<IpAddr, usize>>);

/// A connection that counts until this is dropped.
#[derive(Debug)]
pub(crate) struct UnreviewedConnection {
    client: IpAddr,
    all: Arc<UnreviewedConnections>,
}

impl UnreviewedConnections {
    /// Counts a connection; `None` if the client has too many.
    pub(crate) fn enter(self: &Arc<Self>, client: IpAddr) -> Option<UnreviewedConnection> {
        let client = client.to_canonical();
        let mut counts = self.counts();
        let count = counts.entry(client).or_default();
        if *count >= MAX_OF_CLIENT {
            return None;
        }
        *count += 1;
        Some(UnreviewedConnection { client, all: self.clone() })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnreviewedConnection {
    fn drop(&mut self) {
        let mut counts = self.all.counts();
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_client_has_a_limited_number_of_connections() {
        let unreviewed = Arc::new(UnreviewedConnections::default());
        let [one, other] = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(10, 0, 0, last)));
        let mut entered: Vec<UnreviewedConnection> =
            (0..MAX_OF_CLIENT).map(|_| unreviewed.enter(one).unwrap()).collect();
        let IpAddr::V4(v4) = one else { unreachable!() };
        assert!(unreviewed.enter(one).is_none());
        assert!(unreviewed.enter(v4.to_ipv6_mapped().into()).is_none());
        assert!(unreviewed.enter(other).is_some());
        entered.pop();
        assert!(unreviewed.enter(one).is_some());
        drop(entered);
        assert!(unreviewed.counts().is_empty());
    }
}
