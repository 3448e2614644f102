//! Removes rules over netlink: those of iptables-nft, and the tables of kube-router.
//!
//! iptables-nft stores its chains and rules in tables of nf_tables. One batch deletes the rules that
//! jump to weir's chains, and the chains.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weir_netlink::{
    Attributes, Body, Header, Malformed, Message, MessageWriter, Messages, NetlinkError,
    NetlinkProtocol, Socket, kind,
};

use crate::{guard::is_guard_chain, kernel::KernelError, name, skeleton, wire::NFGENMSG_LENGTH};

/// The tables of iptables in which weir may have chains.
const TABLES: [&str; 3] = ["filter", "mangle", "raw"];

/// The tables that kube-router has with `--use-nftables-for-netpol`.
const KUBE_ROUTER_TABLES: [(u8, &str); 2] =
    [(NFPROTO_IPV4, "kube-router-filter-ipv4"), (NFPROTO_IPV6, "kube-router-filter-ipv6")];

/// How often to read the rules again because another program changed them meanwhile.
const ATTEMPTS: usize = 10;

/// The chains of a table.
#[derive(Debug, Default)]
struct TableChains {
    /// The chains that packets enter from the kernel.
    base: BTreeSet<String>,
    ours: BTreeSet<String>,
}

/// Removes weir's rules of both families in the network namespace of the calling thread.
pub(crate) fn remove_rules() -> Result<(), KernelError> {
    retry(try_remove)
}

/// Removes kube-router's own tables of both families in one step, with everything in them.
pub(crate) fn remove_kube_router_tables() -> Result<(), KernelError> {
    retry(try_remove_tables)
}

fn retry(remove: fn(&mut Socket) -> Result<(), KernelError>) -> Result<(), KernelError> {
    let mut socket = Socket::open(NetlinkProtocol::Netfilter).map_err(KernelError::Socket)?;
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        result = remove(&mut socket);
        // Another program changed the rules between reading and writing.
        let is_stale = matches!(&result, Err(KernelError::Rejected { .. }))
            || matches!(&result, Err(KernelError::Read(NetlinkError::Interrupted)));
        if !is_stale {
            break;
        }
    }
    result
}

fn try_remove(socket: &mut Socket) -> Result<(), KernelError> {
    let generation = read_generation(socket)?;
    let mut writer = MessageWriter::default();
    message(&mut writer, NFNL_MSG_BATCH_BEGIN, 0, BATCH, |body| {
        body.be_u32(NFNL_BATCH_GENID, generation);
    })?;
    let mut found = false;
    for family in [NFPROTO_IPV4, NFPROTO_IPV6] {
        for (table, chains) in weirs_tables(socket, family)? {
            found = true;
            let header = [family, 0, 0, 0];
            for base in &chains.base {
                for handle in jumps(socket, family, &table, base, &chains.ours)? {
                    message(&mut writer, NFT_MSG_DELRULE, 0, header, |body| {
                        body.text(TABLE, &table).text(NFTA_RULE_CHAIN, base);
                        body.be_u64(NFTA_RULE_HANDLE, handle);
                    })?;
                }
            }
            for chain in &chains.ours {
                message(&mut writer, NFT_MSG_DELRULE, 0, header, |body| {
                    body.text(TABLE, &table).text(NFTA_RULE_CHAIN, chain);
                })?;
            }
            for chain in &chains.ours {
                message(&mut writer, NFT_MSG_DELCHAIN, 0, header, |body| {
                    body.text(TABLE, &table).text(NFTA_CHAIN_NAME, chain);
                })?;
            }
        }
    }
    message(&mut writer, NFNL_MSG_BATCH_END, 0, BATCH, |_| ())?;
    if found { send(socket, writer.bytes()) } else { Ok(()) }
}

fn try_remove_tables(socket: &mut Socket) -> Result<(), KernelError> {
    let generation = read_generation(socket)?;
    let mut writer = MessageWriter::default();
    message(&mut writer, NFNL_MSG_BATCH_BEGIN, 0, BATCH, |body| {
        body.be_u32(NFNL_BATCH_GENID, generation);
    })?;
    let mut found = false;
    for (family, name) in KUBE_ROUTER_TABLES {
        let mut exists = false;
        dump(
            socket,
            NFT_MSG_GETTABLE,
            family,
            |_| (),
            |attributes| {
                for attribute in attributes {
                    let attribute = attribute?;
                    exists |= attribute.kind == TABLE && attribute.text()? == name;
                }
                Ok(())
            },
        )?;
        if exists {
            found = true;
            message(&mut writer, NFT_MSG_DELTABLE, 0, [family, 0, 0, 0], |body| {
                body.text(TABLE, name);
            })?;
        }
    }
    message(&mut writer, NFNL_MSG_BATCH_END, 0, BATCH, |_| ())?;
    if found { send(socket, writer.bytes()) } else { Ok(()) }
}

/// The tables of a family, if they have weir's chains and not only kube-router's.
fn weirs_tables(
    socket: &mut Socket,
    family: u8,
) -> Result<BTreeMap<String, TableChains>, KernelError> {
    let mut tables: BTreeMap<String, TableChains> = BTreeMap::new();
    dump(
        socket,
        NFT_MSG_GETCHAIN,
        family,
        |_| (),
        |attributes| {
            let (mut table, mut chain, mut is_base) = (None, None, false);
            for attribute in attributes {
                let attribute = attribute?;
                match attribute.kind {
                    TABLE => table = Some(attribute.text()?),
                    NFTA_CHAIN_NAME => chain = Some(attribute.text()?),
                    NFTA_CHAIN_HOOK => is_base = true,
                    _ => (),
                }
            }
            let (Some(table), Some(chain)) = (table, chain) else { return Err(Malformed::Message) };
            if TABLES.contains(&table) {
                let chains = tables.entry(table.to_owned()).or_default();
                if is_base {
                    chains.base.insert(chain.to_owned());
                } else if name::is_our_chain(chain) || is_guard_chain(chain) {
                    chains.ours.insert(chain.to_owned());
                }
            }
            Ok(())
        },
    )?;
    let sign = skeleton::terminated();
    let is_weirs = |chains: &TableChains| chains.ours.contains(&*sign);
    if tables.values().any(is_weirs) {
        tables.retain(|_, chains| !chains.ours.is_empty());
    } else {
        tables.clear();
    }
    Ok(tables)
}

/// The handles of the rules of a chain that lead to one of ours.
fn jumps(
    socket: &mut Socket,
    family: u8,
    table: &str,
    chain: &str,
    ours: &BTreeSet<String>,
) -> Result<Vec<u64>, KernelError> {
    let mut handles = Vec::new();
    let in_chain = |body: &mut Body<'_>| {
        body.text(TABLE, table).text(NFTA_RULE_CHAIN, chain);
    };
    dump(socket, NFT_MSG_GETRULE, family, in_chain, |attributes| {
        let (mut in_table, mut in_chain, mut handle, mut leads_to_ours) = ("", "", None, false);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                TABLE => in_table = attribute.text()?,
                NFTA_RULE_CHAIN => in_chain = attribute.text()?,
                NFTA_RULE_HANDLE => handle = Some(attribute.be_u64()?),
                NFTA_RULE_EXPRESSIONS => {
                    let target = target(attribute.attributes())?;
                    leads_to_ours = target.is_some_and(|target| ours.contains(target));
                }
                _ => (),
            }
        }
        let is_asked_for = (in_table, in_chain) == (table, chain);
        handles.extend(handle.filter(|_| is_asked_for && leads_to_ours));
        Ok(())
    })?;
    Ok(handles)
}

/// The chain that the expressions of a rule lead to.
fn target(expressions: Attributes<'_>) -> Result<Option<&str>, Malformed> {
    for expression in expressions {
        let (mut is_immediate, mut data) = (false, None);
        for attribute in expression?.attributes() {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_EXPR_NAME => is_immediate = attribute.text()? == "immediate",
                NFTA_EXPR_DATA => data = Some(attribute),
                _ => (),
            }
        }
        let Some(data) = data.filter(|_| is_immediate) else { continue };
        let path = [NFTA_IMMEDIATE_DATA, NFTA_DATA_VERDICT, NFTA_VERDICT_CHAIN];
        let mut inner = Some(data);
        for kind in path {
            let Some(outer) = inner else { break };
            inner = outer.attributes().find_map(|one| one.ok().filter(|one| one.kind == kind));
        }
        if let Some(chain) = inner {
            return chain.text().map(Some);
        }
    }
    Ok(None)
}

fn read_generation(socket: &mut Socket) -> Result<u32, KernelError> {
    let mut writer = MessageWriter::default();
    message(&mut writer, NFT_MSG_GETGEN, kind::ACK, [0; NFGENMSG_LENGTH], |_| ())?;
    let mut generation = Err(Malformed::Message);
    socket.query(writer.bytes(), |message| {
        let mut attributes = message.attributes(NFGENMSG_LENGTH).flatten();
        if let Some(id) = attributes.find(|attribute| attribute.kind == NFTA_GEN_ID) {
            generation = id.be_u32();
        }
    })?;
    Ok(generation?)
}

fn dump(
    socket: &mut Socket,
    number: u16,
    family: u8,
    body: impl FnOnce(&mut Body<'_>),
    mut visit: impl FnMut(Attributes<'_>) -> Result<(), Malformed>,
) -> Result<(), KernelError> {
    let mut writer = MessageWriter::default();
    message(&mut writer, number, kind::DUMP, [family, 0, 0, 0], body)?;
    let mut read = Ok(());
    socket.query(writer.bytes(), |message: Message<'_>| {
        if read.is_ok() {
            read = visit(message.attributes(NFGENMSG_LENGTH));
        }
    })?;
    Ok(read?)
}

fn message(
    writer: &mut MessageWriter,
    number: u16,
    flags: u16,
    header: [u8; NFGENMSG_LENGTH],
    body: impl FnOnce(&mut Body<'_>),
) -> Result<(), KernelError> {
    let flags = kind::REQUEST | flags;
    Ok(writer.message(Header { kind: number, flags, sequence: 1 }, |message| {
        message.fixed(&header);
        body(message);
    })?)
}

/// Sends a batch. The kernel replies while it handles the batch, so no reply means success.
fn send(socket: &mut Socket, batch: &[u8]) -> Result<(), KernelError> {
    socket.send(batch).map_err(KernelError::Socket)?;
    let mut buffer = vec![0; 64 * 1024];
    let mut first = Ok(());
    while let Some(received) =
        socket.receive(&mut buffer, Some(Duration::ZERO)).map_err(KernelError::Socket)?
    {
        for message in Messages::new(received) {
            if let (true, Some(Err(rejection))) = (first.is_ok(), message?.verdict()) {
                let step = "delete chains and tables".to_owned();
                first = Err(KernelError::Rejected { step, source: rejection.into() });
            }
        }
    }
    first
}

/// The header of a batch: the subsystem is its resource.
const BATCH: [u8; NFGENMSG_LENGTH] = [0, 0, 0, 10];

// From `linux/netfilter/nfnetlink.h` and `linux/netfilter/nf_tables.h`.
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_BATCH_GENID: u16 = 1;
const NFT_MSG_GETTABLE: u16 = 10 << 8 | 1;
const NFT_MSG_DELTABLE: u16 = 10 << 8 | 2;
const NFT_MSG_GETCHAIN: u16 = 10 << 8 | 4;
const NFT_MSG_DELCHAIN: u16 = 10 << 8 | 5;
const NFT_MSG_GETRULE: u16 = 10 << 8 | 7;
const NFT_MSG_DELRULE: u16 = 10 << 8 | 8;
const NFT_MSG_GETGEN: u16 = 10 << 8 | 16;
const NFTA_GEN_ID: u16 = 1;
/// The name of a table, or the table of a chain or a rule.
const TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_HANDLE: u16 = 3;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CHAIN: u16 = 2;
