// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//! Packets to groups.

use weir_model::IpFamily;

use super::*;
use crate::layout::Config;
use Comparison::{Less, Shares};
use Width::Half;

impl Main<'_> {
    /// Drops packets to groups on a bridge while a pod is isolated for ingress, because rules cannot find
    /// their receivers. Packets that the link needs go on.
    pub(super) fn check_group(&mut self) {
        let (group, pass, denied) = (self.asm.label(), self.asm.label(), self.asm.label());
        let asm = &mut *self.asm;
        asm.load(Word, R1, R10, HOOK);
        asm.jump_if(NotEqual, R1, HookPoint::Forward as i32, pass);
        asm.map_value(R1, MapId::Config);
        asm.load(Word, R1, R1, Config::FLAGS);
        asm.and(R1, Config::isolated(self.family));
        asm.jump_if(Equal, R1, 0, pass);
        asm.load(Word, R1, R10, FLAGS);
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
        // Other packets get the time later.
        self.read_time();
        let asm = &mut *self.asm;
        asm.set(R0, result::DENIED_INGRESS);
        // The verifier does not see that no connection is remembered.
        asm.set(Register::R7, 0);
        asm.store_constant(Double, R10, CAUSE, 0);
        self.set_flag(ALONE);
        self.asm.jump(self.deny);
        self.asm.place(pass);
    }
}
