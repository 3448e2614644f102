// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//! Connections that a helper of conntrack expects because of another one, as for the data of FTP.

use weir_model::IpFamily;

use super::*;
use Width::Half;

impl Main<'_> {
    /// Accepts a denied packet of a connection that a helper expected, if the rules allow the one
    /// because of which it did. It is not remembered, so both end together.
    pub(super) fn check_expected(&mut self, denied: Label) {
        let asm = &mut *self.asm;
        asm.load_field(Double, R1, R6, Field::Conntrack);
        // The lowest bits are the state of the packet.
        asm.and(R1, !7);
        asm.jump_if(Equal, R1, 0, denied);
        asm.struct_id(R2, Field::ConntrackStatus);
        asm.call_kfunc(Kfunc::ReadOnlyCast);
        asm.load_field(Double, R1, R0, Field::ConntrackStatus);
        asm.and(R1, IPS_EXPECTED);
        asm.jump_if(Equal, R1, 0, denied);
        asm.load_field(Double, R2, R0, Field::ConntrackMaster);
        asm.jump_if(Equal, R2, 0, denied);
        for (field, to) in
            [(Field::Client, QUERY + query::FROM), (Field::Server, QUERY + query::TO)]
        {
            self.copy_tuple_address(field, to);
        }
        let asm = &mut *self.asm;
        asm.load_field(Half, R1, R2, Field::ServerPort);
        asm.store(Half, R10, QUERY + query::PORT, R1);
        asm.store_constant(Word, R10, QUERY + query::EPOCH, -1);
        asm.load(Word, R1, R10, PROTOCOL);
        asm.store(Double, R10, OWN_PROTOCOL, R1);
        asm.load_field(Byte, R1, R2, Field::TupleProtocol);
        asm.store(Word, R10, PROTOCOL, R1);
        // The packet's own translation says nothing about the other connection.
        self.complete_query();
        self.judge();
        let asm = &mut *self.asm;
        asm.jump_if(Equal, R0, result::ALLOWED, self.accept);
        asm.load(Double, R1, R10, OWN_PROTOCOL);
        asm.store(Word, R10, PROTOCOL, R1);
    }

    /// Copies an address of the connection at `R2` to the stack.
    fn copy_tuple_address(&mut self, field: Field, to: i16) {
        let words: &[i16] = match self.family {
            IpFamily::V4 => &[0],
            IpFamily::V6 => &[0, 4, 8, 12],
        };
        for word in words {
            self.asm.set(R3, R2);
            self.asm.add(R3, i32::from(*word));
            self.asm.load_field(Word, R1, R3, field);
            self.asm.store(Word, R10, to + word, R1);
        }
    }
}
