//! Packets for the interpreter.

use std::net::IpAddr;

use weir_ebpf::program::HookPoint;
use weir_model::{Flow, Protocol};

use crate::machine::Packet;

/// The flags of TCP segments.
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// The first packet of a connection.
pub(crate) fn opening(flow: &Flow, hook: HookPoint) -> Packet {
    segment(flow, 40_000, SYN, hook)
}

/// A packet from a client's port, with flags if the protocol is TCP.
pub(crate) fn segment(flow: &Flow, port: u16, flags: u8, hook: HookPoint) -> Packet {
    let payload = transport(flow.protocol, port, flow.port, flags);
    packet(flow.from, flow.to, flow.protocol.number(), &payload, hook)
}

/// A packet of the server.
pub(crate) fn reply(flow: &Flow, port: u16, flags: u8, hook: HookPoint) -> Packet {
    let payload = transport(flow.protocol, flow.port, port, flags);
    packet(flow.to, flow.from, flow.protocol.number(), &payload, hook)
}

/// The start of a transport header, as long as the shortest packet.
pub(crate) fn transport(protocol: Protocol, from: u16, to: u16, flags: u8) -> Vec<u8> {
    let mut bytes = [from.to_be_bytes(), to.to_be_bytes()].concat();
    bytes.resize(if protocol == Protocol::Tcp { 20 } else { 12 }, 0);
    if protocol == Protocol::Tcp {
        bytes[12] = 0x50;
        bytes[13] = flags;
    }
    bytes
}

/// A packet of any protocol.
pub(crate) fn packet(
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    payload: &[u8],
    hook: HookPoint,
) -> Packet {
    Packet {
        hook: hook as u8,
        bytes: ip(from, to, protocol, payload),
        status: None,
        is_tracked_reply: false,
        master: None,
        paged: 0,
    }
}

/// The bytes of a packet.
pub(crate) fn ip(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            bytes.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            bytes.extend([0x60, 0, 0, 0, 0, 0, protocol, 64]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        _ => panic!("both addresses are of one family"),
    }
    bytes.extend(payload);
    bytes
}
