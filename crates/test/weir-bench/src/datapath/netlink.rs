//! A minimal netlink client for the sets and maps of table `anchor`: the lower bound for every other
//! client.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use weir_netlink::{Body, Header, MessageWriter, NetlinkProtocol, Socket, TooLong, kind};

/// A connection to nf_tables in the namespace that it was opened in.
pub(crate) struct Netlink {
    socket: Socket,
    writer: MessageWriter,
}

/// A change of a set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SetChange {
    Add,
    Remove,
}

impl Netlink {
    pub(crate) fn open() -> Result<Netlink> {
        let socket =
            Socket::open(NetlinkProtocol::Netfilter).context("cannot open a netlink socket")?;
        Ok(Netlink { socket, writer: MessageWriter::default() })
    }

    /// Adds or removes members of a set, in one transaction.
    pub(crate) fn edit(
        &mut self,
        change: SetChange,
        set: &str,
        members: &[Ipv4Addr],
    ) -> Result<()> {
        self.send(change, set, members, None)
    }

    /// The same with one member of a map, which leads to a chain.
    pub(crate) fn lead(
        &mut self,
        change: SetChange,
        map: &str,
        member: Ipv4Addr,
        chain: &str,
    ) -> Result<()> {
        self.send(change, map, &[member], matches!(change, SetChange::Add).then_some(chain))
    }

    fn send(
        &mut self,
        change: SetChange,
        set: &str,
        members: &[Ipv4Addr],
        chain: Option<&str>,
    ) -> Result<()> {
        self.writer.clear();
        write(&mut self.writer, change, set, members, chain)?;
        self.socket.request(self.writer.bytes()).context("the kernel rejected a transaction")
    }

    /// Reads all members of a set. Returns the size of the response in bytes.
    pub(crate) fn list_members(&mut self, set: &str) -> Result<usize> {
        self.writer.clear();
        let flags = kind::REQUEST | kind::DUMP;
        let header = Header { kind: NFT_MSG_GETSETELEM, flags, sequence: SEQUENCE };
        self.writer.message(header, |body| _ = this_set(body, set))?;
        let mut bytes = 0;
        self.socket
            .query(self.writer.bytes(), |message| bytes += message.payload.len())
            .context("the kernel did not list a set")?;
        Ok(bytes)
    }
}

fn write(
    writer: &mut MessageWriter,
    change: SetChange,
    set: &str,
    members: &[Ipv4Addr],
    chain: Option<&str>,
) -> Result<(), TooLong> {
    let batch = |writer: &mut MessageWriter, kind| {
        let header = Header { kind, flags: kind::REQUEST, sequence: SEQUENCE };
        writer.message(header, |body| _ = body.fixed(&[0, 0, 0, NFNL_SUBSYS_NFTABLES]))
    };
    let (kind, flags) = match change {
        SetChange::Add => (NFT_MSG_NEWSETELEM, kind::REQUEST | kind::CREATE),
        SetChange::Remove => (NFT_MSG_DELSETELEM, kind::REQUEST),
    };
    batch(writer, NFNL_MSG_BATCH_BEGIN)?;
    let mut chunks = members.chunks(PER_MESSAGE).peekable();
    while let Some(chunk) = chunks.next() {
        // Request one acknowledgement, for the last message. An earlier error is reported anyway.
        let last = if chunks.peek().is_none() { kind::ACK } else { 0 };
        let header = Header { kind, flags: flags | last, sequence: SEQUENCE };
        writer.message(header, |body| {
            this_set(body, set).nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
                for member in chunk {
                    element(list, *member, chain);
                }
            });
        })?;
    }
    batch(writer, NFNL_MSG_BATCH_END)
}

fn this_set<'a, 'b>(body: &'a mut Body<'b>, set: &str) -> &'a mut Body<'b> {
    body.fixed(&[NFPROTO_INET, 0, 0, 0])
        .text(NFTA_SET_ELEM_LIST_TABLE, TABLE)
        .text(NFTA_SET_ELEM_LIST_SET, set)
}

fn element(list: &mut Body<'_>, member: Ipv4Addr, chain: Option<&str>) {
    list.nest(NFTA_LIST_ELEM, |element| {
        element.nest(NFTA_SET_ELEM_KEY, |key| _ = key.bytes(NFTA_DATA_VALUE, &member.octets()));
        let Some(chain) = chain else { return };
        element.nest(NFTA_SET_ELEM_DATA, |data| {
            data.nest(NFTA_DATA_VERDICT, |verdict| {
                verdict.bytes(NFTA_VERDICT_CODE, &NFT_JUMP.to_be_bytes());
                verdict.text(NFTA_VERDICT_CHAIN, chain);
            });
        });
    });
}

/// The table of the sets.
pub(crate) const TABLE: &str = "anchor";
/// The number of members that fit into one attribute, at sixteen bytes each.
const PER_MESSAGE: usize = 4000;
/// The sequence number of every message, so that a response to any of them matches.
const SEQUENCE: u32 = 1;

// Constants of `linux/netfilter/nfnetlink.h` and `nf_tables.h`.
const NFPROTO_INET: u8 = 1;
const NFNL_SUBSYS_NFTABLES: u8 = 10;
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFT_MSG_NEWSETELEM: u16 = (NFNL_SUBSYS_NFTABLES as u16) << 8 | 12;
const NFT_MSG_GETSETELEM: u16 = (NFNL_SUBSYS_NFTABLES as u16) << 8 | 13;
const NFT_MSG_DELSETELEM: u16 = (NFNL_SUBSYS_NFTABLES as u16) << 8 | 14;
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
const NFT_JUMP: i32 = -3;
