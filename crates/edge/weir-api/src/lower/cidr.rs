use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use weir_model::{Block, Severity};

use super::{Fields, LowerContext, admin::reason};
use crate::document::{Tree, quote};

/// Which spellings of networks the API server accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// NetworkPolicy: host bits, leading zeros and IPv4-mapped IPv6 (V6).
    Old,
    /// Admin kinds of v1alpha1: only host bits. The server checks the separators alone.
    V1alpha1,
    /// Admin kinds of later versions: only host bits.
    V1alpha2,
}

/// The longest network that the definitions of admin kinds accept.
const MAX_LENGTH: usize = 43;

impl Spelling {
    /// Why a network is rejected, in the words of the API server if it rejects it. `oddities` is
    /// `None` if the text is not a network.
    fn rejects(self, text: &str, oddities: Option<u8>) -> Option<String> {
        let is_odd = oddities.is_none_or(|oddities| oddities & !HOST_BITS != 0);
        let is_mixed = text.contains(':') == text.contains('.');
        let text = quote(text);
        match self {
            Spelling::Old if oddities.is_some() => None,
            Spelling::V1alpha1 if is_mixed => Some(format!("{}: {text}", reason::CIDR_V1ALPHA1)),
            Spelling::V1alpha2 if is_odd => Some(format!("{}: {text}", reason::CIDR)),
            Spelling::Old | Spelling::V1alpha1 if is_odd => {
                Some(format!("{text} is not a network in CIDR notation"))
            }
            _ => None,
        }
    }
}

/// An `ipBlock`.
pub(crate) fn block(ctx: &mut LowerContext, tree: &Tree) -> Option<Block> {
    let fields = ctx.fields(tree, &["cidr", "except"]);
    let net = required_net(ctx, &fields);
    let except = match fields.get("except") {
        None => Some(Vec::new()),
        Some(list) => ctx.at("except", |ctx| {
            ctx.each(list, |ctx, _, item| {
                let except = network(ctx, item, Spelling::Old)?;
                match net {
                    Some(net) if !is_inside(except, net) => {
                        let message = format!("{except} is not a proper part of the cidr {net}");
                        let hint = "write a smaller network inside the cidr, or remove it";
                        ctx.invalid(item.line, message, hint);
                        None
                    }
                    _ => Some(except),
                }
            })
        }),
    };
    fields.clean.then_some(())?;
    Some(Block::new(net?, except?))
}

fn required_net(ctx: &mut LowerContext, fields: &Fields) -> Option<IpNet> {
    let cidr = fields.get("cidr").filter(|cidr| cidr.text() != Some(""));
    ctx.at("cidr", |ctx| match cidr {
        Some(cidr) => network(ctx, cidr, Spelling::Old),
        None => {
            ctx.invalid(fields.line, "an ipBlock needs a cidr", "add `cidr:`, such as 10.0.0.0/8");
            None
        }
    })
}

/// V5.
fn is_inside(except: IpNet, net: IpNet) -> bool {
    net.contains(&except) && except.prefix_len() > net.prefix_len()
}

/// A network in CIDR notation, host bits cleared.
pub(crate) fn network(ctx: &mut LowerContext, tree: &Tree, spelling: Spelling) -> Option<IpNet> {
    let text = ctx.text(tree)?;
    let hint = "write a network such as 10.0.0.0/8 or fd00::/8";
    let parsed = parse(text);
    let oddities = parsed.as_ref().map(|parsed| parsed.oddities);
    if let Some(message) = spelling.rejects(text, oddities) {
        let hint = parsed.map_or(hint.into(), |parsed| format!("write {}", parsed.net));
        ctx.invalid(tree.line, message, hint);
        return None;
    }
    let parsed = parsed?;
    if spelling != Spelling::Old && text.len() > MAX_LENGTH {
        let message = format!("a network has at most {MAX_LENGTH} characters");
        ctx.invalid(tree.line, message, format!("write {}", parsed.net));
        return None;
    }
    if parsed.oddities != 0 {
        let names = [
            (HOST_BITS, "bits set after the prefix"),
            (LEADING_ZEROS, "leading zeros"),
            (MAPPED, "IPv4 written as IPv6"),
        ];
        let odd: Vec<&str> = names
            .iter()
            .filter(|(bit, _)| parsed.oddities & bit != 0)
            .map(|(_, name)| *name)
            .collect();
        let later = match spelling {
            Spelling::Old => ", and newer API servers reject it",
            Spelling::V1alpha1 | Spelling::V1alpha2 => "",
        };
        let (text, odd) = (quote(text), odd.join(" and "));
        let message = format!("{text} has {odd}; it is read as {}{later}", parsed.net);
        let hint = format!("write {}", parsed.net);
        ctx.find("loose-cidr", Severity::Warning, tree.line, message, hint);
    }
    Some(parsed.net)
}

const HOST_BITS: u8 = 1;
const LEADING_ZEROS: u8 = 2;
const MAPPED: u8 = 4;

struct ParsedCidr {
    net: IpNet,
    oddities: u8,
}

fn parse(text: &str) -> Option<ParsedCidr> {
    let (address, length) = text.rsplit_once('/')?;
    let mut oddities = 0;
    if length.is_empty() || length.len() > 4 || !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    if length.len() > 1 && length.starts_with('0') {
        oddities |= LEADING_ZEROS;
    }
    let length: u8 = length.parse().ok()?;
    let net: IpNet = if address.contains(':') {
        let address: Ipv6Addr = address.parse().ok()?;
        let mapped = address.to_ipv4_mapped();
        if mapped.is_some() {
            oddities |= MAPPED;
        }
        match mapped.zip(length.checked_sub(96)) {
            Some((v4, length)) => Ipv4Net::new(v4, length).ok()?.into(),
            None => Ipv6Net::new(address, length).ok()?.into(),
        }
    } else {
        let (address, zeros) = parse_v4(address)?;
        oddities |= if zeros { LEADING_ZEROS } else { 0 };
        Ipv4Net::new(address, length).ok()?.into()
    };
    if net.trunc() != net {
        oddities |= HOST_BITS;
    }
    Some(ParsedCidr { net: net.trunc(), oddities })
}

/// Four decimal numbers, and whether one has leading zeros (B10).
fn parse_v4(text: &str) -> Option<(Ipv4Addr, bool)> {
    let mut zeros = false;
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || part.len() > 8 || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        zeros |= part.len() > 1 && part.starts_with('0');
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then_some((octets.into(), zeros))
}

/// An address as weir uses it everywhere: an IPv4-mapped IPv6 address becomes IPv4, as on the wire.
pub fn address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
    } else {
        parse_v4(text).map(|(address, _)| address.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        match parse(text) {
            None => "rejected".into(),
            Some(ParsedCidr { net, oddities: 0 }) => net.to_string(),
            Some(ParsedCidr { net, .. }) => format!("{net}, loosely"),
        }
    }

    /// V6, B9, B10, B13, B19.
    #[test]
    fn old_spellings_are_read_like_in_the_api_server() {
        for (text, net) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("10.1.2.3/8", "10.0.0.0/8, loosely"),
            ("010.001.0.0/16", "10.1.0.0/16, loosely"),
            ("10.0.0.0/08", "10.0.0.0/8, loosely"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8, loosely"),
            ("::ffff:a00:0/104", "10.0.0.0/8, loosely"),
            ("FD00:0::/8", "fd00::/8"),
            ("fd00::1/64", "fd00::/64, loosely"),
            ("10.0.0.0", "rejected"),
            ("10.0.0/8", "rejected"),
            ("10.0.0.0.0/8", "rejected"),
            ("10.0.0.256/8", "rejected"),
            ("10.0.0.0/33", "rejected"),
            ("10.0.0.0/-1", "rejected"),
            ("10.0.0.0/+8", "rejected"),
            ("fe80::1%eth0/64", "rejected"),
            ("::/129", "rejected"),
            ("", "rejected"),
            ("/", "rejected"),
        ] {
            assert_eq!(read(text), net, "{text}");
        }
    }

    #[test]
    fn every_spelling_of_an_ipv4_address_is_accepted() {
        let eight = Some(IpAddr::from([8, 8, 8, 8]));
        for text in
            ["8.8.8.8", "::ffff:8.8.8.8", "::FFFF:808:808", "0:0:0:0:0:ffff:8.8.8.8", "008.8.8.8"]
        {
            assert_eq!(address(text), eight, "{text}");
        }
        assert_eq!(address("fd00::1"), "fd00::1".parse().ok());
        for text in ["", "8.8.8", "8.8.8.8/32", "fe80::1%eth0", "web", " 8.8.8.8"] {
            assert_eq!(address(text), None, "{text}");
        }
    }

    /// V5.
    #[test]
    fn an_exception_must_be_a_proper_part() {
        let net = |text: &str| parse(text).unwrap().net;
        assert!(is_inside(net("10.1.0.0/16"), net("10.0.0.0/8")));
        assert!(!is_inside(net("10.0.0.0/8"), net("10.0.0.0/8")));
        assert!(!is_inside(net("11.0.0.0/16"), net("10.0.0.0/8")));
        assert!(!is_inside(net("fd00::/16"), net("0.0.0.0/0")));
    }
}
