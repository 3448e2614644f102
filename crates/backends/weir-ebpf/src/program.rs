// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//! The program that the kernel runs for each packet, one for each address family.
//!
//! This file may be used under the terms of Apache-2.0 or of GPL-2.0. The kernel lets a program call
//! its functions only if the program has a licence that is compatible with the GPL.
//!
//! ```text
//!   packet ─► known connection, judged in this epoch? ─────────────────────────────► accept
//!          ─► else the addresses' kinds ─► decisions of the pods' tiers ─┬─ allowed ─► remember, accept
//!                                                                       └─ denied ──► drop
//! ```
//!
//! The same program runs where the node forwards packets, receives them and sends them. Only where
//! it forwards do the ingress rules of a pod apply.

use weir_model::IpFamily;

use crate::{
    assembler::{Assembler, Label},
    instruction::{Comparison, Field, Helper, Instruction, Kfunc, Register, Width},
    judge,
    layout::{Config, MapId},
};

use Comparison::{Equal, Greater, GreaterOrEqual, Less, NotEqual, Shares};
use Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};
use Width::{Byte, Double, Half, Word};

/// The licence that the kernel checks.
pub const LICENSE: &str = "Dual BSD/GPL";

/// The verdicts of netfilter.
pub const NF_DROP: i32 = 0;
/// Lets a packet pass.
pub const NF_ACCEPT: i32 = 1;

/// The hooks of netfilter at which the programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookPoint {
    /// Packets for the node itself.
    Input = 1,
    /// Packets that the node forwards.
    Forward = 2,
    /// Packets of the node itself.
    Output = 3,
}

impl HookPoint {
    /// All of them.
    pub const ALL: [HookPoint; 3] = [HookPoint::Input, HookPoint::Forward, HookPoint::Output];

    /// The name in paths and messages.
    pub fn name(self) -> &'static str {
        match self {
            HookPoint::Input => "input",
            HookPoint::Forward => "forward",
            HookPoint::Output => "output",
        }
    }
}

// The stack of the main function.
const DYNPTR: i16 = -16;
const BUFFER: i16 = -56;
const QUERY: i16 = -104;
const KEY: i16 = -144;
const VALUE: i16 = -160;
const SOURCE: i16 = -176;
const DESTINATION: i16 = -192;
const SOURCE_PORT: i16 = -200;
const DESTINATION_PORT: i16 = -198;
const PROTOCOL: i16 = -196;
const HOOK: i16 = -208;
const EPOCH: i16 = -204;
const FLAGS: i16 = -216;
const CHECK: i16 = -224;
const INNER: i16 = -256;
const CAUSE: i16 = -264;

/// The packet begins a TCP connection.
const SYN: i32 = 1;
/// The packet cannot begin a connection.
const REPLY: i32 = 2;
/// The packet belongs to no connection.
const ALONE: i32 = 4;
/// The packet is an error about a packet of the connection.
const RELATED: i32 = 8;
/// The protocol is TCP.
const TCP: i32 = 16;
/// The hop limit is 255: the packet comes from a neighbour.
const NEIGHBOUR: i32 = 32;

const PROTO_ICMP: i32 = 1;
const PROTO_IGMP: i32 = 2;
const PROTO_TCP: i32 = 6;
const PROTO_UDP: i32 = 17;
const PROTO_ICMPV6: i32 = 58;
const PROTO_SCTP: i32 = 132;

/// The kinds of frames in `sk_buff.pkt_type`.
const PACKET_BROADCAST: i32 = 1;
const PACKET_MULTICAST: i32 = 2;

/// The most extension headers of an IPv6 packet. A packet with more is dropped.
const MAX_EXTENSION_HEADERS: usize = 8;

/// The idle time after which a connection is forgotten, in units of 2^30 ns: about a second.
const TCP_TIMEOUT: i32 = 80_000;
const UDP_TIMEOUT: i32 = 170;
const ICMP_TIMEOUT: i32 = 28;
const OTHER_TIMEOUT: i32 = 560;

/// The flag of a connection whose destination was translated, in `nf_conn.status`.
const IPS_DST_NAT: i32 = 1 << 5;

/// The offsets in a query, the argument of the function that evaluates rules.
pub(crate) mod query {
    pub(crate) const FROM: i16 = 0;
    pub(crate) const TO: i16 = 16;
    pub(crate) const PROTOCOL: i16 = 32;
    pub(crate) const PORT: i16 = 36;
    pub(crate) const EPOCH: i16 = 40;
    pub(crate) const FLAGS: i16 = 44;
    /// The node forwards the packet, so ingress rules apply.
    pub(crate) const FORWARDED: i32 = 1;
    /// A pod reaches itself through a service.
    pub(crate) const SELF: i32 = 2;
    /// The protocol has ports.
    pub(crate) const PORTS: i32 = 4;
}

/// The results of the function that evaluates rules.
pub(crate) mod result {
    pub(crate) const DENIED_INGRESS: i32 = 0;
    pub(crate) const DENIED_EGRESS: i32 = 1;
    pub(crate) const ALLOWED: i32 = 2;
    /// Neither end is a pod of this node.
    pub(crate) const NOT_LOCAL: i32 = 3;
    /// The connection belongs to an earlier owner of the address.
    pub(crate) const INHERITED: i32 = 4;
}

/// The cause of the denial of a reply.
const CAUSE_ANSWER: i32 = 2;

/// What the kernel offers beyond the minimum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The state of a connection can be read. Without it, a pod cannot reach itself through a
    /// service if NetworkPolicies forbid it.
    pub conntrack: bool,
}

/// The program for a family.
pub fn program(family: IpFamily, features: Features) -> Vec<Instruction<MapId>> {
    let mut asm = Assembler::new();
    let judge = asm.label();
    let mut main =
        Main { accept: asm.label(), fail: asm.label(), judge, family, features, asm: &mut asm };
    main.emit();
    judge::emit(&mut asm, judge, family);
    asm.finish()
}

/// The main function. `R6` holds the packet; other registers are local to a step.
struct Main<'a> {
    asm: &'a mut Assembler<MapId>,
    family: IpFamily,
    features: Features,
    judge: Label,
    accept: Label,
    /// The packet cannot be read.
    fail: Label,
}

impl Main<'_> {
    fn emit(&mut self) {
        let (parsed, miss) = (self.asm.label(), self.asm.label());
        self.start();
        match self.family {
            IpFamily::V4 => self.parse_ipv4(),
            IpFamily::V6 => self.parse_ipv6(),
        }
        self.parse_transport(parsed);
        self.asm.place(parsed);
        self.check_group();
        self.build_key();
        self.asm.call(Helper::Time);
        self.asm.shift_right(R0, 30);
        self.asm.set(R8, R0);
        self.known_flow(miss);
        self.asm.place(miss);
        self.unknown_flow();
        self.end();
    }

    /// Reads the hook and the epoch. The epoch comes before the rules: a connection that is judged
    /// by old rules must not count as judged in the new epoch.
    fn start(&mut self) {
        let asm = &mut *self.asm;
        asm.load(Double, R2, R1, 0);
        asm.load(Double, R6, R1, 8);
        asm.load_field(Byte, R1, R2, Field::Hook);
        asm.store(Word, R10, HOOK, R1);
        asm.map_value(R1, MapId::Config);
        asm.load(Word, R2, R1, 0);
        asm.store(Word, R10, EPOCH, R2);
        asm.store_constant(Double, R10, FLAGS, 0);
        asm.store_constant(Double, R10, SOURCE_PORT, 0);
        asm.set(R1, R6);
        asm.set(R2, 0);
        asm.stack(R3, DYNPTR);
        asm.call_kfunc(Kfunc::DynptrFromSkb);
        asm.jump_if(NotEqual, R0, 0, self.fail);
    }

    /// `R0 = length bytes of the packet at the offset in R2`, or the label if it is too short.
    fn slice(&mut self, length: i32, otherwise: Label) {
        self.asm.stack(R1, DYNPTR);
        self.asm.stack(R3, BUFFER);
        self.asm.set(R4, length);
        self.asm.call_kfunc(Kfunc::DynptrSlice);
        self.asm.jump_if(Equal, R0, 0, otherwise);
    }

    fn set_flag(&mut self, flag: i32) {
        self.asm.load(Double, R1, R10, FLAGS);
        self.asm.or(R1, flag);
        self.asm.store(Double, R10, FLAGS, R1);
    }

    /// Copies an address of the family from `base + from` to the stack.
    fn copy_address(&mut self, base: Register, from: i16, to: i16) {
        match self.family {
            IpFamily::V4 => {
                self.asm.load(Word, R1, base, from);
                self.asm.store(Word, R10, to, R1);
            }
            // Headers in packets are aligned to 4 bytes.
            IpFamily::V6 => {
                for part in [0, 4, 8, 12] {
                    self.asm.load(Word, R1, base, from + part);
                    self.asm.store(Word, R10, to + part, R1);
                }
            }
        }
    }

    /// Reads the header. Then `R8` is the offset of the next one.
    fn parse_ipv4(&mut self) {
        self.asm.set(R2, 0);
        self.slice(20, self.fail);
        self.asm.set(R7, R0);
        self.copy_address(R7, 12, SOURCE);
        self.copy_address(R7, 16, DESTINATION);
        let (asm, fail) = (&mut *self.asm, self.fail);
        asm.load(Byte, R1, R7, 9);
        asm.store(Word, R10, PROTOCOL, R1);
        // The kernel reassembles fragments before.
        asm.load(Half, R1, R7, 6);
        asm.swap_half(R1);
        asm.and(R1, 0x3fff);
        asm.jump_if(NotEqual, R1, 0, fail);
        asm.load(Byte, R8, R7, 0);
        asm.and(R8, 0xf);
        asm.shift_left(R8, 2);
    }

    fn parse_ipv6(&mut self) {
        self.asm.set(R2, 0);
        self.slice(40, self.fail);
        self.asm.set(R7, R0);
        self.copy_address(R7, 8, SOURCE);
        self.copy_address(R7, 24, DESTINATION);
        let not_255 = self.asm.label();
        self.asm.load(Byte, R9, R7, 6);
        self.asm.load(Byte, R1, R7, 7);
        self.asm.jump_if(NotEqual, R1, 255, not_255);
        self.set_flag(NEIGHBOUR);
        self.asm.place(not_255);
        self.asm.set(R8, 40);
        let done = self.asm.label();
        for _ in 0..MAX_EXTENSION_HEADERS {
            let (next, fragment, authentication) =
                (self.asm.label(), self.asm.label(), self.asm.label());
            let extension = self.asm.label();
            for number in [0, 43, 44, 51, 60] {
                self.asm.jump_if(Equal, R9, number, extension);
            }
            self.asm.jump(done);
            self.asm.place(extension);
            self.asm.set(R2, R8);
            self.slice(8, self.fail);
            let (asm, fail) = (&mut *self.asm, self.fail);
            asm.load(Byte, R1, R0, 1);
            asm.jump_if(Equal, R9, 44, fragment);
            asm.jump_if(Equal, R9, 51, authentication);
            asm.add(R1, 1);
            asm.shift_left(R1, 3);
            asm.jump(next);
            asm.place(authentication);
            asm.add(R1, 2);
            asm.shift_left(R1, 2);
            asm.jump(next);
            asm.place(fragment);
            asm.load(Half, R1, R0, 2);
            asm.swap_half(R1);
            asm.and(R1, 0xfff9);
            asm.jump_if(NotEqual, R1, 0, fail);
            asm.set(R1, 8);
            asm.place(next);
            asm.load(Byte, R9, R0, 0);
            asm.add(R8, R1);
        }
        for number in [0, 43, 44, 51, 60] {
            self.asm.jump_if(Equal, R9, number, self.fail);
        }
        self.asm.place(done);
        self.asm.store(Word, R10, PROTOCOL, R9);
    }

    /// Reads the ports, or what takes their place.
    fn parse_transport(&mut self, parsed: Label) {
        let (tcp, ports, icmp) = (self.asm.label(), self.asm.label(), self.asm.label());
        let number = match self.family {
            IpFamily::V4 => PROTO_ICMP,
            IpFamily::V6 => PROTO_ICMPV6,
        };
        let asm = &mut *self.asm;
        asm.load(Word, R9, R10, PROTOCOL);
        asm.jump_if(Equal, R9, PROTO_TCP, tcp);
        asm.jump_if(Equal, R9, PROTO_UDP, ports);
        asm.jump_if(Equal, R9, PROTO_SCTP, ports);
        asm.jump_if(Equal, R9, number, icmp);
        asm.jump(parsed);

        asm.place(tcp);
        asm.set(R2, R8);
        self.slice(16, self.fail);
        let asm = &mut *self.asm;
        let copy = asm.label();
        asm.set(R2, TCP);
        asm.load(Byte, R1, R0, 13);
        // FIN, SYN, RST and ACK.
        asm.and(R1, 0x17);
        asm.jump_if(NotEqual, R1, 2, copy);
        asm.or(R2, SYN);
        asm.place(copy);
        asm.load(Double, R1, R10, FLAGS);
        asm.or(R1, R2);
        asm.store(Double, R10, FLAGS, R1);
        self.copy_ports(parsed);

        self.asm.place(ports);
        self.asm.set(R2, R8);
        self.slice(8, self.fail);
        self.copy_ports(parsed);

        self.asm.place(icmp);
        self.parse_icmp(parsed);
    }

    fn copy_ports(&mut self, parsed: Label) {
        self.asm.load(Half, R1, R0, 0);
        self.asm.store(Half, R10, SOURCE_PORT, R1);
        self.asm.load(Half, R1, R0, 2);
        self.asm.store(Half, R10, DESTINATION_PORT, R1);
        self.asm.jump(parsed);
    }

    /// The id of an echo takes the place of both ports.
    fn copy_echo_id(&mut self, parsed: Label) {
        self.asm.load(Half, R1, R0, 4);
        self.asm.store(Half, R10, SOURCE_PORT, R1);
        self.asm.store(Half, R10, DESTINATION_PORT, R1);
        self.asm.jump(parsed);
    }

    fn parse_icmp(&mut self, parsed: Label) {
        let (request, reply, error, alone) =
            (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.set(R2, R8);
        self.slice(8, self.fail);
        let asm = &mut *self.asm;
        asm.load(Byte, R1, R0, 0);
        match self.family {
            IpFamily::V4 => {
                asm.jump_if(Equal, R1, 8, request);
                asm.jump_if(Equal, R1, 0, reply);
                for kind in [3, 4, 5, 11, 12] {
                    asm.jump_if(Equal, R1, kind, error);
                }
            }
            IpFamily::V6 => {
                let others = asm.label();
                asm.jump_if(Equal, R1, 128, request);
                asm.jump_if(Equal, R1, 129, reply);
                asm.jump_if(Less, R1, 128, error);
                // Neighbour discovery.
                asm.jump_if(Less, R1, 133, others);
                asm.jump_if(Greater, R1, 137, others);
                asm.load(Double, R2, R10, FLAGS);
                asm.jump_if(Shares, R2, NEIGHBOUR, self.accept);
                asm.place(others);
            }
        }
        self.asm.place(alone);
        self.set_flag(ALONE);
        self.asm.jump(parsed);

        self.asm.place(reply);
        self.asm.load(Double, R1, R10, FLAGS);
        self.asm.or(R1, REPLY);
        self.asm.store(Double, R10, FLAGS, R1);
        self.asm.place(request);
        self.copy_echo_id(parsed);

        self.asm.place(error);
        self.parse_inner(alone, parsed);
    }

    /// Reads the packet that an ICMP error is about. Then its addresses are in place of those of the
    /// error, which are kept.
    fn parse_inner(&mut self, alone: Label, parsed: Label) {
        let (header, source, destination) = match self.family {
            IpFamily::V4 => (20, 12, 16),
            IpFamily::V6 => (40, 8, 24),
        };
        self.asm.set(R2, R8);
        self.asm.add(R2, 8);
        self.slice(header, alone);
        self.asm.set(R7, R0);
        // The addresses trade places below, when the packet can be read.
        self.copy_address(R7, source, INNER);
        self.copy_address(R7, destination, INNER + 16);
        let asm = &mut *self.asm;
        match self.family {
            IpFamily::V4 => {
                asm.load(Byte, R9, R7, 9);
                asm.load(Half, R1, R7, 6);
                asm.swap_half(R1);
                asm.and(R1, 0x1fff);
                asm.jump_if(NotEqual, R1, 0, alone);
                asm.load(Byte, R2, R7, 0);
                asm.and(R2, 0xf);
                asm.shift_left(R2, 2);
            }
            IpFamily::V6 => {
                asm.load(Byte, R9, R7, 6);
                asm.set(R2, 40);
            }
        }
        asm.add(R2, R8);
        asm.add(R2, 8);
        self.slice(8, alone);
        let (with_ports, echo, swap) = (self.asm.label(), self.asm.label(), self.asm.label());
        let asm = &mut *self.asm;
        for number in [PROTO_TCP, PROTO_UDP, PROTO_SCTP] {
            asm.jump_if(Equal, R9, number, with_ports);
        }
        let number = match self.family {
            IpFamily::V4 => PROTO_ICMP,
            IpFamily::V6 => PROTO_ICMPV6,
        };
        asm.jump_if(Equal, R9, number, echo);
        asm.jump(swap);
        asm.place(echo);
        asm.load(Half, R1, R0, 4);
        asm.store(Half, R10, SOURCE_PORT, R1);
        asm.store(Half, R10, DESTINATION_PORT, R1);
        asm.jump(swap);
        asm.place(with_ports);
        asm.load(Half, R1, R0, 0);
        asm.store(Half, R10, SOURCE_PORT, R1);
        asm.load(Half, R1, R0, 2);
        asm.store(Half, R10, DESTINATION_PORT, R1);
        asm.place(swap);
        asm.store(Word, R10, PROTOCOL, R9);
        self.swap_inner();
        self.set_flag(RELATED);
        self.asm.jump(parsed);
    }

    /// Exchanges the addresses of the packet and those of the packet inside.
    fn swap_inner(&mut self) {
        let words: &[i16] = match self.family {
            IpFamily::V4 => &[0],
            IpFamily::V6 => &[0, 4, 8, 12],
        };
        for (outer, inner) in [(SOURCE, INNER), (DESTINATION, INNER + 16)] {
            for word in words {
                self.asm.load(Word, R1, R10, outer + word);
                self.asm.load(Word, R2, R10, inner + word);
                self.asm.store(Word, R10, outer + word, R2);
                self.asm.store(Word, R10, inner + word, R1);
            }
        }
    }

    /// Drops packets to groups on a bridge while a pod is isolated for ingress, because rules cannot find
    /// their receivers. Packets that the link needs go on.
    fn check_group(&mut self) {
        let (group, pass, denied) = (self.asm.label(), self.asm.label(), self.asm.label());
        let asm = &mut *self.asm;
        asm.load(Word, R1, R10, HOOK);
        asm.jump_if(NotEqual, R1, HookPoint::Forward as i32, pass);
        asm.map_value(R1, MapId::Config);
        asm.load(Word, R1, R1, Config::FLAGS);
        asm.and(R1, Config::isolated(self.family));
        asm.jump_if(Equal, R1, 0, pass);
        asm.load(Double, R1, R10, FLAGS);
        asm.jump_if(Shares, R1, RELATED, pass);
        asm.load_field(Byte, R1, R6, Field::PacketType);
        // Frames for this host, and for another one on the bridge.
        asm.and(R1, 7);
        asm.jump_if(Equal, R1, PACKET_BROADCAST, group);
        asm.jump_if(Equal, R1, PACKET_MULTICAST, group);
        asm.load(Byte, R1, R10, DESTINATION);
        match self.family {
            IpFamily::V4 => {
                let not_multicast = asm.label();
                asm.set(R2, R1);
                asm.and(R2, 0xf0);
                asm.jump_if(Equal, R2, 0xe0, group);
                asm.load(Word, R1, R10, DESTINATION);
                asm.add(R1, 1);
                asm.shift_right(R1, 32);
                asm.jump_if(Equal, R1, 0, not_multicast);
                asm.jump(group);
                asm.place(not_multicast);
            }
            IpFamily::V6 => asm.jump_if(Equal, R1, 0xff, group),
        }
        asm.jump(pass);
        asm.place(group);
        asm.load(Word, R1, R10, PROTOCOL);
        let (udp, dhcp): (Label, [u16; 2]) = match self.family {
            IpFamily::V4 => {
                asm.jump_if(Equal, R1, PROTO_IGMP, pass);
                (asm.label(), [67, 68])
            }
            IpFamily::V6 => (asm.label(), [546, 547]),
        };
        asm.jump_if(Equal, R1, PROTO_UDP, udp);
        if self.family == IpFamily::V6 {
            // The type of the message, which the header before may have moved.
            asm.jump_if(NotEqual, R1, PROTO_ICMPV6, denied);
            asm.set(R2, R8);
            self.slice(8, denied);
            let asm = &mut *self.asm;
            asm.load(Byte, R1, R0, 0);
            asm.jump_if(Equal, R1, 143, pass);
            asm.jump_if(Less, R1, 130, denied);
            asm.jump_if(Greater, R1, 132, denied);
            asm.jump(pass);
        } else {
            asm.jump(denied);
        }
        let asm = &mut *self.asm;
        asm.place(udp);
        asm.load(Half, R1, R10, SOURCE_PORT);
        asm.swap_half(R1);
        asm.load(Half, R2, R10, DESTINATION_PORT);
        asm.swap_half(R2);
        let [one, other] = dhcp.map(i32::from);
        for (from, to) in [(one, other), (other, one)] {
            let next = asm.label();
            asm.jump_if(NotEqual, R1, from, next);
            asm.jump_if(Equal, R2, to, pass);
            asm.place(next);
        }
        asm.place(denied);
        asm.set(R0, result::DENIED_INGRESS);
        asm.store_constant(Double, R10, CAUSE, 0);
        self.set_alone_and_deny();
        self.asm.place(pass);
    }

    /// Denies a packet that belongs to no connection. `R0` is the result.
    fn set_alone_and_deny(&mut self) {
        self.set_flag(ALONE);
        self.deny();
    }

    /// Builds the key of the connection, which is the same for both directions. Then `R9` is 1 if the
    /// packet goes from the second end to the first.
    fn build_key(&mut self) {
        let (swapped, equal, straight, done) =
            (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        let (width, parts, length): (Width, &[i16], i16) = match self.family {
            IpFamily::V4 => (Word, &[0], 4),
            IpFamily::V6 => (Double, &[0, 8], 16),
        };
        for part in parts {
            self.asm.load(width, R1, R10, SOURCE + part);
            self.asm.load(width, R2, R10, DESTINATION + part);
            self.asm.jump_if(Greater, R1, R2, swapped);
            self.asm.jump_if(Less, R1, R2, straight);
        }
        self.asm.jump(equal);
        self.asm.place(equal);
        self.asm.load(Half, R1, R10, SOURCE_PORT);
        self.asm.load(Half, R2, R10, DESTINATION_PORT);
        self.asm.jump_if(Greater, R1, R2, swapped);
        self.asm.place(straight);
        self.asm.set(R9, 0);
        self.write_key(SOURCE, DESTINATION, SOURCE_PORT, DESTINATION_PORT, width, parts);
        self.asm.jump(done);
        self.asm.place(swapped);
        self.asm.set(R9, 1);
        self.write_key(DESTINATION, SOURCE, DESTINATION_PORT, SOURCE_PORT, width, parts);
        self.asm.place(done);
        let asm = &mut *self.asm;
        asm.load(Word, R1, R10, PROTOCOL);
        asm.store(Word, R10, KEY + 2 * length + 4, R1);
        asm.set(R1, 0);
        for at in (0..2 * length + 8).step_by(8) {
            asm.load(Double, R2, R10, KEY + at);
            asm.xor(R1, R2);
        }
        asm.set(R2, R1);
        asm.shift_right(R2, 32);
        asm.xor(R1, R2);
        asm.and(R1, i32::MAX);
        asm.store(Double, R10, CHECK, R1);
    }

    fn write_key(
        &mut self,
        first: i16,
        second: i16,
        first_port: i16,
        second_port: i16,
        width: Width,
        parts: &[i16],
    ) {
        let length = (parts.len() * width.bytes()) as i16;
        for part in parts {
            self.asm.load(width, R1, R10, first + part);
            self.asm.store(width, R10, KEY + part, R1);
            self.asm.load(width, R1, R10, second + part);
            self.asm.store(width, R10, KEY + length + part, R1);
        }
        self.asm.load(Half, R1, R10, first_port);
        self.asm.store(Half, R10, KEY + 2 * length, R1);
        self.asm.load(Half, R1, R10, second_port);
        self.asm.store(Half, R10, KEY + 2 * length + 2, R1);
    }

    /// Accepts the packet of a connection that passed, if the rules have not changed since, or still
    /// allow it. `R8` is the time.
    fn known_flow(&mut self, miss: Label) {
        let asm = &mut *self.asm;
        let (stale, touch) = (asm.label(), asm.label());
        let (other_way, ask, timed) = (asm.label(), asm.label(), asm.label());
        asm.load(Double, R1, R10, FLAGS);
        asm.jump_if(Shares, R1, SYN | ALONE, miss);
        asm.map(R1, MapId::Flows(self.family));
        asm.stack(R2, KEY);
        asm.call(Helper::MapLookup);
        asm.jump_if(Equal, R0, 0, miss);
        asm.set(R7, R0);
        // The kernel may have used the memory again for another connection: the value has a check.
        asm.load(Double, R3, R7, 0);
        asm.set(R2, R3);
        asm.shift_right(R2, 32);
        asm.and(R2, i32::MAX);
        asm.load(Double, R1, R10, CHECK);
        asm.jump_if(NotEqual, R1, R2, miss);
        // Forgotten connections.
        asm.load(Double, R1, R7, 8);
        asm.jump_if(GreaterOrEqual, R1, R8, timed);
        asm.set(R2, R8);
        asm.subtract(R2, R1);
        let number = match self.family {
            IpFamily::V4 => PROTO_ICMP,
            IpFamily::V6 => PROTO_ICMPV6,
        };
        asm.load(Word, R1, R10, PROTOCOL);
        let limits = [(PROTO_TCP, TCP_TIMEOUT), (PROTO_UDP, UDP_TIMEOUT), (number, ICMP_TIMEOUT)];
        for (protocol, limit) in limits {
            let other = asm.label();
            asm.jump_if(NotEqual, R1, protocol, other);
            asm.jump_if(Greater, R2, limit, miss);
            asm.place(other);
        }
        asm.jump_if(Equal, R1, PROTO_TCP, timed);
        asm.jump_if(Greater, R2, OTHER_TIMEOUT, miss);
        asm.place(timed);
        asm.set(R1, R3);
        asm.shift_left(R1, 32);
        asm.shift_right(R1, 32);
        asm.load(Word, R2, R10, EPOCH);
        asm.jump_if(NotEqual, R1, R2, stale);
        asm.place(touch);
        // An error about a packet does not keep its connection alive.
        asm.load(Double, R1, R10, FLAGS);
        asm.jump_if(Shares, R1, RELATED, self.accept);
        asm.load(Double, R1, R7, 8);
        asm.jump_if(Equal, R1, R8, self.accept);
        asm.store(Double, R7, 8, R8);
        asm.jump(self.accept);

        // The rules may have changed: evaluate them for the end that began the connection.
        asm.place(stale);
        asm.store(Word, R10, QUERY + query::EPOCH, R1);
        asm.shift_right(R3, 63);
        asm.set(R7, R3);
        asm.jump_if(NotEqual, R3, R9, other_way);
        self.ask(Way::Forward);
        self.asm.store_constant(Double, R10, CAUSE, 0);
        self.asm.jump(ask);
        self.asm.place(other_way);
        self.ask(Way::Back);
        self.asm.store_constant(Double, R10, CAUSE, CAUSE_ANSWER);
        self.asm.place(ask);
        self.call_judge();
        let denied = self.asm.label();
        let asm = &mut *self.asm;
        asm.jump_if(Equal, R0, result::INHERITED, miss);
        asm.jump_if(Equal, R0, result::NOT_LOCAL, self.accept);
        let keep = asm.label();
        asm.jump_if(Equal, R0, result::ALLOWED, keep);
        asm.map_value(R1, MapId::Config);
        asm.load(Word, R1, R1, Config::FLAGS);
        asm.and(R1, Config::KEEP);
        asm.jump_if(Equal, R1, 0, denied);
        asm.place(keep);
        self.remember();
        self.asm.jump(self.accept);
        self.asm.place(denied);
        self.turn_around(miss);
        self.deny();
    }

    /// A reply of a denied connection with equal ports can be a connection in the other direction, if it
    /// is not of TCP, whose first packet shows the direction.
    fn turn_around(&mut self, miss: Label) {
        let asm = &mut *self.asm;
        let (equal, deny) = (asm.label(), asm.label());
        asm.load(Double, R1, R10, CAUSE);
        asm.jump_if(Equal, R1, 0, deny);
        asm.load(Word, R1, R10, PROTOCOL);
        asm.jump_if(Equal, R1, PROTO_UDP, equal);
        asm.jump_if(NotEqual, R1, PROTO_SCTP, deny);
        asm.place(equal);
        asm.load(Double, R1, R10, FLAGS);
        asm.jump_if(Shares, R1, RELATED, deny);
        asm.load(Half, R1, R10, SOURCE_PORT);
        asm.load(Half, R2, R10, DESTINATION_PORT);
        asm.jump_if(Equal, R1, R2, miss);
        asm.place(deny);
    }

    /// Evaluates the rules for a packet of an unknown connection.
    fn unknown_flow(&mut self) {
        let (restored, middle, denied) = (self.asm.label(), self.asm.label(), self.asm.label());
        let remember = self.asm.label();
        self.asm.store_constant(Word, R10, QUERY + query::EPOCH, -1);
        self.asm.store_constant(Double, R10, CAUSE, 0);
        self.asm.load(Double, R1, R10, FLAGS);
        let not_related = self.asm.label();
        self.asm.jump_if(Shares, R1, RELATED, restored);
        self.asm.jump(not_related);
        // An error about an unknown connection is a packet by itself.
        self.asm.place(restored);
        self.swap_inner();
        let number = match self.family {
            IpFamily::V4 => PROTO_ICMP,
            IpFamily::V6 => PROTO_ICMPV6,
        };
        self.asm.store_constant(Word, R10, PROTOCOL, number);
        self.asm.store_constant(Word, R10, SOURCE_PORT, 0);
        self.asm.store_constant(Double, R10, FLAGS, ALONE);
        self.asm.place(not_related);
        self.asm.load(Double, R1, R10, FLAGS);
        self.asm.and(R1, SYN | TCP);
        self.asm.jump_if(Equal, R1, TCP, middle);

        self.asm.set(R7, R9);
        self.ask(Way::Forward);
        self.call_judge();
        self.asm.jump_if(Equal, R0, result::NOT_LOCAL, self.accept);
        self.asm.jump_if(NotEqual, R0, result::ALLOWED, denied);
        self.asm.load(Double, R1, R10, FLAGS);
        self.asm.jump_if(Shares, R1, ALONE | REPLY, self.accept);
        self.asm.jump(remember);

        // From the middle of a TCP connection: the end with the higher port probably began it, but
        // the connection passes if either end may begin it.
        self.asm.place(middle);
        let (back_first, back_second, forward_second) =
            (self.asm.label(), self.asm.label(), self.asm.label());
        let forward_first = self.asm.label();
        let asm = &mut *self.asm;
        asm.load(Half, R1, R10, SOURCE_PORT);
        asm.swap_half(R1);
        asm.load(Half, R2, R10, DESTINATION_PORT);
        asm.swap_half(R2);
        asm.jump_if(GreaterOrEqual, R1, 32768, forward_first);
        asm.jump_if(GreaterOrEqual, R2, 32768, back_first);
        asm.place(forward_first);
        asm.set(R7, R9);
        self.ask(Way::Forward);
        self.call_judge();
        self.asm.jump_if(Equal, R0, result::NOT_LOCAL, self.accept);
        self.asm.jump_if(Equal, R0, result::ALLOWED, remember);
        self.asm.place(back_second);
        self.asm.set(R7, R9);
        self.asm.xor(R7, 1);
        self.ask(Way::Back);
        self.call_judge();
        self.asm.jump_if(Equal, R0, result::ALLOWED, remember);
        self.asm.jump(denied);
        self.asm.place(back_first);
        self.asm.set(R7, R9);
        self.asm.xor(R7, 1);
        self.ask(Way::Back);
        self.call_judge();
        self.asm.jump_if(Equal, R0, result::NOT_LOCAL, self.accept);
        self.asm.jump_if(Equal, R0, result::ALLOWED, remember);
        self.asm.place(forward_second);
        self.asm.set(R7, R9);
        self.ask(Way::Forward);
        self.call_judge();
        self.asm.jump_if(NotEqual, R0, result::ALLOWED, denied);

        self.asm.place(remember);
        self.remember();
        self.asm.jump(self.accept);
        self.asm.place(denied);
        self.deny();
    }

    /// Fills in the addresses and the port of a query.
    fn ask(&mut self, way: Way) {
        let (from, to, port) = match way {
            Way::Forward => (SOURCE, DESTINATION, DESTINATION_PORT),
            Way::Back => (DESTINATION, SOURCE, SOURCE_PORT),
        };
        self.copy_address(R10, from, QUERY + query::FROM);
        self.copy_address(R10, to, QUERY + query::TO);
        self.asm.load(Half, R1, R10, port);
        self.asm.store(Half, R10, QUERY + query::PORT, R1);
    }

    /// Completes a query and evaluates the rules.
    fn call_judge(&mut self) {
        let asm = &mut *self.asm;
        let (ports, ports_done, hook_done) = (asm.label(), asm.label(), asm.label());
        asm.set(R2, 0);
        asm.load(Word, R1, R10, PROTOCOL);
        asm.store(Word, R10, QUERY + query::PROTOCOL, R1);
        for number in [PROTO_TCP, PROTO_UDP, PROTO_SCTP] {
            asm.jump_if(Equal, R1, number, ports);
        }
        asm.jump(ports_done);
        asm.place(ports);
        asm.or(R2, query::PORTS);
        asm.place(ports_done);
        asm.load(Word, R1, R10, HOOK);
        asm.jump_if(NotEqual, R1, HookPoint::Forward as i32, hook_done);
        asm.or(R2, query::FORWARDED);
        asm.place(hook_done);
        asm.store(Word, R10, QUERY + query::FLAGS, R2);
        if self.features.conntrack {
            self.check_self();
        }
        self.asm.stack(R1, QUERY);
        self.asm.call_local(self.judge);
    }

    /// Marks a query about a pod that reaches itself through a service. Only a translated connection
    /// counts, so no other sender can pose as the pod.
    fn check_self(&mut self) {
        let other = self.asm.label();
        let (width, parts): (Width, &[i16]) = match self.family {
            IpFamily::V4 => (Word, &[0]),
            IpFamily::V6 => (Double, &[0, 8]),
        };
        for part in parts {
            self.asm.load(width, R1, R10, SOURCE + part);
            self.asm.load(width, R2, R10, DESTINATION + part);
            self.asm.jump_if(NotEqual, R1, R2, other);
        }
        let asm = &mut *self.asm;
        asm.load_field(Double, R1, R6, Field::Conntrack);
        // The lowest bits are the state of the packet.
        asm.and(R1, !7);
        asm.jump_if(Equal, R1, 0, other);
        asm.struct_id(R2, Field::ConntrackStatus);
        asm.call_kfunc(Kfunc::ReadOnlyCast);
        asm.load_field(Double, R1, R0, Field::ConntrackStatus);
        asm.and(R1, IPS_DST_NAT);
        asm.jump_if(Equal, R1, 0, other);
        asm.load(Word, R1, R10, QUERY + query::FLAGS);
        asm.or(R1, query::SELF);
        asm.store(Word, R10, QUERY + query::FLAGS, R1);
        asm.place(other);
    }

    /// Remembers the connection in this epoch, which the end `R7` began.
    fn remember(&mut self) {
        let asm = &mut *self.asm;
        asm.shift_left(R7, 31);
        asm.load(Double, R1, R10, CHECK);
        asm.or(R7, R1);
        asm.shift_left(R7, 32);
        asm.load(Word, R1, R10, EPOCH);
        asm.or(R7, R1);
        asm.store(Double, R10, VALUE, R7);
        asm.store(Double, R10, VALUE + 8, R8);
        asm.map(R1, MapId::Flows(self.family));
        asm.stack(R2, KEY);
        asm.stack(R3, VALUE);
        asm.set(R4, 0);
        asm.call(Helper::MapUpdate);
    }

    /// Counts and drops a packet. `R0` is the result of the rules. In audit mode the packet passes, and
    /// so does its connection.
    fn deny(&mut self) {
        let asm = &mut *self.asm;
        let (count, counted, drop) = (asm.label(), asm.label(), asm.label());
        asm.load(Double, R1, R10, CAUSE);
        asm.jump_if(NotEqual, R1, 0, count);
        asm.store(Double, R10, CAUSE, R0);
        asm.place(count);
        asm.map(R1, MapId::Denied);
        asm.stack(R2, CAUSE);
        asm.call(Helper::MapLookup);
        asm.jump_if(Equal, R0, 0, counted);
        asm.load(Double, R1, R0, 0);
        asm.add(R1, 1);
        asm.store(Double, R0, 0, R1);
        asm.place(counted);
        asm.map_value(R1, MapId::Config);
        asm.load(Word, R1, R1, Config::FLAGS);
        asm.and(R1, Config::AUDIT);
        asm.jump_if(Equal, R1, 0, drop);
        asm.load(Double, R1, R10, FLAGS);
        asm.jump_if(Shares, R1, ALONE | REPLY | RELATED, self.accept);
        self.remember();
        self.asm.jump(self.accept);
        self.asm.place(drop);
        self.asm.set(R0, NF_DROP);
        self.asm.exit();
    }

    /// The end of the program. Packets that the node sends pass even if they cannot be read.
    fn end(&mut self) {
        let asm = &mut *self.asm;
        asm.place(self.fail);
        asm.load(Word, R1, R10, HOOK);
        asm.jump_if(Equal, R1, HookPoint::Output as i32, self.accept);
        asm.set(R0, NF_DROP);
        asm.exit();
        asm.place(self.accept);
        asm.set(R0, NF_ACCEPT);
        asm.exit();
    }
}

/// The direction of a query, compared with that of the packet.
#[derive(Clone, Copy)]
enum Way {
    Forward,
    Back,
}
