//! Rules as the kernel knows them: expressions that load, compare and decide.

use weir_model::{Name, PortRange, Protocol};
use weir_netfilter::report::{BURST, GROUP, PER_SECOND, SNAPLEN, prefix};
use weir_netlink::{Attribute, Attributes, Body, Malformed};

use crate::{Act, Family, Field, Match, Rule};

/// An expression. Registers are those of four bytes, counted from 0.
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
    /// Nothing that we write.
    Foreign(Name),
}

/// A verdict: its code, and the chain that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) code: i32,
    pub(crate) chain: Option<Name>,
}

const DROP: i32 = 0;
pub(crate) const ACCEPT: i32 = 1;
pub(crate) const CONTINUE: i32 = -1;
pub(crate) const RETURN: i32 = -5;
pub(crate) const JUMP: i32 = -3;
pub(crate) const GOTO: i32 = -4;

const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
const EQUAL: u32 = 0;
const UNEQUAL: u32 = 1;
const AT_MOST: u32 = 3;
const AT_LEAST: u32 = 5;
const CONNTRACK_STATE: u32 = 0;
const CONNTRACK_STATUS: u32 = 2;
/// The destination was translated.
const TRANSLATED: u32 = 1 << 5;
/// `established` and `related`.
const ESTABLISHED: u32 = 2 | 4;
const ICMPV6: u8 = 58;

const SECOND: u64 = 1;

impl Verdict {
    pub(crate) fn to(code: i32, chain: &Name) -> Self {
        Verdict { code, chain: Some(chain.clone()) }
    }

    pub(crate) fn plain(code: i32) -> Self {
        Verdict { code, chain: None }
    }

    pub(crate) fn write(&self, body: &mut Body<'_>) {
        body.nest(2, |verdict| {
            verdict.bytes(1, &self.code.to_be_bytes());
            if let Some(chain) = &self.chain {
                verdict.text(2, chain);
            }
        });
    }

    /// Reads the data of an element or of an expression; `None` if it is no verdict.
    pub(crate) fn read(data: Attributes<'_>) -> Result<Option<Verdict>, Malformed> {
        for attribute in data {
            let attribute = attribute?;
            if attribute.kind == 2 {
                let mut verdict = Verdict::plain(0);
                for part in attribute.attributes() {
                    let part = part?;
                    match part.kind {
                        1 => verdict.code = i32::from_be_bytes(part.array()?),
                        2 => verdict.chain = Some(part.text()?.into()),
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
pub(crate) fn of(rule: &Rule) -> Vec<Expr> {
    let mut all = Vec::new();
    rule.matches.iter().for_each(|one| matching(one, &mut all));
    acting(&rule.act, &mut all);
    all
}

fn compare(op: u32, value: &[u8]) -> Expr {
    Expr::Compare { register: 0, op, value: value.into() }
}

fn matching(one: &Match, all: &mut Vec<Expr>) {
    match one {
        Match::Established => all.extend([
            Expr::Conntrack { key: CONNTRACK_STATE, to: 0 },
            Expr::And { register: 0, mask: ESTABLISHED.to_ne_bytes().into() },
            compare(UNEQUAL, &[0; 4]),
        ]),
        Match::Translated => all.extend([
            Expr::Conntrack { key: CONNTRACK_STATUS, to: 0 },
            Expr::And { register: 0, mask: TRANSLATED.to_ne_bytes().into() },
            compare(UNEQUAL, &[0; 4]),
        ]),
        Match::Of(one) => family(*one, all),
        Match::NeighbourDiscovery => {
            family(Family::V6, all);
            all.extend([
                Expr::Payload { base: NETWORK, offset: 7, length: 1, to: 0 },
                compare(EQUAL, &[u8::MAX]),
                Expr::Meta { key: META_L4PROTO, to: 0 },
                compare(EQUAL, &[ICMPV6]),
                Expr::Payload { base: TRANSPORT, offset: 0, length: 1, to: 0 },
                compare(AT_LEAST, &[133]),
                compare(AT_MOST, &[137]),
            ]);
        }
        Match::In(key, set) => lookup(key, set, false, all),
        Match::To(range) => to_ports(range, all),
    }
}

fn acting(act: &Act, all: &mut Vec<Expr>) {
    match act {
        Act::Accept => all.push(Expr::Verdict(Verdict::plain(ACCEPT))),
        Act::Return => all.push(Expr::Verdict(Verdict::plain(RETURN))),
        Act::Count => all.push(Expr::Counter),
        Act::CountDrop => all.extend([Expr::Counter, Expr::Verdict(Verdict::plain(DROP))]),
        Act::Goto(chain) => all.push(Expr::Verdict(Verdict::to(GOTO, chain))),
        Act::Jump(chain) => all.push(Expr::Verdict(Verdict::to(JUMP, chain))),
        Act::Map(key, map) => lookup(key, map, true, all),
        Act::MapOr(key, map, chain) => {
            lookup(key, map, true, all);
            all.push(Expr::Verdict(Verdict::to(GOTO, chain)));
        }
        Act::Log(cause) => all.extend([
            Expr::Limit { rate: PER_SECOND.into(), unit: SECOND, burst: BURST },
            Expr::Log { group: GROUP, prefix: prefix(*cause).into(), snaplen: SNAPLEN },
        ]),
    }
}

fn family(family: Family, all: &mut Vec<Expr>) {
    let number = match family {
        Family::V4 => 2,
        Family::V6 => 10,
    };
    all.extend([Expr::Meta { key: META_NFPROTO, to: 0 }, compare(EQUAL, &[number])]);
}

fn lookup(key: &[Field], set: &Name, decides: bool, all: &mut Vec<Expr>) {
    let first = key.iter().find_map(|field| match field {
        Field::Source(family) | Field::Destination(family) => Some(*family),
        Field::Protocol | Field::SourcePort | Field::DestinationPort => None,
    });
    first.into_iter().for_each(|first| family(first, all));
    let mut to = 0;
    for field in key {
        let payload = |base, offset, length| Expr::Payload { base, offset, length, to };
        all.push(match field {
            Field::Source(Family::V4) => payload(NETWORK, 12, 4),
            Field::Destination(Family::V4) => payload(NETWORK, 16, 4),
            Field::Source(Family::V6) => payload(NETWORK, 8, 16),
            Field::Destination(Family::V6) => payload(NETWORK, 24, 16),
            Field::Protocol => Expr::Meta { key: META_L4PROTO, to },
            Field::SourcePort => payload(TRANSPORT, 0, 2),
            Field::DestinationPort => payload(TRANSPORT, 2, 2),
        });
        to += match field {
            Field::Source(Family::V6) | Field::Destination(Family::V6) => 4,
            _ => 1,
        };
    }
    all.push(Expr::Lookup { set: set.clone(), register: 0, decides });
}

fn to_ports(range: &PortRange, all: &mut Vec<Expr>) {
    all.extend([
        Expr::Meta { key: META_L4PROTO, to: 0 },
        compare(EQUAL, &[number(range.protocol)]),
    ]);
    if *range == PortRange::all(range.protocol) {
        return;
    }
    all.push(Expr::Payload { base: TRANSPORT, offset: 2, length: 2, to: 0 });
    let (first, last) = (range.first.to_be_bytes(), range.last.to_be_bytes());
    match first == last {
        true => all.push(compare(EQUAL, &first)),
        false => all.extend([compare(AT_LEAST, &first), compare(AT_MOST, &last)]),
    }
}

/// The number of a protocol.
pub(crate) fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

/// The kernel's number of a register: whole ones of sixteen bytes have numbers of their own.
fn register(index: u32) -> u32 {
    if index.is_multiple_of(4) { 1 + index / 4 } else { 8 + index }
}

fn index(register: u32) -> Option<u32> {
    match register {
        1..=4 => Some((register - 1) * 4),
        8..=23 => Some(register - 8),
        _ => None,
    }
}

impl Expr {
    /// Writes it as an element of a list of expressions.
    pub(crate) fn write(&self, list: &mut Body<'_>) {
        list.nest(1, |expr| {
            expr.text(1, self.name());
            expr.nest(2, |data| self.write_data(data));
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
            Expr::Meta { key, to } => _ = data.be_u32(1, register(*to)).be_u32(2, *key),
            Expr::Payload { base, offset, length, to } => {
                data.be_u32(1, register(*to)).be_u32(2, *base);
                data.be_u32(3, *offset).be_u32(4, *length);
            }
            Expr::Conntrack { key, to } => _ = data.be_u32(1, register(*to)).be_u32(2, *key),
            Expr::And { register: at, mask } => {
                data.be_u32(1, register(*at)).be_u32(2, register(*at)).be_u32(3, 4);
                data.nest(4, |value| _ = value.bytes(1, mask));
                data.nest(5, |value| _ = value.bytes(1, &[0; 4]));
            }
            Expr::Compare { register: at, op, value } => {
                data.be_u32(1, register(*at)).be_u32(2, *op);
                data.nest(3, |body| _ = body.bytes(1, value));
            }
            Expr::Lookup { set, register: at, decides } => {
                data.text(1, set).be_u32(2, register(*at));
                if *decides {
                    data.be_u32(3, 0);
                }
            }
            Expr::Verdict(verdict) => {
                data.be_u32(1, 0).nest(2, |body| verdict.write(body));
            }
            Expr::Counter | Expr::Foreign(_) => (),
            Expr::Limit { rate, unit, burst } => {
                data.be_u64(1, *rate).be_u64(2, *unit).be_u32(3, *burst);
            }
            Expr::Log { group, prefix, snaplen } => {
                data.be_u16(1, *group).text(2, prefix).be_u32(3, *snaplen);
            }
        }
    }

    /// Reads an element of a list of expressions.
    pub(crate) fn read(element: &Attribute<'_>) -> Result<Expr, Malformed> {
        let (mut name, mut data) = ("", None);
        for attribute in element.attributes() {
            let attribute = attribute?;
            match attribute.kind {
                1 => name = attribute.text()?,
                2 => data = Some(attribute),
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

/// The attributes of an expression, by their type.
#[derive(Default)]
struct Parts<'a>([Option<Attribute<'a>>; 8]);

impl Parts<'_> {
    /// `None` if it is nothing that we write.
    fn read(&self, name: &str) -> Result<Option<Expr>, Malformed> {
        let at = |part: u32| index(part);
        Ok(match name {
            "meta" => match (at(self.number(1)?), self.number(2)?) {
                (Some(to), key) => Some(Expr::Meta { key, to }),
                _ => None,
            },
            "payload" => {
                let (base, offset, length) = (self.number(2)?, self.number(3)?, self.number(4)?);
                at(self.number(1)?).map(|to| Expr::Payload { base, offset, length, to })
            }
            "ct" if self.0[3].is_none() => {
                let key = self.number(2)?;
                at(self.number(1)?).map(|to| Expr::Conntrack { key, to })
            }
            "bitwise" => {
                let (mask, xor) = (self.value(4)?, self.value(5)?);
                let same = self.number(1)? == self.number(2)? && self.number(6)? == 0;
                let plain = same && xor.iter().all(|byte| *byte == 0);
                at(self.number(1)?).filter(|_| plain).map(|register| Expr::And { register, mask })
            }
            "cmp" => {
                let (op, value) = (self.number(2)?, self.value(3)?);
                at(self.number(1)?).map(|register| Expr::Compare { register, op, value })
            }
            "lookup" => {
                let (set, decides) = (self.text(1)?, self.0[3].is_some());
                let plain = self.number(5)? == 0 && (!decides || self.number(3)? == 0);
                at(self.number(2)?).filter(|_| plain).map(|register| Expr::Lookup {
                    set,
                    register,
                    decides,
                })
            }
            "immediate" if self.number(1)? == 0 => {
                let data = self.0[2].map_or(Attributes::new(&[]), |data| data.attributes());
                Verdict::read(data)?.map(Expr::Verdict)
            }
            "counter" => Some(Expr::Counter),
            "limit" if self.number(4)? == 0 && self.number(5)? == 0 => Some(Expr::Limit {
                rate: self.0[1].map_or(Ok(0), |part| part.be_u64())?,
                unit: self.0[2].map_or(Ok(0), |part| part.be_u64())?,
                burst: self.number(3)?,
            }),
            "log" => Some(Expr::Log {
                group: self.0[1].map_or(Ok(0), |part| part.be_u16())?,
                prefix: self.text(2)?,
                snaplen: self.number(3)?,
            }),
            _ => None,
        })
    }

    /// A number; 0 if it is missing, as in the kernel.
    fn number(&self, kind: usize) -> Result<u32, Malformed> {
        self.0[kind].map_or(Ok(0), |part| part.be_u32())
    }

    fn text(&self, kind: usize) -> Result<Name, Malformed> {
        self.0[kind].map_or(Ok(Name::from("")), |part| part.text().map(Name::from))
    }

    fn value(&self, kind: usize) -> Result<Vec<u8>, Malformed> {
        for part in self.0[kind].iter().flat_map(Attribute::attributes) {
            let part = part?;
            if part.kind == 1 {
                return Ok(part.value.into());
            }
        }
        Ok(Vec::new())
    }
}
