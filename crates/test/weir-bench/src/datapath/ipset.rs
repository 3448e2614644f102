//! The cost of a member of an ipset: by weir, by the program ipset, and by a minimal netlink client.

use std::{fmt::Write, net::Ipv4Addr, time::Duration};

use anyhow::{Context, Result, ensure};
use weir_iptables::Variant;
use weir_netlink::{Header, MessageWriter, NetlinkProtocol, Socket, kind};

use super::{
    backend::iptables,
    cluster::PolicyLoad,
    netlink::SetChange,
    node::{ApplyResult, BenchAgent},
    program::SystemProgram,
};
use crate::measure::cpu;

const IPSET: SystemProgram = SystemProgram("ipset");
const SET: &str = "anchor";

/// Adds a member to a large set and removes it again, `times` times.
pub(crate) fn bare(
    members: &[Ipv4Addr],
    newcomer: Ipv4Addr,
    times: usize,
) -> Result<Vec<Duration>> {
    let mut text = format!("create {SET} hash:ip maxelem {}\n", 2 * members.len());
    for member in members {
        _ = writeln!(text, "add {SET} {member}");
    }
    IPSET.run(&["restore"], &text)?;
    let mut socket =
        Socket::open(NetlinkProtocol::Netfilter).context("cannot open a netlink socket")?;
    let mut writer = MessageWriter::default();
    let each = (0..times).flat_map(|_| [SetChange::Add, SetChange::Remove]);
    each.map(|edit| {
        let (time, done) = cpu(|| -> Result<()> {
            writer.clear();
            write(&mut writer, edit, newcomer)?;
            socket.request(writer.bytes()).context("the kernel rejected a member")
        });
        done.map(|()| time)
    })
    .collect()
}

/// The same with the program, in the set that [`bare`] has created.
pub(crate) fn by_program(newcomer: Ipv4Addr, times: usize) -> Result<Vec<Duration>> {
    let member = newcomer.to_string();
    let each = (0..times).flat_map(|_| ["add", "del"]);
    each.map(|verb| IPSET.run_timed(&[verb, SET, &member], "")).collect()
}

/// The same by weir, from the event to the kernel's response.
pub(crate) fn weir(cluster: PolicyLoad, times: usize) -> Result<Vec<Duration>> {
    let mut node = BenchAgent::open(iptables(Variant::Nft)?);
    node.compile(cluster.changes());
    node.apply()?;
    let each = (0..2 * times).map(|number| {
        let event = [cluster.event(number)];
        let (time, applied) = cpu(|| {
            node.compile(event);
            node.apply()
        });
        ensure!(applied? == ApplyResult::Applied, "an event wrote nothing");
        Ok(time)
    });
    each.collect()
}

fn write(writer: &mut MessageWriter, change: SetChange, member: Ipv4Addr) -> Result<()> {
    let number = match change {
        SetChange::Add => IPSET_CMD_ADD,
        SetChange::Remove => IPSET_CMD_DEL,
    };
    let header = Header { kind: number, flags: kind::REQUEST | kind::ACK, sequence: 1 };
    writer.message(header, |body| {
        body.fixed(&[NFPROTO_IPV4, 0, 0, 0])
            .u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL)
            .text(IPSET_ATTR_SETNAME, SET)
            .nest(IPSET_ATTR_DATA, |data| {
                data.nest(IPSET_ATTR_IP, |ip| {
                    _ = ip.bytes(IPSET_ATTR_IPADDR_IPV4 | NLA_F_NET_BYTEORDER, &member.octets());
                });
            });
    })?;
    Ok(())
}

// Constants of `linux/netfilter/ipset/ip_set.h`.
const NFPROTO_IPV4: u8 = 2;
const NLA_F_NET_BYTEORDER: u16 = 0x4000;
const NFNL_SUBSYS_IPSET: u16 = 6;
const IPSET_CMD_ADD: u16 = NFNL_SUBSYS_IPSET << 8 | 9;
const IPSET_CMD_DEL: u16 = NFNL_SUBSYS_IPSET << 8 | 10;
const IPSET_PROTOCOL: u8 = 6;
const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_DATA: u16 = 7;
const IPSET_ATTR_IP: u16 = 1;
const IPSET_ATTR_IPADDR_IPV4: u16 = 1;
