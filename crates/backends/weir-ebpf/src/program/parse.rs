// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//! Reads the headers of a packet.

use weir_model::IpFamily;

use super::*;
use Comparison::{Less, Shares};
use Register::{R7, R9};
use Width::Half;

impl Main<'_> {
    /// Reads the header. Then `R8` is the offset of the next one.
    pub(super) fn parse_ipv4(&mut self) {
        self.asm.set(R2, 0);
        self.copy(20, self.fail);
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

    pub(super) fn parse_ipv6(&mut self) {
        self.asm.set(R2, 0);
        self.copy(40, self.fail);
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
    pub(super) fn parse_transport(&mut self, parsed: Label) {
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
        self.copy(16, self.fail);
        self.read_tcp(parsed);

        self.asm.place(ports);
        self.asm.set(R2, R8);
        self.copy(8, self.fail);
        self.copy_ports(parsed);

        self.asm.place(icmp);
        self.parse_icmp(parsed);
    }

    /// Reads the TCP header at `R0`.
    pub(super) fn read_tcp(&mut self, parsed: Label) {
        let asm = &mut *self.asm;
        let (copy, no_reset) = (asm.label(), asm.label());
        asm.set(R2, TCP);
        asm.load(Byte, R1, R0, 13);
        // A reset begins no connection, and the node may always send one.
        asm.set(R3, R1);
        asm.and(R3, TCP_RST);
        asm.jump_if(Equal, R3, 0, no_reset);
        asm.or(R2, REPLY);
        asm.load(Word, R3, R10, HOOK);
        asm.jump_if(Equal, R3, HookPoint::Output as i32, self.accept);
        asm.place(no_reset);
        // FIN, SYN, RST and ACK.
        asm.and(R1, 0x17);
        asm.jump_if(NotEqual, R1, 2, copy);
        asm.or(R2, SYN);
        asm.place(copy);
        asm.load(Word, R1, R10, FLAGS);
        asm.or(R1, R2);
        asm.store(Word, R10, FLAGS, R1);
        self.copy_ports(parsed);
    }

    pub(super) fn copy_ports(&mut self, parsed: Label) {
        self.asm.load(Word, R1, R0, 0);
        self.asm.store(Word, R10, SOURCE_PORT, R1);
        self.asm.jump(parsed);
    }

    /// The id of an echo takes the place of both ports.
    pub(super) fn copy_echo_id(&mut self, parsed: Label) {
        self.asm.load(Half, R1, R0, 4);
        self.asm.store(Half, R10, SOURCE_PORT, R1);
        self.asm.store(Half, R10, DESTINATION_PORT, R1);
        self.asm.jump(parsed);
    }

    pub(super) fn parse_icmp(&mut self, parsed: Label) {
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
                asm.load(Word, R2, R10, FLAGS);
                asm.jump_if(Shares, R2, NEIGHBOUR, self.accept);
                asm.place(others);
            }
        }
        self.asm.place(alone);
        self.set_flag(ALONE);
        self.asm.jump(parsed);

        self.asm.place(reply);
        self.asm.load(Word, R1, R10, FLAGS);
        self.asm.or(R1, REPLY);
        self.asm.store(Word, R10, FLAGS, R1);
        self.copy_echo_id(parsed);
        self.asm.place(request);
        self.asm.load(Word, R1, R10, FLAGS);
        self.asm.or(R1, REQUEST);
        self.asm.store(Word, R10, FLAGS, R1);
        self.copy_echo_id(parsed);

        self.asm.place(error);
        self.parse_inner(alone, parsed);
    }

    /// Reads the packet that an ICMP error is about. Then its addresses are in place of those of the
    /// error, which are kept.
    pub(super) fn parse_inner(&mut self, alone: Label, parsed: Label) {
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
        // The error must go to the sender of the packet, or it could carry data to anyone.
        let words: &[i16] = match self.family {
            IpFamily::V4 => &[0],
            IpFamily::V6 => &[0, 4, 8, 12],
        };
        let asm = &mut *self.asm;
        for word in words {
            asm.load(Word, R1, R10, INNER + word);
            asm.load(Word, R2, R10, DESTINATION + word);
            asm.jump_if(NotEqual, R1, R2, alone);
        }
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
    pub(super) fn swap_inner(&mut self) {
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
}
