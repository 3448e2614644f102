// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//! Denied packets: counted, reported within limits, and dropped.

use weir_model::IpFamily;

use super::*;
use crate::layout::{Config, Report};
use Comparison::{GreaterOrEqual, Shares};
use Width::Half;

impl Main<'_> {
    /// Counts, reports and drops a packet. `R0` is the result of the rules, and `R8` the time. In audit mode the packet
    /// passes, and so does its connection.
    pub(super) fn deny(&mut self) {
        let asm = &mut *self.asm;
        let (count, counted, drop, done) = (asm.label(), asm.label(), asm.label(), asm.label());
        asm.place(self.deny);
        asm.store_constant(Double, R10, OTHER_CAUSE, 0);
        asm.load(Double, R1, R10, CAUSE);
        asm.jump_if(NotEqual, R1, 0, count);
        asm.store(Double, R10, CAUSE, R0);
        asm.jump_if(NotEqual, R0, result::DENIED_BOTH, count);
        asm.store_constant(Double, R10, CAUSE, result::DENIED_EGRESS);
        asm.store_constant(Double, R10, OTHER_CAUSE, 1);
        asm.place(count);
        asm.map(R1, MapId::Denied);
        asm.stack(R2, CAUSE);
        asm.call(Helper::MapLookup);
        asm.jump_if(Equal, R0, 0, counted);
        asm.load(Double, R1, R0, 0);
        asm.add(R1, 1);
        asm.store(Double, R0, 0, R1);
        asm.place(counted);
        self.report();
        let asm = &mut *self.asm;
        asm.load(Double, R1, R10, OTHER_CAUSE);
        asm.jump_if(Equal, R1, 0, done);
        asm.store_constant(Double, R10, OTHER_CAUSE, 0);
        asm.store_constant(Double, R10, CAUSE, result::DENIED_INGRESS);
        asm.jump(count);
        asm.place(done);
        asm.map_value(R1, MapId::Config);
        asm.load(Word, R1, R1, Config::FLAGS);
        asm.and(R1, Config::AUDIT);
        asm.jump_if(Equal, R1, 0, drop);
        asm.load(Word, R1, R10, FLAGS);
        asm.jump_if(Shares, R1, ALONE | REPLY | RELATED, self.accept);
        self.remember();
        self.asm.jump(self.accept);
        self.asm.place(drop);
        let verdict = match self.site {
            Site::Netfilter => NF_DROP,
            Site::Lane => LANE_DROP,
        };
        self.asm.set(R0, verdict);
        self.asm.exit();
    }

    /// Reports the packet, unless its source or its link was reported too often.
    fn report(&mut self) {
        let (new_source, new_link, known_link) =
            (self.asm.label(), self.asm.label(), self.asm.label());
        let (send, done) = (self.asm.label(), self.asm.label());
        let asm = &mut *self.asm;
        asm.store(Double, R10, NOW, R8);
        asm.map(R1, MapId::Sources(self.family));
        asm.stack(R2, SOURCE);
        asm.call(Helper::MapLookup);
        asm.jump_if(Equal, R0, 0, new_source);
        self.spend(Report::PER_SOURCE, done);
        self.asm.jump(send);

        // A sender of false addresses has many sources, but one link.
        let asm = &mut *self.asm;
        asm.place(new_source);
        match self.site {
            Site::Netfilter => asm.load_field(Word, R1, R6, Field::InputLink),
            Site::Lane => asm.load(Word, R1, R6, lane::context::LINK),
        }
        asm.store(Word, R10, LINK, R1);
        asm.map(R1, MapId::Links);
        asm.stack(R2, LINK);
        asm.call(Helper::MapLookup);
        asm.jump_if(Equal, R0, 0, new_link);
        self.spend(Report::NEW_SOURCES_PER_LINK, done);
        self.asm.jump(known_link);
        self.asm.place(new_link);
        self.open_bucket(MapId::Links, LINK);
        self.asm.place(known_link);
        self.open_bucket(MapId::Sources(self.family), SOURCE);

        self.asm.place(send);
        self.send_report();
        self.asm.place(done);
    }

    /// Counts a report in the bucket at `R0`, or goes to the label if it is full. A bucket is a time,
    /// in units of about a second, and the number of reports since.
    fn spend(&mut self, most: i32, full: Label) {
        let asm = &mut *self.asm;
        let (same, counted) = (asm.label(), asm.label());
        asm.load(Double, R1, R0, 0);
        asm.load(Double, R2, R10, NOW);
        asm.set(R3, R1);
        asm.shift_right(R3, 32);
        asm.jump_if(Equal, R3, R2, same);
        asm.shift_left(R2, 32);
        asm.or(R2, 1);
        asm.store(Double, R0, 0, R2);
        asm.jump(counted);
        asm.place(same);
        asm.set(R3, R1);
        asm.shift_left(R3, 32);
        asm.shift_right(R3, 32);
        asm.jump_if(GreaterOrEqual, R3, most, full);
        asm.add(R1, 1);
        asm.store(Double, R0, 0, R1);
        asm.place(counted);
    }

    /// Adds a bucket with one report.
    fn open_bucket(&mut self, map: MapId, key: i16) {
        let asm = &mut *self.asm;
        asm.load(Double, R1, R10, NOW);
        asm.shift_left(R1, 32);
        asm.or(R1, 1);
        asm.store(Double, R10, BUCKET, R1);
        asm.map(R1, map);
        asm.stack(R2, key);
        asm.stack(R3, BUCKET);
        asm.set(R4, 0);
        asm.call(Helper::MapUpdate);
    }

    fn send_report(&mut self) {
        let (number, length) = match self.family {
            IpFamily::V4 => (4, 4),
            IpFamily::V6 => (6, 16),
        };
        self.asm.load(Double, R1, R10, CAUSE);
        self.asm.store(Half, R10, REPORT + Report::CAUSE, R1);
        self.asm.store_constant(Half, R10, REPORT + Report::FAMILY, number);
        self.asm.load(Word, R1, R10, PROTOCOL);
        self.asm.load(Word, R2, R10, FLAGS);
        self.asm.shift_left(R2, Report::FLAGS_SHIFT);
        self.asm.or(R1, R2);
        self.asm.store(Word, R10, REPORT + Report::PROTOCOL, R1);
        self.copy_address(R10, SOURCE, REPORT + Report::ADDRESSES);
        self.copy_address(R10, DESTINATION, REPORT + Report::ADDRESSES + length);
        let asm = &mut *self.asm;
        asm.load(Word, R1, R10, SOURCE_PORT);
        let ports = REPORT + Report::ADDRESSES + 2 * length;
        asm.store(Word, R10, ports, R1);
        // The buffer has the TCP header, or another one that means nothing here.
        for at in (0..Report::TCP_BYTES).step_by(4) {
            asm.load(Word, R1, R10, BUFFER + at);
            asm.store(Word, R10, ports + 4 + at, R1);
        }
        asm.map(R1, MapId::Reports);
        asm.stack(R2, REPORT);
        asm.set(R3, i32::from(ports - REPORT + 4 + Report::TCP_BYTES));
        asm.set(R4, 0);
        asm.call(Helper::RingBufferOutput);
    }
}
