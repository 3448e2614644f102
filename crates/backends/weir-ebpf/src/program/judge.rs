// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//! The functions of the program that evaluate rules: for a connection, and for a tier.
//!
//! They are a part of the loaded program, so this file has its licences.

use weir_model::IpFamily;

use crate::{
    assembler::{Assembler, Label},
    instruction::{Comparison, Helper, Register, Width},
    layout::{Decision, FORMER, LOCAL, MapId, PodEntry, TierAction},
};

use super::{query, result};

use Comparison::{Equal, Greater, Less, NotEqual, Shares};
use Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use Width::{Double, Half, Word};

// The stack of the function for a connection.
const NETWORK_KEY: i16 = -24;
const FROM_KIND: i16 = -32;
const TO_KIND: i16 = -40;
const POD_NUMBER: i16 = -48;
const EGRESS_DENIED: i16 = -56;

// The stack of the function for a tier.
const DECISION_KEY: i16 = -8;
const PORTS_KEY: i16 = -24;

/// The bits of the longest key in the map of ports.
const PORTS_BITS: i32 = 64;

/// Adds the functions. `judge` takes the address of a query in `R1` and returns a result.
pub(crate) fn emit(asm: &mut Assembler<MapId>, judge: Label, family: IpFamily) {
    let tier = asm.label();
    asm.place(judge);
    emit_judge(asm, tier, family);
    asm.place(tier);
    emit_tier(asm);
}

fn emit_judge(asm: &mut Assembler<MapId>, tier: Label, family: IpFamily) {
    let deny = asm.label();
    asm.set(R6, R1);
    // The pod at each end, or 0: R7 and R8.
    emit_resolve(asm, family, query::FROM, FROM_KIND, R7, deny);
    emit_resolve(asm, family, query::TO, TO_KIND, R8, deny);
    let (not_local, inherited, local) = (asm.label(), asm.label(), asm.label());
    for pod in [R7, R8] {
        let no_pod = asm.label();
        asm.jump_if(Equal, pod, 0, no_pod);
        asm.load(Word, R1, pod, PodEntry::SINCE);
        asm.load(Word, R2, R6, query::EPOCH);
        asm.jump_if(Greater, R1, R2, inherited);
        asm.place(no_pod);
    }
    asm.jump_if(NotEqual, R7, 0, local);
    asm.jump_if(Equal, R8, 0, not_local);
    asm.place(local);

    asm.store_constant(Double, R10, EGRESS_DENIED, 0);
    let sides = [
        (R7, TO_KIND, PodEntry::EGRESS, PodEntry::EGRESS_ISOLATED, result::DENIED_EGRESS),
        (R8, FROM_KIND, PodEntry::INGRESS, PodEntry::INGRESS_ISOLATED, result::DENIED_INGRESS),
    ];
    for (pod, kind, tiers, isolated, denied) in sides {
        let (next, ask, reject) = (asm.label(), asm.label(), asm.label());
        asm.jump_if(Equal, pod, 0, next);
        if denied == result::DENIED_INGRESS {
            asm.load(Word, R1, R6, query::FLAGS);
            asm.and(R1, query::FORWARDED);
            asm.jump_if(Equal, R1, 0, next);
        }
        emit_call_tier(asm, tier, pod, tiers, kind);
        asm.jump_if(Equal, R0, TierAction::Allow as i32, next);
        asm.jump_if(NotEqual, R0, TierAction::Pass as i32, reject);
        // NetworkPolicies do not apply when a pod reaches itself through a service.
        asm.load(Word, R1, R6, query::FLAGS);
        asm.and(R1, query::SELF);
        asm.jump_if(Equal, R1, 0, ask);
        asm.load(Word, R1, pod, PodEntry::FLAGS);
        asm.jump_if(Shares, R1, isolated, next);
        asm.place(ask);
        emit_call_tier(asm, tier, pod, tiers + 8, kind);
        asm.jump_if(Equal, R0, TierAction::Allow as i32, next);
        asm.place(reject);
        if denied == result::DENIED_EGRESS {
            // In audit mode the packet goes on to the other end.
            let enforce = asm.label();
            asm.load(Word, R1, R6, query::FLAGS);
            asm.and(R1, query::AUDIT);
            asm.jump_if(Equal, R1, 0, enforce);
            asm.store_constant(Double, R10, EGRESS_DENIED, 1);
            asm.jump(next);
            asm.place(enforce);
        } else {
            let alone = asm.label();
            asm.load(Double, R1, R10, EGRESS_DENIED);
            asm.jump_if(Equal, R1, 0, alone);
            asm.set(R0, result::DENIED_BOTH);
            asm.exit();
            asm.place(alone);
        }
        asm.set(R0, denied);
        asm.exit();
        asm.place(next);
    }
    let allowed = asm.label();
    asm.load(Double, R1, R10, EGRESS_DENIED);
    asm.jump_if(Equal, R1, 0, allowed);
    asm.set(R0, result::DENIED_EGRESS);
    asm.exit();
    asm.place(allowed);
    asm.set(R0, result::ALLOWED);
    asm.exit();
    asm.place(not_local);
    asm.set(R0, result::NOT_LOCAL);
    asm.exit();
    asm.place(inherited);
    asm.set(R0, result::INHERITED);
    asm.exit();
    asm.place(deny);
    asm.set(R0, result::DENIED_INGRESS);
    asm.exit();
}

/// Evaluates a tier of a pod. `R0 = the action`
fn emit_call_tier(asm: &mut Assembler<MapId>, tier: Label, pod: Register, tiers: i16, kind: i16) {
    let (call, done) = (asm.label(), asm.label());
    // Most pods have no rules in most tiers. Without a list of ports, the decision is the action.
    asm.load(Word, R1, pod, tiers);
    asm.load(Word, R0, pod, tiers + 4);
    asm.jump_if(NotEqual, R1, 0, call);
    asm.jump_if(Less, R0, Decision::FIRST_LIST, done);
    asm.place(call);
    asm.set(R1, pod);
    asm.add(R1, i32::from(tiers));
    asm.load(Double, R2, R10, kind);
    asm.set(R3, R6);
    asm.call_local(tier);
    asm.place(done);
}

/// Finds the kind of an address, and its pod if it runs on this node.
fn emit_resolve(
    asm: &mut Assembler<MapId>,
    family: IpFamily,
    at: i16,
    kind: i16,
    pod: Register,
    deny: Label,
) {
    let (network, found, done, is_kind) = (asm.label(), asm.label(), asm.label(), asm.label());
    let (has_kind, store) = (asm.label(), asm.label());
    // An entry that changes meanwhile can hold the memory of another address: look it up again.
    for _ in 0..2 {
        let again = asm.label();
        asm.map(R1, MapId::Addresses(family));
        asm.set(R2, R6);
        asm.add(R2, i32::from(at));
        asm.call(Helper::MapLookup);
        asm.jump_if(Equal, R0, 0, network);
        asm.load(Double, R1, R0, 0);
        asm.load(Word, R2, R6, at);
        if family == IpFamily::V6 {
            for part in [4, 8, 12] {
                asm.load(Word, R3, R6, at + part);
                asm.xor(R2, R3);
            }
        }
        asm.set(R3, R1);
        asm.shift_right(R3, 32);
        asm.jump_if(Equal, R3, R2, found);
        asm.jump(again);
        asm.place(again);
    }
    asm.jump(deny);

    asm.place(network);
    let (length, parts): (i32, &[i16]) = match family {
        IpFamily::V4 => (32, &[0]),
        IpFamily::V6 => (128, &[0, 4, 8, 12]),
    };
    let unknown = asm.label();
    asm.store_constant(Word, R10, NETWORK_KEY, length);
    for part in parts {
        asm.load(Word, R1, R6, at + part);
        asm.store(Word, R10, NETWORK_KEY + 4 + part, R1);
    }
    asm.map(R1, MapId::Networks(family));
    asm.stack(R2, NETWORK_KEY);
    asm.call(Helper::MapLookup);
    asm.set(pod, 0);
    asm.set(R1, 0);
    asm.jump_if(Equal, R0, 0, unknown);
    asm.load(Word, R1, R0, 0);
    asm.place(unknown);
    asm.store(Double, R10, kind, R1);
    asm.jump(done);

    asm.place(found);
    asm.shift_left(R1, 32);
    asm.shift_right(R1, 32);
    asm.set(R2, R1);
    asm.shift_right(R2, 31);
    asm.jump_if(Equal, R2, 0, is_kind);
    asm.and(R1, (LOCAL - 1) as i32);
    asm.store(Word, R10, POD_NUMBER, R1);
    asm.map(R1, MapId::Pods);
    asm.stack(R2, POD_NUMBER);
    asm.call(Helper::MapLookup);
    asm.jump_if(Equal, R0, 0, deny);
    asm.set(pod, R0);
    asm.load(Word, R1, pod, 0);
    asm.jump(has_kind);
    asm.place(is_kind);
    asm.set(pod, 0);
    asm.place(has_kind);
    // If names had the address before, the next kind is that for established connections.
    asm.jump_if(Less, R1, FORMER as i32, store);
    asm.and(R1, (FORMER - 1) as i32);
    asm.load(Half, R2, R6, query::ESTABLISHED);
    asm.add(R1, R2);
    asm.place(store);
    asm.store(Double, R10, kind, R1);
    asm.place(done);
}

/// The function for a tier: its use in `R1`, the kind of the peer in `R2`, the query in `R3`. Returns
/// an action.
fn emit_tier(asm: &mut Assembler<MapId>) {
    let (decided, rest, deny) = (asm.label(), asm.label(), asm.label());
    asm.set(R6, R3);
    asm.load(Word, R4, R1, 0);
    asm.load(Word, R7, R1, 4);
    asm.jump_if(Equal, R4, 0, decided);
    asm.jump_if(Equal, R2, 0, decided);
    asm.shift_left(R4, 24);
    asm.or(R4, R2);
    asm.set(R9, R4);
    asm.store(Double, R10, DECISION_KEY, R4);
    asm.map(R1, MapId::Decisions);
    asm.stack(R2, DECISION_KEY);
    asm.call(Helper::MapLookup);
    asm.jump_if(Equal, R0, 0, decided);
    asm.load(Double, R1, R0, 0);
    asm.set(R2, R1);
    asm.shift_right(R2, 24);
    asm.jump_if(NotEqual, R2, R9, deny);
    asm.and(R1, 0xff_ffff);
    asm.set(R7, R1);
    asm.place(decided);
    asm.load(Word, R1, R6, query::FLAGS);
    asm.and(R1, query::PORTS);
    asm.jump_if(Equal, R1, 0, rest);
    asm.set(R1, R7);
    asm.shift_right(R1, 2);
    asm.jump_if(Equal, R1, 0, rest);
    asm.store_constant(Word, R10, PORTS_KEY, PORTS_BITS);
    asm.store(Word, R10, PORTS_KEY + 4, R1);
    asm.load(Word, R5, R6, query::PROTOCOL);
    asm.store(Half, R10, PORTS_KEY + 8, R5);
    asm.load(Half, R5, R6, query::PORT);
    asm.store(Half, R10, PORTS_KEY + 10, R5);
    asm.map(R1, MapId::Ports);
    asm.stack(R2, PORTS_KEY);
    asm.call(Helper::MapLookup);
    asm.jump_if(Equal, R0, 0, rest);
    asm.load(Word, R0, R0, 0);
    asm.exit();
    asm.place(rest);
    asm.set(R0, R7);
    asm.and(R0, 3);
    asm.exit();
    asm.place(deny);
    asm.set(R0, TierAction::Deny as i32);
    asm.exit();
}
