//! Looks up the tables and chains of policy engines in the kernel.

use std::{collections::BTreeSet, io};

use rustix::io::Errno;
use weir_netlink::{Body, Header, MessageWriter, NetlinkError, NetlinkProtocol, Socket, kind};

use crate::{
    legacy,
    node_links::RouteSocket,
    signatures::{CHAINS, CILIUM_LINK, Family, Filter, Owner, PolicyRules, TABLES, owners},
};

/// Finds the rules of policy engines in the network namespace of the calling thread.
pub fn find_policy_rules() -> io::Result<Vec<PolicyRules>> {
    let mut socket = Socket::open(NetlinkProtocol::Netfilter)?;
    let mut found = Vec::new();
    for (owner, family, sign) in TABLES {
        if exists(&mut socket, NFT_MSG_GETTABLE, family, |body| _ = body.text(NAME, sign))? {
            found.push(PolicyRules { owner, filter: Filter::Nftables, sign });
        }
    }
    for family in [Family::Ip, Family::Ip6] {
        let mut chains = BTreeSet::new();
        for (_, name) in CHAINS {
            let chain = |body: &mut Body<'_>| {
                body.text(NAME, FILTER).text(NFTA_CHAIN_NAME, name);
            };
            if exists(&mut socket, NFT_MSG_GETCHAIN, family, chain)? {
                chains.insert(name);
            }
        }
        let filter = Filter::IptablesNft;
        let all = owners(|name| chains.contains(name)).into_iter();
        found.extend(all.map(|(owner, sign)| PolicyRules { owner, filter, sign }));
    }
    found.extend(legacy::find_policy_rules());
    if RouteSocket::open()?.has_link(CILIUM_LINK)? {
        let filter = Filter::Ebpf;
        found.push(PolicyRules { owner: Owner::Cilium, filter, sign: CILIUM_LINK });
    }
    found.sort();
    found.dedup_by_key(|one| (one.owner, one.filter));
    Ok(found)
}

/// Whether an object exists. The kernel looks it up by name.
fn exists(
    socket: &mut Socket,
    number: u16,
    family: Family,
    body: impl FnOnce(&mut Body<'_>),
) -> io::Result<bool> {
    let mut writer = MessageWriter::default();
    let header = Header { kind: number, flags: kind::REQUEST | kind::ACK, sequence: 1 };
    let written = writer.message(header, |message| {
        message.fixed(&[family as u8, 0, 0, 0]);
        body(message);
    });
    written.expect("a name fits into a message");
    match socket.query(writer.bytes(), |_| ()) {
        Ok(()) => Ok(true),
        // The kernel has no such object, or no nf_tables.
        Err(NetlinkError::Rejected(rejection))
            if matches!(
                rejection.errno(),
                Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL)
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(io::Error::other(error)),
    }
}

/// The table of iptables that policy engines use.
const FILTER: &str = "filter";

// From `linux/netfilter/nf_tables.h`.
const NFT_MSG_GETTABLE: u16 = 10 << 8 | 1;
const NFT_MSG_GETCHAIN: u16 = 10 << 8 | 4;
/// `NFTA_TABLE_NAME` and `NFTA_CHAIN_TABLE`.
const NAME: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
