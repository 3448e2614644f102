// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//! Questions to the function that evaluates rules.

use weir_model::IpFamily;

use super::*;
use crate::layout::Config;
use Width::Half;

impl Main<'_> {
    /// Fills in the addresses and the port of a query.
    pub(super) fn ask(&mut self, way: Way) {
        let (from, to, port) = match way {
            Way::Forward => (SOURCE, DESTINATION, DESTINATION_PORT),
            Way::Back => (DESTINATION, SOURCE, SOURCE_PORT),
        };
        self.copy_address(R10, from, QUERY + query::FROM);
        self.copy_address(R10, to, QUERY + query::TO);
        self.asm.load(Half, R1, R10, port);
        self.asm.store(Half, R10, QUERY + query::PORT, R1);
    }

    /// Completes a query about the packet's own connection and evaluates the rules.
    pub(super) fn call_judge(&mut self) {
        self.complete_query();
        if self.features.conntrack {
            self.check_self();
        }
        self.judge();
    }

    /// Evaluates the rules for a complete query.
    pub(super) fn judge(&mut self) {
        self.asm.stack(R1, QUERY);
        self.asm.call_local(self.judge);
    }

    /// Fills in the protocol and the flags of a query.
    pub(super) fn complete_query(&mut self) {
        let asm = &mut *self.asm;
        let (ports, ports_done, hook_done) = (asm.label(), asm.label(), asm.label());
        let enforced = asm.label();
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
        asm.map_value(R1, MapId::Config);
        asm.load(Word, R1, R1, Config::FLAGS);
        asm.and(R1, Config::AUDIT);
        asm.jump_if(Equal, R1, 0, enforced);
        asm.or(R2, query::AUDIT);
        asm.place(enforced);
        asm.store(Word, R10, QUERY + query::FLAGS, R2);
    }

    /// Marks a query about a pod that reaches itself through a service. Only a translated connection
    /// counts, so no other sender can pose as the pod.
    pub(super) fn check_self(&mut self) {
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
}

/// The direction of a query, compared with that of the packet.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Forward,
    Back,
}
