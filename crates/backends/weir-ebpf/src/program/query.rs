// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//! The layout of a query, the argument of the function that evaluates rules.

pub(super) const FROM: i16 = 0;
pub(super) const TO: i16 = 16;
pub(super) const PROTOCOL: i16 = 32;
pub(super) const PORT: i16 = 36;
/// 1 if the connection is established and was not cut, 0 if it may be new.
pub(super) const ESTABLISHED: i16 = 38;
pub(super) const EPOCH: i16 = 40;
pub(super) const FLAGS: i16 = 44;
/// The node forwards the packet, so ingress rules apply.
pub(super) const FORWARDED: i32 = 1;
/// A pod reaches itself through a service.
pub(super) const SELF: i32 = 2;
/// The protocol has ports.
pub(super) const PORTS: i32 = 4;
/// Denied packets pass, so both directions are evaluated.
pub(super) const AUDIT: i32 = 8;
