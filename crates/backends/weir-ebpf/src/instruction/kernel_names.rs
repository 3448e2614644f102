//! The functions and fields of the kernel that programs use, by name.

use std::fmt;

/// A helper function of the kernel, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helper {
    /// `bpf_map_lookup_elem`
    MapLookup = 1,
    /// `bpf_map_update_elem`
    MapUpdate = 2,
    /// `bpf_jiffies64`, which the kernel turns into a load
    Ticks = 118,
    /// `bpf_ringbuf_output`
    RingBufferOutput = 130,
    /// `bpf_redirect_peer`
    RedirectPeer = 155,
    /// `bpf_check_mtu`
    CheckMtu = 163,
}

/// A function of the kernel that is called by its BTF id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kfunc {
    /// `bpf_dynptr_from_skb`
    DynptrFromSkb,
    /// `bpf_dynptr_slice`
    DynptrSlice,
    /// `bpf_rdonly_cast`
    ReadOnlyCast,
}

impl Kfunc {
    /// The name in the kernel's BTF.
    pub fn name(self) -> &'static str {
        match self {
            Kfunc::DynptrFromSkb => "bpf_dynptr_from_skb",
            Kfunc::DynptrSlice => "bpf_dynptr_slice",
            Kfunc::ReadOnlyCast => "bpf_rdonly_cast",
        }
    }
}

/// A member of a kernel structure. Its offset depends on the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// `nf_hook_state.hook`
    Hook,
    /// `sk_buff.pkt_type`, the lowest three bits of a byte
    PacketType,
    /// `sk_buff.data`, where the packet starts
    Data,
    /// `sk_buff.len`
    Length,
    /// `sk_buff.data_len`, the part of the length that is not at `data`
    PagedLength,
    /// A structure of 8-byte members, as which programs read packets
    Doubles,
    /// `sk_buff.skb_iif`, the index of the link that the packet arrived at
    InputLink,
    /// `sk_buff._nfct`
    Conntrack,
    /// `nf_conn.status`
    ConntrackStatus,
    /// `nf_conn.master`, the connection because of which a helper expected this one
    ConntrackMaster,
    /// The address in `nf_conn.tuplehash` that began a connection, before any translation
    Client,
    /// The address in `nf_conn.tuplehash` that answers, after any translation
    Server,
    /// Its port
    ServerPort,
    /// The number of the protocol in `nf_conn.tuplehash`
    TupleProtocol,
}

impl Field {
    /// The structure and the member in the kernel's BTF.
    pub fn path(self) -> (&'static str, &'static str) {
        match self {
            Field::Hook => ("nf_hook_state", "hook"),
            Field::PacketType => ("sk_buff", "pkt_type"),
            Field::Data => ("sk_buff", "data"),
            Field::Length => ("sk_buff", "len"),
            Field::PagedLength => ("sk_buff", "data_len"),
            Field::Doubles => ("rtnl_link_stats64", "rx_packets"),
            Field::InputLink => ("sk_buff", "skb_iif"),
            Field::Conntrack => ("sk_buff", "_nfct"),
            Field::ConntrackStatus => ("nf_conn", "status"),
            Field::ConntrackMaster => ("nf_conn", "master"),
            Field::Client | Field::Server | Field::ServerPort | Field::TupleProtocol => {
                ("nf_conn", "tuplehash")
            }
        }
    }

    /// The offset inside the member. A connection has two elements of `nf_conntrack_tuple_hash`, of 56
    /// bytes each: one for each direction, with a list of 16 bytes before the tuple.
    pub fn offset_in_member(self) -> i16 {
        match self {
            Field::Client => 16,
            Field::TupleProtocol => 16 + 38,
            Field::Server => 56 + 16,
            Field::ServerPort => 56 + 16 + 16,
            _ => 0,
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (structure, member) = self.path();
        write!(f, "{structure}.{member}")
    }
}
