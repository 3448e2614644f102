// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//! Known and unknown connections.

use weir_model::IpFamily;

use super::{ask::Way, *};
use crate::layout::{CUT_CONNECTIONS, Config, FlowEntry};
use Comparison::{GreaterOrEqual, Less, Shares};
use Register::{R5, R7, R9};
use Width::Half;

impl Main<'_> {
    /// Builds the key of the connection, which is the same for both directions, and its check. Then `R9`
    /// is 1 if the packet goes from the second end to the first.
    ///
    /// A load that needs the result of two smaller stores waits for both, so all parts meet in registers.
    pub(super) fn build_key(&mut self) {
        let (swapped, straight) = (self.asm.label(), self.asm.label());
        let (width, first, second): (Width, &[Register], &[Register]) = match self.family {
            IpFamily::V4 => (Word, &[R1], &[R2]),
            IpFamily::V6 => (Double, &[R1, R2], &[R3, R4]),
        };
        let asm = &mut *self.asm;
        for (ends, from) in [(first, SOURCE), (second, DESTINATION)] {
            for (register, part) in ends.iter().zip([0, 8]) {
                asm.load(width, *register, R10, from + part);
            }
        }
        asm.load(Word, R5, R10, SOURCE_PORT);
        asm.set(R9, 0);
        for (first, second) in first.iter().zip(second) {
            asm.jump_if(Greater, *first, *second, swapped);
            asm.jump_if(Less, *first, *second, straight);
        }
        asm.load(Half, R0, R10, SOURCE_PORT);
        asm.load(Half, R7, R10, DESTINATION_PORT);
        asm.jump_if(GreaterOrEqual, R7, R0, straight);
        asm.place(swapped);
        asm.set(R9, 1);
        for (first, second) in first.iter().zip(second) {
            asm.set(R0, *first);
            asm.set(*first, *second);
            asm.set(*second, R0);
        }
        asm.set(R0, R5);
        asm.shift_right(R0, 16);
        asm.shift_left(R5, 48);
        asm.shift_right(R5, 32);
        asm.or(R5, R0);
        asm.place(straight);
        asm.load(Word, R0, R10, PROTOCOL);
        asm.pair(R5, R0);
        let parts: &[Register] = match self.family {
            IpFamily::V4 => {
                asm.pair(R1, R2);
                &[R1, R5]
            }
            IpFamily::V6 => &[R1, R2, R3, R4, R5],
        };
        for (register, part) in parts.iter().zip((KEY..).step_by(8)) {
            asm.store(Double, R10, part, *register);
        }
        for register in &parts[1..] {
            asm.xor(R1, *register);
        }
        asm.set(R2, R1);
        asm.shift_right(R2, 32);
        asm.xor(R1, R2);
        asm.and(R1, i32::MAX);
        asm.store(Double, R10, CHECK, R1);
    }

    /// Accepts the packet of a connection that passed, if the rules have not changed since, or still
    /// allow it. `R8` is the time.
    pub(super) fn known_flow(&mut self, miss: Label) {
        let asm = &mut *self.asm;
        let (stale, touch) = (asm.label(), asm.label());
        let (other_way, ask, timed) = (asm.label(), asm.label(), asm.label());
        asm.load(Word, R1, R10, FLAGS);
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
        // Forgotten connections. The upper bit of the time marks those that were cut.
        asm.load(Double, R1, R7, 8);
        asm.set(R5, R1);
        asm.shift_left(R1, 1);
        asm.shift_right(R1, 1);
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
        // A request of the other end is a connection of its own.
        let known = asm.label();
        asm.load(Word, R1, R10, FLAGS);
        asm.and(R1, REQUEST);
        asm.jump_if(Equal, R1, 0, known);
        asm.set(R1, R3);
        asm.shift_right(R1, 63);
        asm.jump_if(NotEqual, R1, R9, miss);
        asm.place(known);
        asm.set(R1, R3);
        asm.shift_left(R1, 32);
        asm.shift_right(R1, 32);
        asm.load(Word, R2, R10, EPOCH);
        asm.jump_if(NotEqual, R1, R2, stale);
        asm.place(touch);
        // An error about a packet does not keep its connection alive.
        asm.load(Word, R1, R10, FLAGS);
        asm.jump_if(Shares, R1, RELATED, self.accept);
        asm.load(Double, R1, R7, 8);
        asm.jump_if(Equal, R1, R8, self.accept);
        asm.store(Double, R7, 8, R8);
        asm.jump(self.accept);

        // The rules may have changed: evaluate them for the end that began the connection.
        // A cut connection is no longer established: names that have lost an address do not count.
        asm.place(stale);
        asm.store(Word, R10, QUERY + query::EPOCH, R1);
        asm.shift_right(R5, FlowEntry::CUT_BIT);
        asm.xor(R5, 1);
        asm.store(Half, R10, QUERY + query::ESTABLISHED, R5);
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
        self.mark_cut();
        self.asm.jump(self.deny);
    }

    /// Marks the connection as cut, and counts it when that is new. `R0` keeps its value.
    fn mark_cut(&mut self) {
        let asm = &mut *self.asm;
        let done = asm.label();
        asm.store(Double, R10, RESULT, R0);
        asm.map_value(R1, MapId::Config);
        asm.load(Word, R1, R1, Config::FLAGS);
        asm.jump_if(Shares, R1, Config::AUDIT, done);
        asm.map(R1, MapId::Flows(self.family));
        asm.stack(R2, KEY);
        asm.call(Helper::MapLookup);
        asm.jump_if(Equal, R0, 0, done);
        asm.load(Double, R1, R0, 8);
        asm.set(R2, R1);
        asm.shift_right(R2, FlowEntry::CUT_BIT);
        asm.jump_if(NotEqual, R2, 0, done);
        asm.set(R2, 1);
        asm.shift_left(R2, FlowEntry::CUT_BIT);
        asm.or(R1, R2);
        asm.store(Double, R0, 8, R1);
        asm.store_constant(Double, R10, OTHER_CAUSE, CUT_CONNECTIONS as i32);
        asm.map(R1, MapId::Denied);
        asm.stack(R2, OTHER_CAUSE);
        asm.call(Helper::MapLookup);
        asm.jump_if(Equal, R0, 0, done);
        asm.load(Double, R1, R0, 0);
        asm.add(R1, 1);
        asm.store(Double, R0, 0, R1);
        asm.place(done);
        asm.load(Double, R0, R10, RESULT);
    }

    /// A reply of a denied connection with equal ports can be a connection in the other direction, if it
    /// is not of TCP, whose first packet shows the direction.
    pub(super) fn turn_around(&mut self, miss: Label) {
        let asm = &mut *self.asm;
        let (equal, deny) = (asm.label(), asm.label());
        asm.load(Double, R1, R10, CAUSE);
        asm.jump_if(Equal, R1, 0, deny);
        asm.load(Word, R1, R10, PROTOCOL);
        asm.jump_if(Equal, R1, PROTO_UDP, equal);
        asm.jump_if(NotEqual, R1, PROTO_SCTP, deny);
        asm.place(equal);
        asm.load(Word, R1, R10, FLAGS);
        asm.jump_if(Shares, R1, RELATED, deny);
        asm.load(Half, R1, R10, SOURCE_PORT);
        asm.load(Half, R2, R10, DESTINATION_PORT);
        asm.jump_if(Equal, R1, R2, miss);
        asm.place(deny);
    }

    /// Evaluates the rules for a packet of an unknown connection.
    pub(super) fn unknown_flow(&mut self) {
        let (restored, middle, allowed) = (self.asm.label(), self.asm.label(), self.asm.label());
        let (forward, denied) = (self.asm.label(), self.asm.label());
        self.asm.store_constant(Word, R10, QUERY + query::EPOCH, -1);
        self.asm.store_constant(Half, R10, QUERY + query::ESTABLISHED, 0);
        self.asm.store_constant(Double, R10, CAUSE, 0);
        // The fast lane has no errors.
        if self.site == Site::Netfilter {
            self.asm.load(Word, R1, R10, FLAGS);
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
            self.asm.store_constant(Word, R10, FLAGS, ALONE);
            self.asm.place(not_related);
        }
        self.asm.load(Word, R1, R10, FLAGS);
        self.asm.and(R1, SYN | TCP);
        let from_middle = match self.site {
            Site::Netfilter => middle,
            // Only conntrack, which the lane does not have, can know that such a packet is a reply.
            Site::Lane => self.fail,
        };
        self.asm.jump_if(Equal, R1, TCP, from_middle);

        self.asm.place(forward);
        self.asm.set(R7, R9);
        self.ask(Way::Forward);
        self.call_judge();
        self.asm.jump_if(Equal, R0, result::NOT_LOCAL, self.accept);
        self.asm.jump_if(Equal, R0, result::ALLOWED, allowed);
        self.asm.jump(denied);

        if self.site == Site::Netfilter {
            self.asm.place(middle);
            self.middle_of_flow(forward, denied);
        }

        self.asm.place(allowed);
        self.asm.load(Word, R1, R10, FLAGS);
        self.asm.jump_if(Shares, R1, ALONE | REPLY, self.accept);
        self.remember();
        self.asm.jump(self.accept);

        self.asm.place(denied);
        if self.features.conntrack {
            self.asm.store(Double, R10, RESULT, R0);
            let unexpected = self.asm.label();
            self.check_expected(unexpected);
            self.asm.place(unexpected);
            self.asm.load(Double, R0, R10, RESULT);
        }
        self.asm.jump(self.deny);
    }

    /// Evaluates the rules for a packet from the middle of an unknown TCP connection. The code after
    /// this remembers an allowed one.
    ///
    /// A sender could make any packet look like a reply, so its own direction must be allowed, unless
    /// conntrack has seen the connection pass. If only the receiver has a port that systems give to
    /// clients, it must be allowed to begin it, too.
    fn middle_of_flow(&mut self, forward: Label, denied: Label) {
        let tracked = self.asm.label();
        let asm = &mut *self.asm;
        if self.features.conntrack {
            asm.load_field(Double, R1, R6, Field::Conntrack);
            asm.and(R1, 7);
            asm.jump_if(Equal, R1, IP_CT_ESTABLISHED_REPLY, tracked);
        }
        asm.load(Half, R1, R10, SOURCE_PORT);
        asm.swap_half(R1);
        asm.shift_right(R1, CLIENT_PORT_BITS);
        asm.load(Half, R2, R10, DESTINATION_PORT);
        asm.swap_half(R2);
        asm.shift_right(R2, CLIENT_PORT_BITS);
        asm.jump_if(GreaterOrEqual, R1, R2, forward);
        asm.set(R7, R9);
        self.ask(Way::Forward);
        self.call_judge();
        self.asm.jump_if(Equal, R0, result::NOT_LOCAL, self.accept);
        self.asm.jump_if(NotEqual, R0, result::ALLOWED, denied);
        self.asm.place(tracked);
        self.asm.set(R7, R9);
        self.asm.xor(R7, 1);
        self.ask(Way::Back);
        self.call_judge();
        self.asm.jump_if(Equal, R0, result::NOT_LOCAL, self.accept);
        self.asm.jump_if(NotEqual, R0, result::ALLOWED, denied);
    }

    /// Remembers the connection in this epoch, which the end `R7` began.
    pub(super) fn remember(&mut self) {
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
}
