//! The numbers of this kernel that programs need.

use std::{
    collections::BTreeMap,
    fs,
    os::fd::{AsFd, AsRawFd},
};

use rustix::time::{ClockId, clock_getres};

use super::KernelError;
use crate::{
    btf::{Btf, BtfError},
    instruction::{Field, Kfunc, Resolve},
    layout::MapId,
    program::{Features, TickClock},
    sys::Map,
};

pub(super) const BTF: &str = "/sys/kernel/btf/vmlinux";

const KFUNCS: [Kfunc; 3] = [Kfunc::DynptrFromSkb, Kfunc::DynptrSlice, Kfunc::ReadOnlyCast];
/// The fields that every kernel has.
const FIELDS: [Field; 7] = [
    Field::Hook,
    Field::PacketType,
    Field::Data,
    Field::Length,
    Field::PagedLength,
    Field::Doubles,
    Field::InputLink,
];
/// The fields of a kernel with conntrack.
const CONNTRACK_FIELDS: [Field; 7] = [
    Field::Conntrack,
    Field::ConntrackStatus,
    Field::ConntrackMaster,
    Field::Client,
    Field::Server,
    Field::ServerPort,
    Field::TupleProtocol,
];

/// The numbers of this kernel that programs need.
#[derive(Debug)]
pub(super) struct KernelNumbers {
    kfuncs: BTreeMap<Kfunc, i32>,
    offsets: BTreeMap<Field, (i32, i16)>,
    clock: TickClock,
}

impl KernelNumbers {
    pub(super) fn read() -> Result<Self, KernelError> {
        Self::parse(&fs::read(BTF).map_err(KernelError::NoBtf)?)
    }

    fn parse(bytes: &[u8]) -> Result<Self, KernelError> {
        let functions = KFUNCS.map(Kfunc::name);
        let fields: Vec<_> = FIELDS.into_iter().chain(CONNTRACK_FIELDS).map(Field::path).collect();
        let btf = Btf::parse(bytes, &functions, &fields)?;
        let mut kfuncs = BTreeMap::new();
        for kfunc in KFUNCS {
            kfuncs.insert(kfunc, btf.function(kfunc.name())?);
        }
        let number = |field: Field| {
            let (structure, member) = field.path();
            let offset = btf.member(structure, member)? + field.offset_in_member();
            Ok::<_, BtfError>((btf.structure(structure)?, offset))
        };
        let mut offsets = BTreeMap::new();
        for field in FIELDS {
            offsets.insert(field, number(field)?);
        }
        // A kernel without conntrack has no services to translate.
        let conntrack = CONNTRACK_FIELDS.into_iter().map(|field| Ok((field, number(field)?)));
        if let Ok(conntrack) = conntrack.collect::<Result<Vec<_>, BtfError>>() {
            offsets.extend(conntrack);
        }
        Ok(KernelNumbers { kfuncs, offsets, clock: tick_clock() })
    }

    pub(super) fn features(&self) -> Features {
        Features { conntrack: self.offsets.contains_key(&Field::Conntrack), clock: self.clock }
    }
}

/// The clock of this kernel. The coarse clock changes with every tick.
fn tick_clock() -> TickClock {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    let nanoseconds = u32::try_from(tick.tv_nsec).ok().filter(|_| tick.tv_sec == 0);
    let nanoseconds = nanoseconds.unwrap_or(1_000_000_000).max(1);
    // The kernel rounds the length of a tick.
    TickClock::with_rate((1_000_000_000 + nanoseconds / 2) / nanoseconds)
}

pub(super) struct Linked<'a> {
    pub(super) numbers: &'a KernelNumbers,
    pub(super) maps: &'a BTreeMap<MapId, Map>,
    /// The maps of the fast lane, for its programs.
    pub(super) lane: &'a BTreeMap<MapId, Map>,
}

impl Resolve<MapId> for Linked<'_> {
    fn map(&self, map: MapId) -> i32 {
        self.maps
            .get(&map)
            .or_else(|| self.lane.get(&map))
            .map_or(-1, |map| map.as_fd().as_raw_fd())
    }

    fn kfunc(&self, kfunc: Kfunc) -> i32 {
        self.numbers.kfuncs.get(&kfunc).copied().unwrap_or_default()
    }

    fn offset(&self, field: Field) -> i16 {
        self.numbers.offsets.get(&field).map_or(0, |(_, offset)| *offset)
    }

    fn struct_id(&self, field: Field) -> i32 {
        self.numbers.offsets.get(&field).map_or(0, |(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::btf::tests::TestBtf;

    /// The type information of a kernel with these functions, and all structures without conntrack.
    fn kernel(functions: &[Kfunc]) -> Vec<u8> {
        let mut btf = TestBtf::default();
        functions.iter().for_each(|function| btf.add_function(function.name()));
        let mut structs: BTreeMap<&str, Vec<(&str, u32)>> = BTreeMap::new();
        for (structure, member) in FIELDS.map(Field::path) {
            structs.entry(structure).or_default().push((member, 64));
        }
        structs.iter().for_each(|(structure, members)| btf.add_struct(structure, members));
        btf.bytes()
    }

    #[test]
    fn a_kernel_without_a_function_is_rejected() {
        assert!(!KernelNumbers::parse(&kernel(&KFUNCS)).unwrap().features().conntrack);
        // Linux 6.3 lacks some of them.
        for missing in KFUNCS {
            let others: Vec<Kfunc> = KFUNCS.into_iter().filter(|one| *one != missing).collect();
            let error = KernelNumbers::parse(&kernel(&others)).unwrap_err();
            assert_eq!(
                error.to_string(),
                "this kernel lacks a feature (Linux 6.6 has all): use `--datapath nftables`"
            );
            let cause = error.source().unwrap().to_string();
            let expected =
                format!("the kernel has no function {} for eBPF programs", missing.name());
            assert_eq!(cause, expected);
        }
    }
}
