//! Rules as the kernel stores them: expressions that load fields, compare them and decide.

mod from_rule;
mod parse;

use weir_model::Name;
use weir_netlink::Body;

use crate::uapi::*;

pub(crate) use from_rule::{first_group, from_rule};
pub(crate) use parse::counted_packets;

/// The unit of a limit, in seconds.
const SECOND: u64 = 1;

/// An expression. Register numbers count registers of four bytes from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expr {
    Meta {
        key: u32,
        to: u32,
    },
    Payload {
        base: u32,
        offset: u32,
        length: u32,
        to: u32,
    },
    Conntrack {
        key: u32,
        to: u32,
    },
    And {
        register: u32,
        mask: Vec<u8>,
    },
    /// Replaces the value of a register.
    Constant {
        register: u32,
        value: [u8; 4],
    },
    /// Converts a register from host to network byte order.
    ToNetworkOrder {
        register: u32,
    },
    Compare {
        register: u32,
        op: u32,
        value: Vec<u8>,
    },
    /// Continues if the set contains the key in the registers.
    Lookup {
        set: Name,
        register: u32,
    },
    /// Continues if the set does not contain the key in the registers.
    Absent {
        set: Name,
        register: u32,
    },
    /// Adds the key in the registers to a set, unless it is full, with a limit per second. Continues
    /// if the key exceeds its limit.
    Exceeds {
        set: Name,
        register: u32,
        rate: u64,
        burst: u32,
    },
    /// Looks the key in the registers up in a verdict map, and takes the verdict.
    VerdictMap {
        set: Name,
        register: u32,
    },
    Verdict(WireVerdict),
    Counter,
    /// Continues if the packets exceed a limit per second.
    Over {
        rate: u64,
        burst: u32,
    },
    /// Drops the packet and answers it, with a code if the answer is an ICMP error.
    Reject {
        kind: u32,
        code: u8,
    },
    Log {
        group: u16,
        prefix: Name,
        snaplen: u32,
    },
    /// An expression that weir never writes.
    Foreign(Name),
}

/// A verdict: its code, and the chain of a jump or goto.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WireVerdict {
    pub(crate) code: i32,
    pub(crate) chain: Option<Name>,
}

impl WireVerdict {
    pub(crate) fn to_chain(code: i32, chain: &Name) -> Self {
        WireVerdict { code, chain: Some(chain.clone()) }
    }

    pub(crate) fn plain(code: i32) -> Self {
        WireVerdict { code, chain: None }
    }

    pub(crate) fn write(&self, body: &mut Body<'_>) {
        body.nest(NFTA_DATA_VERDICT, |verdict| {
            verdict.bytes(NFTA_VERDICT_CODE, &self.code.to_be_bytes());
            if let Some(chain) = &self.chain {
                verdict.text(NFTA_VERDICT_CHAIN, chain);
            }
        });
    }
}

/// The kernel's number of a register. Every fourth one is the start of a register of 16 bytes,
/// and the kernel reports it as such.
fn register(index: u32) -> u32 {
    if index.is_multiple_of(4) { NFT_REG_1 + index / 4 } else { NFT_REG32_00 + index }
}

impl Expr {
    /// Writes the expression as an element of a list.
    pub(crate) fn write(&self, list: &mut Body<'_>) {
        list.nest(NFTA_LIST_ELEM, |expr| {
            expr.text(NFTA_EXPR_NAME, self.name());
            expr.nest(NFTA_EXPR_DATA, |data| self.write_data(data));
        });
    }

    fn name(&self) -> &str {
        match self {
            Expr::Meta { .. } => "meta",
            Expr::Payload { .. } => "payload",
            Expr::Conntrack { .. } => "ct",
            Expr::And { .. } | Expr::Constant { .. } => "bitwise",
            Expr::ToNetworkOrder { .. } => "byteorder",
            Expr::Compare { .. } => "cmp",
            Expr::Lookup { .. } | Expr::Absent { .. } | Expr::VerdictMap { .. } => "lookup",
            Expr::Exceeds { .. } => "dynset",
            Expr::Verdict(_) => "immediate",
            Expr::Counter => "counter",
            Expr::Over { .. } => "limit",
            Expr::Reject { .. } => "reject",
            Expr::Log { .. } => "log",
            Expr::Foreign(name) => name,
        }
    }

    fn write_data(&self, data: &mut Body<'_>) {
        match self {
            Expr::Meta { key, to } => {
                data.be_u32(NFTA_META_DREG, register(*to)).be_u32(NFTA_META_KEY, *key);
            }
            Expr::Payload { base, offset, length, to } => {
                data.be_u32(NFTA_PAYLOAD_DREG, register(*to))
                    .be_u32(NFTA_PAYLOAD_BASE, *base)
                    .be_u32(NFTA_PAYLOAD_OFFSET, *offset)
                    .be_u32(NFTA_PAYLOAD_LEN, *length);
            }
            Expr::Conntrack { key, to } => {
                data.be_u32(NFTA_CT_DREG, register(*to)).be_u32(NFTA_CT_KEY, *key);
            }
            Expr::And { register: at, mask } => write_bitwise(data, *at, mask, &[0; 4]),
            Expr::Constant { register: at, value } => write_bitwise(data, *at, &[0; 4], value),
            Expr::ToNetworkOrder { register: at } => {
                data.be_u32(NFTA_BYTEORDER_SREG, register(*at))
                    .be_u32(NFTA_BYTEORDER_DREG, register(*at))
                    .be_u32(NFTA_BYTEORDER_OP, NFT_BYTEORDER_HTON)
                    .be_u32(NFTA_BYTEORDER_LEN, 4)
                    .be_u32(NFTA_BYTEORDER_SIZE, 4);
            }
            Expr::Compare { register: at, op, value } => {
                data.be_u32(NFTA_CMP_SREG, register(*at)).be_u32(NFTA_CMP_OP, *op);
                data.nest(NFTA_CMP_DATA, |body| _ = body.bytes(NFTA_DATA_VALUE, value));
            }
            Expr::Lookup { set, register: at } => {
                data.text(NFTA_LOOKUP_SET, set).be_u32(NFTA_LOOKUP_SREG, register(*at));
            }
            Expr::Absent { set, register: at } => {
                data.text(NFTA_LOOKUP_SET, set)
                    .be_u32(NFTA_LOOKUP_SREG, register(*at))
                    .be_u32(NFTA_LOOKUP_FLAGS, NFT_LOOKUP_F_INV);
            }
            Expr::Exceeds { set, register: at, rate, burst } => {
                data.text(NFTA_DYNSET_SET_NAME, set)
                    .be_u32(NFTA_DYNSET_OP, NFT_DYNSET_OP_ADD)
                    .be_u32(NFTA_DYNSET_SREG_KEY, register(*at));
                data.nest(NFTA_DYNSET_EXPR, |expr| {
                    expr.text(NFTA_EXPR_NAME, "limit");
                    expr.nest(NFTA_EXPR_DATA, |limit| write_over(limit, *rate, *burst));
                });
            }
            Expr::VerdictMap { set, register: at } => {
                data.text(NFTA_LOOKUP_SET, set)
                    .be_u32(NFTA_LOOKUP_SREG, register(*at))
                    .be_u32(NFTA_LOOKUP_DREG, NFT_REG_VERDICT);
            }
            Expr::Verdict(verdict) => {
                data.be_u32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT)
                    .nest(NFTA_IMMEDIATE_DATA, |body| verdict.write(body));
            }
            Expr::Counter | Expr::Foreign(_) => (),
            Expr::Over { rate, burst } => write_over(data, *rate, *burst),
            Expr::Reject { kind, code } => {
                data.be_u32(NFTA_REJECT_TYPE, *kind);
                data.bytes(NFTA_REJECT_ICMP_CODE, &[*code]);
            }
            Expr::Log { group, prefix, snaplen } => {
                data.be_u16(NFTA_LOG_GROUP, *group)
                    .text(NFTA_LOG_PREFIX, prefix)
                    .be_u32(NFTA_LOG_SNAPLEN, *snaplen);
            }
        }
    }
}

/// The attributes of a limit that packets must exceed.
fn write_over(limit: &mut Body<'_>, rate: u64, burst: u32) {
    limit
        .be_u64(NFTA_LIMIT_RATE, rate)
        .be_u64(NFTA_LIMIT_UNIT, SECOND)
        .be_u32(NFTA_LIMIT_BURST, burst)
        .be_u32(NFTA_LIMIT_TYPE, NFT_LIMIT_PKTS)
        .be_u32(NFTA_LIMIT_FLAGS, NFT_LIMIT_F_INV);
}

/// The attributes of an expression that masks a register and inverts some of its bits.
fn write_bitwise(data: &mut Body<'_>, at: u32, mask: &[u8], xor: &[u8]) {
    data.be_u32(NFTA_BITWISE_SREG, register(at))
        .be_u32(NFTA_BITWISE_DREG, register(at))
        .be_u32(NFTA_BITWISE_LEN, 4);
    data.nest(NFTA_BITWISE_MASK, |value| _ = value.bytes(NFTA_DATA_VALUE, mask));
    data.nest(NFTA_BITWISE_XOR, |value| _ = value.bytes(NFTA_DATA_VALUE, xor));
}
