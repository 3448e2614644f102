use std::{fmt, str::FromStr};

use super::frame::{KINDS, push_varint};
use crate::wire::varint;

/// The resourceVersions that a source has reached, one for each kind that a relay serves.
///
/// Kinds can be stored in different databases, and are watched one by one, so one number would not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncPoint([u64; KINDS.len()]);

impl SyncPoint {
    /// The number of kinds.
    pub const KINDS: usize = KINDS.len();

    /// The version of a kind, 0 if it is unknown.
    pub fn version(&self, kind: usize) -> u64 {
        self.0.get(kind).copied().unwrap_or_default()
    }

    /// Sets the version of a kind.
    pub fn set(&mut self, kind: usize, version: u64) {
        if let Some(place) = self.0.get_mut(kind) {
            *place = version;
        }
    }

    /// Takes over all versions that are higher.
    pub fn advance_to(&mut self, other: &SyncPoint) {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            *own = (*own).max(other);
        }
    }

    /// The kinds for which the other one is ahead.
    pub fn behind(&self, other: &SyncPoint) -> impl Iterator<Item = usize> {
        let (own, other) = (self.0, other.0);
        (0..KINDS.len()).filter(move |kind| own[*kind] < other[*kind])
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut mask = 0;
        let mut versions = Vec::new();
        for (kind, version) in self.0.iter().enumerate().filter(|(_, version)| **version > 0) {
            mask |= 1 << kind;
            push_varint(&mut versions, *version);
        }
        let mut bytes = vec![mask];
        bytes.append(&mut versions);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (mask, mut rest) = bytes.split_first()?;
        let mut point = SyncPoint::default();
        for (kind, place) in point.0.iter_mut().enumerate() {
            if mask >> kind & 1 == 1 {
                (*place, rest) = varint(rest).ok()??;
            }
        }
        (rest.is_empty() && *mask >> KINDS.len() == 0).then_some(point)
    }
}

impl fmt::Display for SyncPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, version) in self.0.iter().enumerate() {
            write!(f, "{}{version}", if at == 0 { "" } else { "." })?;
        }
        Ok(())
    }
}

/// The text is not a [`SyncPoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {} numbers, separated by dots", KINDS.len())]
pub struct InvalidSyncPoint;

impl FromStr for SyncPoint {
    type Err = InvalidSyncPoint;

    fn from_str(text: &str) -> Result<Self, InvalidSyncPoint> {
        let mut numbers = text.split('.');
        let mut point = SyncPoint::default();
        for place in &mut point.0 {
            let number = numbers.next().ok_or(InvalidSyncPoint)?;
            *place = number.parse().map_err(|_| InvalidSyncPoint)?;
        }
        numbers.next().is_none().then_some(point).ok_or(InvalidSyncPoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_point_has_two_forms() {
        let mut point = SyncPoint::default();
        point.set(0, 300);
        point.set(6, u64::MAX);
        assert_eq!(SyncPoint::decode(&point.encode()), Some(point));
        assert_eq!(point.to_string().parse(), Ok(point));
        for end in 0..point.encode().len() {
            assert_eq!(SyncPoint::decode(&point.encode()[..end]), None);
        }
        assert_eq!(SyncPoint::decode(&[0x80]), None);
        for text in ["", "1", "1.2.3.4.5.6.7.8", "1.2.3.4.5.6.x", "1.2.3.4.5.6.-7"] {
            assert_eq!(text.parse::<SyncPoint>(), Err(InvalidSyncPoint), "{text}");
        }
    }

    #[test]
    fn a_point_is_behind_if_one_kind_is() {
        let one: SyncPoint = "1.1.1.1.1.1.5".parse().unwrap();
        let other: SyncPoint = "9.1.1.1.1.1.4".parse().unwrap();
        assert_eq!(one.behind(&other).collect::<Vec<_>>(), [0]);
        assert_eq!(other.behind(&one).collect::<Vec<_>>(), [6]);
        let mut both = one;
        both.advance_to(&other);
        assert_eq!(both.to_string(), "9.1.1.1.1.1.5");
    }
}
