// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//! The program of the fast lane, which runs where the node's link to a pod receives packets.
//!
//! ```text
//!   packet from a pod of the lane to another one? ─ no ──► the normal way, through netfilter
//!     └─ yes ─► the rules of the other program ─┬─ allowed ─► into the link of the other pod
//!                                               └─ denied ──► report, drop
//! ```
//!
//! Packets that are not plain TCP, UDP or SCTP go the normal way: fragments, other headers, frames for
//! another host, and those whose hop limit a router would have to change in a way that matters.
//! So do DNS, from which the agent learns names, and packets from the middle of an unknown connection.

use weir_model::IpFamily;

use super::*;
use crate::layout::LaneSettings;
use Comparison::{Less, Shares};
use Register::{R5, R7, R9};
use Width::Half;

/// The verdict of a packet that goes the normal way (`TCX_NEXT`).
pub const LANE_NEXT: i32 = -1;
/// The verdict of a packet that is dropped (`TCX_DROP`).
pub const LANE_DROP: i32 = 2;
/// The verdict of a packet that goes to the other pod (`TCX_REDIRECT`).
pub const LANE_REDIRECT: i32 = 7;

/// The members of `struct __sk_buff` that the program reads.
pub mod context {
    /// The kind of the frame.
    pub const PACKET_TYPE: i16 = 4;
    /// The protocol, in network order.
    pub const PROTOCOL: i16 = 16;
    /// Whether the frame belongs to a VLAN.
    pub const VLAN: i16 = 20;
    /// The index of the link.
    pub const LINK: i16 = 40;
    /// The start of the frame.
    pub const DATA: i16 = 76;
    /// The end of its linear part.
    pub const DATA_END: i16 = 80;
}

/// A frame for this host, in `pkt_type`.
const PACKET_HOST: i32 = 0;
/// The length of the Ethernet header.
const ETHERNET: i16 = 14;
/// A packet of a neighbour has this hop limit, and a forwarded one must not have it.
const HIGHEST_HOP_LIMIT: i32 = 255;
/// The hop limit of a packet that a router may forward.
const LOWEST_HOP_LIMIT: i32 = 2;

/// The port of DNS, as in packets.
const DNS: i32 = 53_u16.to_be() as i32;

// The stack: places that only the other program uses.
const TARGET: i16 = super::DATA;
const MTU: i16 = LINEAR;

/// The program of the fast lane for a family.
pub fn lane_program(family: IpFamily, clock: TickClock) -> Vec<Instruction<MapId>> {
    // Conntrack has not met the packet.
    assemble(family, Features { conntrack: false, clock }, Site::Lane)
}

impl Main<'_> {
    pub(super) fn emit_lane(&mut self) {
        let parsed = self.asm.label();
        let transport = self.parse_lane();
        self.find_ends();
        self.parse_lane_transport(transport, parsed);
        self.asm.place(parsed);
        self.leave_dns();
        self.evaluate();
        self.end_lane();
    }

    /// Reads the IP header at `R7`, where the linear part ends at `R8`. Returns where the next header is.
    fn parse_lane(&mut self) -> i16 {
        let (ethertype, length, source, destination, protocol, hop_limit) = match self.family {
            IpFamily::V4 => ([0x08, 0x00], 20, 12, 16, 9, 8),
            IpFamily::V6 => ([0x86, 0xdd], 40, 8, 24, 6, 7),
        };
        let (asm, next) = (&mut *self.asm, self.fail);
        asm.set(R6, R1);
        for (member, expected) in [
            (context::PROTOCOL, i32::from(u16::from_ne_bytes(ethertype))),
            (context::PACKET_TYPE, PACKET_HOST),
            (context::VLAN, 0),
        ] {
            asm.load(Word, R1, R6, member);
            asm.jump_if(NotEqual, R1, expected, next);
        }
        asm.load(Word, R7, R6, context::DATA);
        asm.load(Word, R8, R6, context::DATA_END);
        asm.set(R1, R7);
        asm.add(R1, i32::from(ETHERNET + length));
        asm.jump_if(Greater, R1, R8, next);
        asm.load(Byte, R1, R7, ETHERNET);
        match self.family {
            // Version 4 without options.
            IpFamily::V4 => {
                asm.jump_if(NotEqual, R1, 0x45, next);
                asm.load(Half, R1, R7, ETHERNET + 6);
                asm.swap_half(R1);
                asm.and(R1, 0x3fff);
                asm.jump_if(NotEqual, R1, 0, next);
            }
            IpFamily::V6 => {
                asm.and(R1, 0xf0);
                asm.jump_if(NotEqual, R1, 0x60, next);
            }
        }
        asm.load(Byte, R1, R7, ETHERNET + hop_limit);
        asm.jump_if(Less, R1, LOWEST_HOP_LIMIT, next);
        asm.jump_if(Equal, R1, HIGHEST_HOP_LIMIT, next);
        asm.load(Byte, R9, R7, ETHERNET + protocol);
        asm.store(Word, R10, PROTOCOL, R9);
        self.copy_address(R7, ETHERNET + source, SOURCE);
        self.copy_address(R7, ETHERNET + destination, DESTINATION);
        ETHERNET + length
    }

    /// Finds the link of the receiver. The sender must be the pod behind the link that the packet comes
    /// from.
    fn find_ends(&mut self) {
        self.find_link(DESTINATION);
        let (asm, next) = (&mut *self.asm, self.fail);
        asm.store(Double, R10, TARGET, R1);
        asm.load(Word, R2, R6, context::LINK);
        asm.jump_if(Equal, R1, R2, next);
        self.find_link(SOURCE);
        let (asm, next) = (&mut *self.asm, self.fail);
        asm.load(Word, R2, R6, context::LINK);
        asm.jump_if(NotEqual, R1, R2, next);
    }

    /// `R1 = the link of the address`
    fn find_link(&mut self, address: i16) {
        let (asm, next) = (&mut *self.asm, self.fail);
        asm.map(R1, MapId::Lane(self.family));
        asm.stack(R2, address);
        asm.call(Helper::MapLookup);
        asm.jump_if(Equal, R0, 0, next);
        asm.load(Double, R1, R0, 0);
        // The kernel may have used the memory again for another address.
        asm.load(Word, R2, R10, address);
        if self.family == IpFamily::V6 {
            for part in [4, 8, 12] {
                asm.load(Word, R3, R10, address + part);
                asm.xor(R2, R3);
            }
        }
        asm.set(R3, R1);
        asm.shift_right(R3, 32);
        asm.jump_if(NotEqual, R3, R2, next);
        asm.shift_left(R1, 32);
        asm.shift_right(R1, 32);
    }

    /// Reads the settings and the ports. The epoch comes before the rules, as in the other program.
    fn parse_lane_transport(&mut self, at: i16, parsed: Label) {
        let (tcp, udp, ports) = (self.asm.label(), self.asm.label(), self.asm.label());
        let (asm, next) = (&mut *self.asm, self.fail);
        asm.store_constant(Word, R10, HOOK, HookPoint::Forward as i32);
        asm.map_value(R1, MapId::Config);
        asm.load(Word, R2, R1, 0);
        asm.store(Word, R10, EPOCH, R2);
        asm.store_constant(Word, R10, FLAGS, 0);
        for (number, label) in [(PROTO_TCP, tcp), (PROTO_UDP, udp), (PROTO_SCTP, ports)] {
            asm.jump_if(Equal, R9, number, label);
        }
        asm.jump(next);

        asm.place(tcp);
        self.copy_from_packet(at, 16);
        self.read_tcp(parsed);

        // A datagram to a tunnel: the guard decides.
        let asm = &mut *self.asm;
        asm.place(udp);
        asm.set(R1, R7);
        asm.add(R1, i32::from(at + 8));
        asm.jump_if(Greater, R1, R8, next);
        asm.load(Half, R1, R7, at + 2);
        asm.map_value(R2, MapId::LaneSettings);
        asm.load(Word, R3, R2, 0);
        asm.jump_if(Shares, R3, LaneSettings::WITHOUT_UDP, next);
        for port in 0..LaneSettings::PORTS as i16 {
            asm.load(Half, R3, R2, LaneSettings::FIRST_PORT + 2 * port);
            asm.jump_if(Equal, R1, R3, next);
        }

        asm.place(ports);
        // Reports have as many bytes as with TCP.
        asm.store_constant(Double, R10, BUFFER + 8, 0);
        self.copy_from_packet(at, 8);
        self.copy_ports(parsed);
    }

    /// Lets questions and answers of DNS go the normal way, where the agent learns names from them.
    fn leave_dns(&mut self) {
        for port in [SOURCE_PORT, DESTINATION_PORT] {
            self.asm.load(Half, R1, R10, port);
            self.asm.jump_if(Equal, R1, DNS, self.fail);
        }
    }

    /// Copies bytes of the packet to the buffer. `R0 = the buffer`
    fn copy_from_packet(&mut self, at: i16, length: i16) {
        let (asm, next) = (&mut *self.asm, self.fail);
        asm.set(R1, R7);
        asm.add(R1, i32::from(at + length));
        asm.jump_if(Greater, R1, R8, next);
        asm.set(R0, R7);
        asm.add(R0, i32::from(at));
        copy_to_buffer(asm, length);
        asm.stack(R0, BUFFER);
    }

    /// Sends an allowed packet to the other pod. A packet that does not fit into the link, and one to a
    /// link that is gone, goes the normal way.
    fn end_lane(&mut self) {
        let (asm, next) = (&mut *self.asm, self.fail);
        asm.place(self.accept);
        asm.store_constant(Word, R10, MTU, 0);
        asm.set(R1, R6);
        asm.load(Double, R2, R10, TARGET);
        asm.stack(R3, MTU);
        asm.set(R4, 0);
        asm.set(R5, 0);
        asm.call(Helper::CheckMtu);
        asm.jump_if(NotEqual, R0, 0, next);
        asm.load(Double, R1, R10, TARGET);
        asm.set(R2, 0);
        asm.call(Helper::RedirectPeer);
        asm.exit();
        asm.place(next);
        asm.set(R0, LANE_NEXT);
        asm.exit();
    }
}
