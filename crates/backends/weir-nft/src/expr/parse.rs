//! Reads expressions back from the kernel.

use weir_model::Name;
use weir_netlink::{Attribute, Attributes, Malformed};

use super::{Expr, SECOND, WireVerdict};
use crate::uapi::*;

impl WireVerdict {
    /// Parses the data of an element or an expression. `None` if it is not a verdict.
    pub(crate) fn parse(data: Attributes<'_>) -> Result<Option<WireVerdict>, Malformed> {
        for attribute in data {
            let attribute = attribute?;
            if attribute.kind == NFTA_DATA_VERDICT {
                let mut verdict = WireVerdict::plain(0);
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

impl Expr {
    /// Parses an element of a list of expressions.
    pub(crate) fn parse(element: &Attribute<'_>) -> Result<Expr, Malformed> {
        let (name, parts) = parts(element)?;
        Ok(parts.parse(name)?.unwrap_or_else(|| Expr::Foreign(name.into())))
    }
}

/// The name and the attributes of an expression.
fn parts<'a>(element: &Attribute<'a>) -> Result<(&'a str, ExprAttributes<'a>), Malformed> {
    let (mut name, mut data) = ("", None);
    for attribute in element.attributes() {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_EXPR_NAME => name = attribute.text()?,
            NFTA_EXPR_DATA => data = Some(attribute),
            _ => (),
        }
    }
    let mut parts = ExprAttributes::default();
    for attribute in data.iter().flat_map(Attribute::attributes) {
        let attribute = attribute?;
        if let Some(part) = parts.0.get_mut(usize::from(attribute.kind)) {
            *part = Some(attribute);
        }
    }
    Ok((name, parts))
}

/// The packets that the counters of a rule counted.
pub(crate) fn counted_packets(rule: Attributes<'_>) -> Result<u64, Malformed> {
    let mut sum = 0_u64;
    for attribute in rule {
        let attribute = attribute?;
        if attribute.kind != NFTA_RULE_EXPRESSIONS {
            continue;
        }
        for element in attribute.attributes() {
            let (name, parts) = parts(&element?)?;
            if let ("counter", Some(packets)) = (name, parts.get(NFTA_COUNTER_PACKETS)) {
                sum = sum.saturating_add(packets.be_u64()?);
            }
        }
    }
    Ok(sum)
}

/// The index of a register by its number in the kernel.
fn register_index(register: u32) -> Option<u32> {
    match register {
        NFT_REG_1..=NFT_REG_4 => Some((register - NFT_REG_1) * 4),
        NFT_REG32_00..=NFT_REG32_15 => Some(register - NFT_REG32_00),
        _ => None,
    }
}

/// The attributes of an expression, by type.
#[derive(Default)]
struct ExprAttributes<'a>([Option<Attribute<'a>>; 8]);

impl<'a> ExprAttributes<'a> {
    /// Parses an expression. `None` if weir never writes such an expression.
    fn parse(&self, name: &str) -> Result<Option<Expr>, Malformed> {
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
                let is_bool = self.number(NFTA_BITWISE_OP)? == NFT_BITWISE_BOOL;
                let register = self.register(NFTA_BITWISE_SREG)?;
                let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
                register.filter(|_| in_place && is_bool).and_then(|register| match &xor[..] {
                    xor if is_zero(xor) => Some(Expr::And { register, mask }),
                    &[a, b, c, d] if is_zero(&mask) => {
                        Some(Expr::Constant { register, value: [a, b, c, d] })
                    }
                    _ => None,
                })
            }
            "byteorder" => {
                let in_place =
                    self.number(NFTA_BYTEORDER_SREG)? == self.number(NFTA_BYTEORDER_DREG)?;
                let is_ours = self.number(NFTA_BYTEORDER_OP)? == NFT_BYTEORDER_HTON
                    && self.number(NFTA_BYTEORDER_LEN)? == 4
                    && self.number(NFTA_BYTEORDER_SIZE)? == 4;
                let register = self.register(NFTA_BYTEORDER_SREG)?;
                let register = register.filter(|_| in_place && is_ours);
                register.map(|register| Expr::ToNetworkOrder { register })
            }
            "cmp" => {
                let (op, value) = (self.number(NFTA_CMP_OP)?, self.value(NFTA_CMP_DATA)?);
                let register = self.register(NFTA_CMP_SREG)?;
                register.map(|register| Expr::Compare { register, op, value })
            }
            "lookup" => {
                let set = self.text(NFTA_LOOKUP_SET)?;
                let destination =
                    self.get(NFTA_LOOKUP_DREG).map(|part| part.be_u32()).transpose()?;
                let flags = self.number(NFTA_LOOKUP_FLAGS)?;
                let register = self.register(NFTA_LOOKUP_SREG)?;
                register.and_then(|register| match (destination, flags) {
                    (None, 0) => Some(Expr::Lookup { set, register }),
                    (None, NFT_LOOKUP_F_INV) => Some(Expr::Absent { set, register }),
                    (Some(NFT_REG_VERDICT), 0) => Some(Expr::VerdictMap { set, register }),
                    _ => None,
                })
            }
            "immediate" if self.number(NFTA_IMMEDIATE_DREG)? == NFT_REG_VERDICT => {
                let data = self.get(NFTA_IMMEDIATE_DATA);
                let data = data.map_or(Attributes::new(&[]), |data| data.attributes());
                WireVerdict::parse(data)?.map(Expr::Verdict)
            }
            "counter" => Some(Expr::Counter),
            "dynset" if self.number(NFTA_DYNSET_OP)? == NFT_DYNSET_OP_ADD => {
                let set = self.text(NFTA_DYNSET_SET_NAME)?;
                let register = self.register(NFTA_DYNSET_SREG_KEY)?;
                let limit = self.get(NFTA_DYNSET_EXPR).map(|limit| parts(&limit)).transpose()?;
                match (register, limit) {
                    (Some(register), Some(("limit", limit))) => {
                        let limit = limit.over()?;
                        limit.map(|(rate, burst)| Expr::Exceeds { set, register, rate, burst })
                    }
                    _ => None,
                }
            }
            "limit" => self.over()?.map(|(rate, burst)| Expr::Over { rate, burst }),
            "reject" => Some(Expr::Reject {
                kind: self.number(NFTA_REJECT_TYPE)?,
                code: self.get(NFTA_REJECT_ICMP_CODE).map_or(Ok(0), |part| part.u8())?,
            }),
            "log" => Some(Expr::Log {
                group: self.get(NFTA_LOG_GROUP).map_or(Ok(0), |part| part.be_u16())?,
                prefix: self.text(NFTA_LOG_PREFIX)?,
                snaplen: self.number(NFTA_LOG_SNAPLEN)?,
            }),
            _ => None,
        })
    }

    /// Parses the rate and the burst of a limit that packets must exceed. `None` if weir never
    /// writes such a limit.
    fn over(&self) -> Result<Option<(u64, u32)>, Malformed> {
        let wide = |kind| self.get(kind).map_or(Ok(0), |part| part.be_u64());
        let is_ours = self.number(NFTA_LIMIT_TYPE)? == NFT_LIMIT_PKTS
            && self.number(NFTA_LIMIT_FLAGS)? == NFT_LIMIT_F_INV
            && wide(NFTA_LIMIT_UNIT)? == SECOND;
        let (rate, burst) = (wide(NFTA_LIMIT_RATE)?, self.number(NFTA_LIMIT_BURST)?);
        Ok(is_ours.then_some((rate, burst)))
    }

    fn get(&self, kind: u16) -> Option<Attribute<'a>> {
        self.0.get(usize::from(kind)).copied().flatten()
    }

    /// A register of four bytes. `None` for the verdict register and for numbers without meaning.
    fn register(&self, kind: u16) -> Result<Option<u32>, Malformed> {
        Ok(register_index(self.number(kind)?))
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
