//! The numbers of this kernel that programs need.

use std::{
    collections::BTreeMap,
    fs,
    os::fd::{AsFd, AsRawFd},
};

use super::KernelError;
use crate::{
    btf::{Btf, BtfError},
    instruction::{Field, Kfunc, Resolve},
    layout::MapId,
    program::Features,
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
}

impl KernelNumbers {
    pub(super) fn read() -> Result<Self, KernelError> {
        let bytes = fs::read(BTF).map_err(KernelError::NoBtf)?;
        let functions = KFUNCS.map(Kfunc::name);
        let fields: Vec<_> = FIELDS.into_iter().chain(CONNTRACK_FIELDS).map(Field::path).collect();
        let btf = Btf::parse(&bytes, &functions, &fields)?;
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
        Ok(KernelNumbers { kfuncs, offsets })
    }

    pub(super) fn features(&self) -> Features {
        Features { conntrack: self.offsets.contains_key(&Field::Conntrack) }
    }
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
