//! Rules as the kernel stores them: expressions that load fields, compare them and decide.

use weir_model::{IpFamily, Name, PortRange};
use weir_netfilter::report::{BURST, GROUP, PER_SECOND, SNAPLEN, prefix};
use weir_netlink::{Attribute, Attributes, Body, Malformed};

use crate::{Act, Field, Match, Rule, uapi::*};

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
    Compare {
        register: u32,
        op: u32,
        value: Vec<u8>,
    },
    Lookup {
        set: Name,
        register: u32,
        decides: bool,
    },
    Verdict(Verdict),
    Counter,
    Limit {
        rate: u64,
        unit: u64,
        burst: u32,
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
pub(crate) struct Verdict {
    pub(crate) code: i32,
    pub(crate) chain: Option<Name>,
}

/// The connection states that need no verdict.
const ACCEPTED_STATES: u32 = CT_STATE_ESTABLISHED | CT_STATE_RELATED;
const ICMPV6: u8 = 58;

/// The unit of a limit, in seconds.
const SECOND: u64 = 1;
/// The hop limit of a packet that no router has forwarded.
const MAX_HOP_LIMIT: u8 = u8::MAX;
/// The ICMPv6 types of neighbour discovery: router solicitation to redirect.
const ND_ROUTER_SOLICIT: u8 = 133;
const ND_REDIRECT: u8 = 137;

// The offset and the length of each field in its header.
const IPV4_SOURCE: (u32, u32) = (12, 4);
const IPV4_DESTINATION: (u32, u32) = (16, 4);
const IPV6_HOP_LIMIT: (u32, u32) = (7, 1);
const IPV6_SOURCE: (u32, u32) = (8, 16);
const IPV6_DESTINATION: (u32, u32) = (24, 16);
const ICMP_TYPE: (u32, u32) = (0, 1);
const SOURCE_PORT: (u32, u32) = (0, 2);
const DESTINATION_PORT: (u32, u32) = (2, 2);

impl Verdict {
    pub(crate) fn to(code: i32, chain: &Name) -> Self {
        Verdict { code, chain: Some(chain.clone()) }
    }

    pub(crate) fn plain(code: i32) -> Self {
        Verdict { code, chain: None }
    }

    pub(crate) fn write(&self, body: &mut Body<'_>) {
        body.nest(NFTA_DATA_VERDICT, |verdict| {
            verdict.bytes(NFTA_VERDICT_CODE, &self.code.to_be_bytes());
            if let Some(chain) = &self.chain {
                verdict.text(NFTA_VERDICT_CHAIN, chain);
            }
        });
    }

    /// Reads the data of an element or an expression. `None` if it is not a verdict.
    pub(crate) fn read(data: Attributes<'_>) -> Result<Option<Verdict>, Malformed> {
        for attribute in data {
            let attribute = attribute?;
            if attribute.kind == NFTA_DATA_VERDICT {
                let mut verdict = Verdict::plain(0);
                for part in attribute.attributes() {
                    let part = part?;
                    match part.kind {
                        NFTA_VERDICT_CODE => verdict.code = i32::from_be_bytes(part.array()?),
                        NFTA_VERDICT_CHAIN => verdict.chain = Some(part.text()?.into()),
                        _ => (),
                    }
                }
                return Ok(Some(verdict));
            }
        }
        Ok(None)
    }
}

/// The expressions of a rule.
pub(crate) fn from_rule(rule: &Rule) -> Vec<Expr> {
    let mut all = Vec::new();
    rule.matches.iter().for_each(|one| push_match(one, &mut all));
    push_act(&rule.act, &mut all);
    all
}

fn payload(base: u32, (offset, length): (u32, u32), to: u32) -> Expr {
    Expr::Payload { base, offset, length, to }
}

fn compare(op: u32, value: &[u8]) -> Expr {
    Expr::Compare { register: 0, op, value: value.into() }
}

fn push_match(one: &Match, all: &mut Vec<Expr>) {
    match one {
        Match::Established => all.extend([
            Expr::Conntrack { key: NFT_CT_STATE, to: 0 },
            Expr::And { register: 0, mask: ACCEPTED_STATES.to_ne_bytes().into() },
            compare(NFT_CMP_NEQ, &[0; 4]),
        ]),
        Match::Translated => all.extend([
            Expr::Conntrack { key: NFT_CT_STATUS, to: 0 },
            Expr::And { register: 0, mask: IPS_DST_NAT.to_ne_bytes().into() },
            compare(NFT_CMP_NEQ, &[0; 4]),
        ]),
        Match::Of(one) => family(*one, all),
        Match::NeighbourDiscovery => {
            family(IpFamily::V6, all);
            all.extend([
                payload(NFT_PAYLOAD_NETWORK_HEADER, IPV6_HOP_LIMIT, 0),
                compare(NFT_CMP_EQ, &[MAX_HOP_LIMIT]),
                Expr::Meta { key: NFT_META_L4PROTO, to: 0 },
                compare(NFT_CMP_EQ, &[ICMPV6]),
                payload(NFT_PAYLOAD_TRANSPORT_HEADER, ICMP_TYPE, 0),
                compare(NFT_CMP_GTE, &[ND_ROUTER_SOLICIT]),
                compare(NFT_CMP_LTE, &[ND_REDIRECT]),
            ]);
        }
        Match::In(key, set) => lookup(key, set, false, all),
        Match::To(range) => to_ports(range, all),
    }
}

fn push_act(act: &Act, all: &mut Vec<Expr>) {
    match act {
        Act::Accept => all.push(Expr::Verdict(Verdict::plain(NF_ACCEPT))),
        Act::Return => all.push(Expr::Verdict(Verdict::plain(NFT_RETURN))),
        Act::Count => all.push(Expr::Counter),
        Act::CountDrop => all.extend([Expr::Counter, Expr::Verdict(Verdict::plain(NF_DROP))]),
        Act::Goto(chain) => all.push(Expr::Verdict(Verdict::to(NFT_GOTO, chain))),
        Act::Jump(chain) => all.push(Expr::Verdict(Verdict::to(NFT_JUMP, chain))),
        Act::Map(key, map) => lookup(key, map, true, all),
        Act::MapOr(key, map, chain) => {
            lookup(key, map, true, all);
            all.push(Expr::Verdict(Verdict::to(NFT_GOTO, chain)));
        }
        Act::Log(cause) => all.extend([
            Expr::Limit { rate: PER_SECOND.into(), unit: SECOND, burst: BURST },
            Expr::Log { group: GROUP, prefix: prefix(*cause).into(), snaplen: SNAPLEN },
        ]),
    }
}

fn family(family: IpFamily, all: &mut Vec<Expr>) {
    let number = match family {
        IpFamily::V4 => NFPROTO_IPV4,
        IpFamily::V6 => NFPROTO_IPV6,
    };
    all.extend([Expr::Meta { key: NFT_META_NFPROTO, to: 0 }, compare(NFT_CMP_EQ, &[number])]);
}

fn lookup(key: &[Field], set: &Name, decides: bool, all: &mut Vec<Expr>) {
    let first = key.iter().find_map(|field| match field {
        Field::Source(family) | Field::Destination(family) => Some(*family),
        Field::Protocol | Field::SourcePort | Field::DestinationPort => None,
    });
    first.into_iter().for_each(|first| family(first, all));
    let mut to = 0;
    for field in key {
        let network = |field| payload(NFT_PAYLOAD_NETWORK_HEADER, field, to);
        let transport = |field| payload(NFT_PAYLOAD_TRANSPORT_HEADER, field, to);
        all.push(match field {
            Field::Source(IpFamily::V4) => network(IPV4_SOURCE),
            Field::Destination(IpFamily::V4) => network(IPV4_DESTINATION),
            Field::Source(IpFamily::V6) => network(IPV6_SOURCE),
            Field::Destination(IpFamily::V6) => network(IPV6_DESTINATION),
            Field::Protocol => Expr::Meta { key: NFT_META_L4PROTO, to },
            Field::SourcePort => transport(SOURCE_PORT),
            Field::DestinationPort => transport(DESTINATION_PORT),
        });
        to += match field {
            Field::Source(IpFamily::V6) | Field::Destination(IpFamily::V6) => 4,
            _ => 1,
        };
    }
    all.push(Expr::Lookup { set: set.clone(), register: 0, decides });
}

fn to_ports(range: &PortRange, all: &mut Vec<Expr>) {
    all.extend([
        Expr::Meta { key: NFT_META_L4PROTO, to: 0 },
        compare(NFT_CMP_EQ, &[range.protocol.number()]),
    ]);
    if *range == PortRange::all(range.protocol) {
        return;
    }
    all.push(payload(NFT_PAYLOAD_TRANSPORT_HEADER, DESTINATION_PORT, 0));
    let (first, last) = (range.first.to_be_bytes(), range.last.to_be_bytes());
    if first == last {
        all.push(compare(NFT_CMP_EQ, &first));
    } else {
        all.extend([compare(NFT_CMP_GTE, &first), compare(NFT_CMP_LTE, &last)]);
    }
}

/// The kernel's number of a register. Every fourth one is the start of a register of 16 bytes,
/// and the kernel reports it as such.
fn register(index: u32) -> u32 {
    if index.is_multiple_of(4) { NFT_REG_1 + index / 4 } else { NFT_REG32_00 + index }
}

fn index(register: u32) -> Option<u32> {
    match register {
        NFT_REG_1..=NFT_REG_4 => Some((register - NFT_REG_1) * 4),
        NFT_REG32_00..=NFT_REG32_15 => Some(register - NFT_REG32_00),
        _ => None,
    }
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
            Expr::And { .. } => "bitwise",
            Expr::Compare { .. } => "cmp",
            Expr::Lookup { .. } => "lookup",
            Expr::Verdict(_) => "immediate",
            Expr::Counter => "counter",
            Expr::Limit { .. } => "limit",
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
            Expr::And { register: at, mask } => {
                data.be_u32(NFTA_BITWISE_SREG, register(*at))
                    .be_u32(NFTA_BITWISE_DREG, register(*at))
                    .be_u32(NFTA_BITWISE_LEN, 4);
                data.nest(NFTA_BITWISE_MASK, |value| _ = value.bytes(NFTA_DATA_VALUE, mask));
                data.nest(NFTA_BITWISE_XOR, |value| _ = value.bytes(NFTA_DATA_VALUE, &[0; 4]));
            }
            Expr::Compare { register: at, op, value } => {
                data.be_u32(NFTA_CMP_SREG, register(*at)).be_u32(NFTA_CMP_OP, *op);
                data.nest(NFTA_CMP_DATA, |body| _ = body.bytes(NFTA_DATA_VALUE, value));
            }
            Expr::Lookup { set, register: at, decides } => {
                data.text(NFTA_LOOKUP_SET, set).be_u32(NFTA_LOOKUP_SREG, register(*at));
                if *decides {
                    data.be_u32(NFTA_LOOKUP_DREG, NFT_REG_VERDICT);
                }
            }
            Expr::Verdict(verdict) => {
                data.be_u32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT)
                    .nest(NFTA_IMMEDIATE_DATA, |body| verdict.write(body));
            }
            Expr::Counter | Expr::Foreign(_) => (),
            Expr::Limit { rate, unit, burst } => {
                data.be_u64(NFTA_LIMIT_RATE, *rate)
                    .be_u64(NFTA_LIMIT_UNIT, *unit)
                    .be_u32(NFTA_LIMIT_BURST, *burst);
            }
            Expr::Log { group, prefix, snaplen } => {
                data.be_u16(NFTA_LOG_GROUP, *group)
                    .text(NFTA_LOG_PREFIX, prefix)
                    .be_u32(NFTA_LOG_SNAPLEN, *snaplen);
            }
        }
    }

    /// Reads an element of a list of expressions.
    pub(crate) fn read(element: &Attribute<'_>) -> Result<Expr, Malformed> {
        let (mut name, mut data) = ("", None);
        for attribute in element.attributes() {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_EXPR_NAME => name = attribute.text()?,
                NFTA_EXPR_DATA => data = Some(attribute),
                _ => (),
            }
        }
        let mut parts = Parts::default();
        for attribute in data.iter().flat_map(Attribute::attributes) {
            let attribute = attribute?;
            if let Some(part) = parts.0.get_mut(usize::from(attribute.kind)) {
                *part = Some(attribute);
            }
        }
        Ok(parts.read(name)?.unwrap_or_else(|| Expr::Foreign(name.into())))
    }
}

/// The attributes of an expression, by type.
#[derive(Default)]
struct Parts<'a>([Option<Attribute<'a>>; 8]);

impl<'a> Parts<'a> {
    /// `None` if weir never writes such an expression.
    fn read(&self, name: &str) -> Result<Option<Expr>, Malformed> {
        Ok(match name {
            "meta" => {
                let key = self.number(NFTA_META_KEY)?;
                self.register(NFTA_META_DREG)?.map(|to| Expr::Meta { key, to })
            }
            "payload" => {
                let base = self.number(NFTA_PAYLOAD_BASE)?;
                let offset = self.number(NFTA_PAYLOAD_OFFSET)?;
                let length = self.number(NFTA_PAYLOAD_LEN)?;
                let to = self.register(NFTA_PAYLOAD_DREG)?;
                to.map(|to| Expr::Payload { base, offset, length, to })
            }
            "ct" if self.get(NFTA_CT_DIRECTION).is_none() => {
                let key = self.number(NFTA_CT_KEY)?;
                self.register(NFTA_CT_DREG)?.map(|to| Expr::Conntrack { key, to })
            }
            "bitwise" => {
                let (mask, xor) = (self.value(NFTA_BITWISE_MASK)?, self.value(NFTA_BITWISE_XOR)?);
                let in_place = self.number(NFTA_BITWISE_SREG)? == self.number(NFTA_BITWISE_DREG)?;
                let is_and = self.number(NFTA_BITWISE_OP)? == NFT_BITWISE_BOOL
                    && xor.iter().all(|byte| *byte == 0);
                let register = self.register(NFTA_BITWISE_SREG)?;
                register.filter(|_| in_place && is_and).map(|register| Expr::And { register, mask })
            }
            "cmp" => {
                let (op, value) = (self.number(NFTA_CMP_OP)?, self.value(NFTA_CMP_DATA)?);
                let register = self.register(NFTA_CMP_SREG)?;
                register.map(|register| Expr::Compare { register, op, value })
            }
            "lookup" => {
                let set = self.text(NFTA_LOOKUP_SET)?;
                let decides = self.get(NFTA_LOOKUP_DREG).is_some();
                let is_plain = self.number(NFTA_LOOKUP_FLAGS)? == 0
                    && (!decides || self.number(NFTA_LOOKUP_DREG)? == NFT_REG_VERDICT);
                let register = self.register(NFTA_LOOKUP_SREG)?.filter(|_| is_plain);
                register.map(|register| Expr::Lookup { set, register, decides })
            }
            "immediate" if self.number(NFTA_IMMEDIATE_DREG)? == NFT_REG_VERDICT => {
                let data = self.get(NFTA_IMMEDIATE_DATA);
                let data = data.map_or(Attributes::new(&[]), |data| data.attributes());
                Verdict::read(data)?.map(Expr::Verdict)
            }
            "counter" => Some(Expr::Counter),
            "limit"
                if self.number(NFTA_LIMIT_TYPE)? == NFT_LIMIT_PKTS
                    && self.number(NFTA_LIMIT_FLAGS)? == 0 =>
            {
                Some(Expr::Limit {
                    rate: self.get(NFTA_LIMIT_RATE).map_or(Ok(0), |part| part.be_u64())?,
                    unit: self.get(NFTA_LIMIT_UNIT).map_or(Ok(0), |part| part.be_u64())?,
                    burst: self.number(NFTA_LIMIT_BURST)?,
                })
            }
            "log" => Some(Expr::Log {
                group: self.get(NFTA_LOG_GROUP).map_or(Ok(0), |part| part.be_u16())?,
                prefix: self.text(NFTA_LOG_PREFIX)?,
                snaplen: self.number(NFTA_LOG_SNAPLEN)?,
            }),
            _ => None,
        })
    }

    fn get(&self, kind: u16) -> Option<Attribute<'a>> {
        self.0.get(usize::from(kind)).copied().flatten()
    }

    /// A register of four bytes. `None` for the verdict register and for numbers without meaning.
    fn register(&self, kind: u16) -> Result<Option<u32>, Malformed> {
        Ok(index(self.number(kind)?))
    }

    /// A number. A missing attribute means 0, as in the kernel.
    fn number(&self, kind: u16) -> Result<u32, Malformed> {
        self.get(kind).map_or(Ok(0), |part| part.be_u32())
    }

    fn text(&self, kind: u16) -> Result<Name, Malformed> {
        self.get(kind).map_or(Ok(Name::from("")), |part| part.text().map(Name::from))
    }

    fn value(&self, kind: u16) -> Result<Vec<u8>, Malformed> {
        for part in self.get(kind).iter().flat_map(Attribute::attributes) {
            let part = part?;
            if part.kind == NFTA_DATA_VALUE {
                return Ok(part.value.into());
            }
        }
        Ok(Vec::new())
    }
}
