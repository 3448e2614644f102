//! Removal of weir's rules and sets when another datapath replaces them.
//!
//! Unlike a cleanup, it recognizes weir's rules and leaves those of kube-router alone. It removes
//! the rules of iptables-nft over netlink, because the image of another datapath does not have the
//! iptables programs.

use std::collections::BTreeMap;

use weir_datapath::ApplyError;
use weir_model::Name;
use weir_netfilter::{BlockedReply, Tuple};

use crate::{
    Entry, Installed, Variant,
    apply::failed,
    guard::{self, GuardRules},
    installed::Table,
    kernel::{Kernel, KernelError},
    name, nf_tables, replan, skeleton,
};

/// Above this number of ports of both ends, all replies between two addresses are blocked.
const MAX_TUPLES_PER_PAIR: usize = 4096;

/// Removes the tables that kube-router has in nftables, in the network namespace of the calling thread.
pub fn remove_kube_router_tables() -> Result<(), ApplyError> {
    nf_tables::remove_kube_router_tables().map_err(failed("cannot remove kube-router's tables"))
}

impl Kernel {
    /// Removes weir's rules of this variant, in one step for each family.
    pub(crate) fn remove_superseded_rules(&mut self) -> Result<(), KernelError> {
        match self.variant() {
            Variant::Nft => nf_tables::remove_rules(),
            Variant::Legacy => {
                let mut tables = self.read_tables()?;
                tables.retain(|_, table| is_weirs(table));
                let installed = Installed { tables, ..Installed::default() };
                self.run_plan(&replan::removal(&installed))?;
                self.write_guard_rules(&GuardRules::default())
            }
        }
    }

    /// Destroys our sets, except those that rules use.
    pub(crate) fn remove_unused_sets(&mut self) -> Result<(), KernelError> {
        let names = self.read_set_names()?;
        let guard = guard::all_sets();
        let is_ours = |name: &Name| name::is_our_set(name) || guard.contains(name);
        let sets = names.into_iter().filter(is_ours);
        let sets = sets.map(|name| (name, Default::default())).collect();
        let installed = Installed { sets, ..Installed::default() };
        self.run_plan(&replan::removal(&installed))
    }
}

/// Whether the chains of a table are weir's and not kube-router's.
fn is_weirs(table: &Table) -> bool {
    table.chains.contains_key(&skeleton::terminated())
}

/// The replies that the two sets block together. A packet must be in both.
pub(crate) fn join_blocked(senders: &[Entry], receivers: &[Entry]) -> Vec<BlockedReply> {
    let mut ports: BTreeMap<_, (Vec<u16>, Vec<u16>)> = BTreeMap::new();
    for entry in senders {
        if let Some((at, protocol, port, peer)) = parts(entry) {
            ports.entry((protocol, at, peer)).or_default().0.push(port);
        }
    }
    for entry in receivers {
        if let Some((at, protocol, port, peer)) = parts(entry) {
            ports.entry((protocol, peer, at)).or_default().1.push(port);
        }
    }
    let mut replies = Vec::new();
    for ((protocol, source, destination), (from, to)) in ports {
        let mut add = |source_port, destination_port| {
            let tuple = Tuple { source, destination, source_port, destination_port };
            replies.push(BlockedReply { protocol, tuple });
        };
        if from.len().saturating_mul(to.len()) > MAX_TUPLES_PER_PAIR {
            add(0, 0);
        } else {
            from.iter().for_each(|from| to.iter().for_each(|to| add(*from, *to)));
        }
    }
    replies
}

/// The address, protocol, port and peer of an entry.
fn parts(entry: &Entry) -> Option<(std::net::IpAddr, u8, u16, std::net::IpAddr)> {
    match *entry {
        Entry::Grant(at, protocol, port, peer) => Some((at, protocol.number(), port, peer)),
        Entry::Pair(at, protocol, peer) => Some((at, protocol, 0, peer)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use weir_model::Protocol;

    use super::*;

    #[test]
    fn a_reply_is_blocked_if_both_sets_have_it() {
        let [server, client] = [[10, 0, 0, 2], [10, 0, 0, 1]].map(IpAddr::from);
        let senders =
            [Entry::Grant(server, Protocol::Tcp, 80, client), Entry::Pair(server, 47, client)];
        let receivers = [
            Entry::Grant(client, Protocol::Tcp, 40_000, server),
            Entry::Grant(client, Protocol::Tcp, 40_001, server),
            Entry::Grant(client, Protocol::Udp, 5_000, server),
            Entry::Pair(client, 47, server),
        ];
        let reply = |protocol, source_port, destination_port| BlockedReply {
            protocol,
            tuple: Tuple { source: server, destination: client, source_port, destination_port },
        };
        let expected = [reply(6, 80, 40_000), reply(6, 80, 40_001), reply(47, 0, 0)];
        assert_eq!(join_blocked(&senders, &receivers), expected);
        let many = |at, peer| {
            let entry = |port| Entry::Grant(at, Protocol::Tcp, port, peer);
            (1..=100).map(entry).collect::<Vec<_>>()
        };
        let all = join_blocked(&many(server, client), &many(client, server));
        assert_eq!(all, [reply(6, 0, 0)], "all ports");
    }
}
