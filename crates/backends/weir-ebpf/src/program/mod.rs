// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//! The program that the kernel runs for each packet, one for each address family.
//!
//! The files of this folder may be used under the terms of Apache-2.0 or of GPL-2.0. The kernel lets a
//! program call its functions only if the program has a licence that is compatible with the GPL.
//!
//! ```text
//!   packet ─► known connection, judged in this epoch? ─────────────────────────────► accept
//!          ─► else the addresses' kinds ─► decisions of the pods' tiers ─┬─ allowed ─► remember, accept
//!                                                                       └─ denied ──► report, drop
//! ```
//!
//! The same program runs where the node forwards packets, receives them and sends them. Only where
//! it forwards do the ingress rules of a pod apply.

mod ask;
mod clock;
mod deny;
mod expected;
mod flow;
mod group;
mod judge;
mod lane;
mod parse;
mod query;

use weir_model::IpFamily;

use crate::{
    assembler::{Assembler, Label},
    instruction::{Comparison, Field, Helper, Instruction, Kfunc, Register, Width},
    layout::MapId,
};

use Comparison::{Equal, Greater, NotEqual};
use Register::{R0, R1, R2, R3, R4, R6, R8, R10};
use Width::{Byte, Double, Word};

/// The licence that the kernel checks: of the two licences of this folder, the one that the kernel
/// accepts. It knows a fixed list, which has no Apache-2.0 and no pair with it.
pub const LICENSE: &str = "GPL v2";

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
// The verifier follows values at multiples of 8 only. It would verify the rest for each value of this.
const FLAGS: i16 = -212;
const CHECK: i16 = -224;
const INNER: i16 = -256;
const CAUSE: i16 = -264;
const OTHER_CAUSE: i16 = -272;
const NOW: i16 = -280;
const BUCKET: i16 = -288;
const LINK: i16 = -296;
const REPORT: i16 = -360;
const DATA: i16 = -368;
const LINEAR: i16 = -376;
const OFFSET: i16 = -384;
const RESULT: i16 = -392;
const OWN_PROTOCOL: i16 = -400;

/// The packet begins a TCP connection.
const SYN: i32 = 1;
/// The packet cannot begin a connection.
const REPLY: i32 = 2;
/// The packet belongs to no connection.
const ALONE: i32 = 4;
/// The packet is an error about a packet of the connection.
const RELATED: i32 = 8;
/// The flags of packets that no answer may follow.
pub(crate) const UNANSWERED: i32 = REPLY | ALONE | RELATED;
/// The protocol is TCP.
const TCP: i32 = 16;
/// The hop limit is 255: the packet comes from a neighbour.
const NEIGHBOUR: i32 = 32;
/// The packet is a request, which only the end that began the connection sends.
const REQUEST: i32 = 64;

const PROTO_ICMP: i32 = 1;
const PROTO_IGMP: i32 = 2;
const PROTO_TCP: i32 = 6;
const PROTO_UDP: i32 = 17;
const PROTO_ICMPV6: i32 = 58;
const PROTO_SCTP: i32 = 132;

/// The flag of a packet that resets a connection.
const TCP_RST: i32 = 4;

/// The kinds of frames in `sk_buff.pkt_type`.
const PACKET_BROADCAST: i32 = 1;
const PACKET_MULTICAST: i32 = 2;

/// The most extension headers of an IPv6 packet. A packet with more is dropped.
const MAX_EXTENSION_HEADERS: usize = 8;

/// The idle time after which a connection is forgotten, in units of [`TickClock`]: about a second.
const TCP_TIMEOUT: i32 = 80_000;
const UDP_TIMEOUT: i32 = 170;
const ICMP_TIMEOUT: i32 = 28;
const OTHER_TIMEOUT: i32 = 560;

/// Systems give clients ports whose upper bit is set, from 32768. Shifting by this leaves the bit.
const CLIENT_PORT_BITS: i32 = 15;

/// The flag of a connection whose destination was translated, in `nf_conn.status`.
const IPS_DST_NAT: i32 = 1 << 5;

/// The state of a packet in the lowest bits of `sk_buff._nfct`: conntrack saw packets of both
/// directions, and this is a reply.
const IP_CT_ESTABLISHED_REPLY: i32 = 3;

/// The flag of a connection that a helper expected.
const IPS_EXPECTED: i32 = 1;

/// The results of the function that evaluates rules.
pub(crate) mod result {
    pub(crate) const DENIED_INGRESS: i32 = 0;
    pub(crate) const DENIED_EGRESS: i32 = 1;
    pub(crate) const ALLOWED: i32 = 2;
    /// Neither end is a pod of this node.
    pub(crate) const NOT_LOCAL: i32 = 3;
    /// The connection belongs to an earlier owner of the address.
    pub(crate) const INHERITED: i32 = 4;
    /// Both directions are denied, in audit mode.
    pub(crate) const DENIED_BOTH: i32 = 5;
}

/// The cause of the denial of a reply.
const CAUSE_ANSWER: i32 = 2;

/// What depends on the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The state of a connection can be read. Without it, a pod cannot reach itself through a
    /// service if NetworkPolicies forbid it.
    pub conntrack: bool,
    /// How the kernel counts time.
    pub clock: TickClock,
}

pub use clock::TickClock;
pub use lane::{LANE_DROP, LANE_NEXT, LANE_REDIRECT, context, lane_program};

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    /// At a hook of netfilter.
    Netfilter,
    /// Where a link receives packets, in the fast lane.
    Lane,
}

/// The program for a family.
pub fn program(family: IpFamily, features: Features) -> Vec<Instruction<MapId>> {
    assemble(family, features, Site::Netfilter)
}

fn assemble(family: IpFamily, features: Features, site: Site) -> Vec<Instruction<MapId>> {
    let mut asm = Assembler::new();
    let [accept, fail, deny, judge] = [(); 4].map(|()| asm.label());
    let mut main = Main { asm: &mut asm, family, features, site, judge, accept, deny, fail };
    match site {
        Site::Netfilter => main.emit(),
        Site::Lane => main.emit_lane(),
    }
    judge::emit(&mut asm, judge, family);
    asm.finish()
}

/// A program that accepts every packet.
pub(crate) fn accept_all() -> Vec<Instruction<MapId>> {
    let mut asm = Assembler::new();
    asm.set(R0, NF_ACCEPT);
    asm.exit();
    asm.finish()
}

/// The main function. `R6` holds the packet; other registers are local to a step.
struct Main<'a> {
    asm: &'a mut Assembler<MapId>,
    family: IpFamily,
    features: Features,
    site: Site,
    judge: Label,
    accept: Label,
    /// The rules deny the packet. `R0` is their result.
    deny: Label,
    /// The packet cannot be read.
    fail: Label,
}

impl Main<'_> {
    fn emit(&mut self) {
        let parsed = self.asm.label();
        self.start();
        match self.family {
            IpFamily::V4 => self.parse_ipv4(),
            IpFamily::V6 => self.parse_ipv6(),
        }
        self.parse_transport(parsed);
        self.asm.place(parsed);
        self.check_group();
        self.evaluate();
        self.end();
    }

    /// Decides about a packet that was read.
    fn evaluate(&mut self) {
        let miss = self.asm.label();
        self.build_key();
        self.read_time();
        self.known_flow(miss);
        self.asm.place(miss);
        self.unknown_flow();
        self.deny();
    }

    /// `R8 = the time`, in units of [`TickClock`].
    fn read_time(&mut self) {
        self.asm.call(Helper::Ticks);
        self.asm.shift_right(R0, self.features.clock.shift());
        self.asm.set(R8, R0);
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
        asm.store_constant(Word, R10, FLAGS, 0);
        asm.store_constant(Double, R10, SOURCE_PORT, 0);
        asm.load_field(Double, R1, R6, Field::Data);
        asm.store(Double, R10, DATA, R1);
        asm.load_field(Word, R1, R6, Field::Length);
        asm.load_field(Word, R2, R6, Field::PagedLength);
        asm.subtract(R1, R2);
        asm.store(Double, R10, LINEAR, R1);
    }

    /// `R0 = length bytes of the packet at the offset in R2`, a copy, or the label if it is too short.
    fn copy(&mut self, length: i16, otherwise: Label) {
        let (slow, done) = (self.asm.label(), self.asm.label());
        let asm = &mut *self.asm;
        asm.set(R1, R2);
        asm.add(R1, i32::from(length));
        asm.load(Double, R3, R10, LINEAR);
        asm.jump_if(Greater, R1, R3, slow);
        // The kernel turns the cast into a move, and checks the addresses of loads from its result.
        asm.load(Double, R1, R10, DATA);
        asm.add(R1, R2);
        asm.struct_id(R2, Field::Doubles);
        asm.call_kfunc(Kfunc::ReadOnlyCast);
        copy_to_buffer(asm, length);
        asm.jump(done);
        asm.place(slow);
        self.slice(i32::from(length), otherwise);
        copy_to_buffer(self.asm, length);
        self.asm.place(done);
        self.asm.stack(R0, BUFFER);
    }

    /// The same for rare headers, without the faster way, which the kernel would verify too.
    fn slice(&mut self, length: i32, otherwise: Label) {
        let asm = &mut *self.asm;
        asm.store(Double, R10, OFFSET, R2);
        asm.set(R1, R6);
        asm.set(R2, 0);
        asm.stack(R3, DYNPTR);
        asm.call_kfunc(Kfunc::DynptrFromSkb);
        asm.jump_if(NotEqual, R0, 0, otherwise);
        asm.stack(R1, DYNPTR);
        asm.load(Double, R2, R10, OFFSET);
        asm.stack(R3, BUFFER);
        asm.set(R4, length);
        asm.call_kfunc(Kfunc::DynptrSlice);
        asm.jump_if(Equal, R0, 0, otherwise);
    }

    fn set_flag(&mut self, flag: i32) {
        self.asm.load(Word, R1, R10, FLAGS);
        self.asm.or(R1, flag);
        self.asm.store(Word, R10, FLAGS, R1);
    }

    /// Copies an address of the family from `base + from` to the stack.
    fn copy_address(&mut self, base: Register, from: i16, to: i16) {
        match self.family {
            IpFamily::V4 => {
                self.asm.load(Word, R1, base, from);
                self.asm.store(Word, R10, to, R1);
            }
            IpFamily::V6 => {
                for part in [0, 8] {
                    self.asm.load(Double, R1, base, from + part);
                    self.asm.store(Double, R10, to + part, R1);
                }
            }
        }
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

/// Copies bytes, a multiple of 4, from `R0` to the buffer. The kernel checks the address of each load, so
/// few wide ones cost less.
fn copy_to_buffer(asm: &mut Assembler<MapId>, length: i16) {
    for at in (0..length).step_by(8) {
        let width = if at + 8 <= length { Double } else { Word };
        asm.load(width, R1, R0, at);
        asm.store(width, R10, BUFFER + at, R1);
    }
}
