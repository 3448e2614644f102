//! What files mean to opflex-agent: the third reader.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use weir_model::{Direction, Protocol};

use crate::mo::Mo;

/// The rules that files amount to, by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    groups: BTreeMap<String, Vec<Allowed>>,
}

/// Why files cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("object {at} ({uri}): {why}")]
pub struct ReadingError {
    at: usize,
    uri: String,
    why: String,
}

/// What one rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Allowed {
    /// `None`: both.
    direction: Option<Direction>,
    is_v6: bool,
    protocol: Option<u64>,
    ports: Option<(u64, u64)>,
    /// Empty: everyone.
    remote: Vec<IpNet>,
}

impl Reading {
    /// Takes in a file. As opflex-agent does it: objects are taken in their order, and one whose parent was not there before is lost.
    pub fn add(&mut self, text: &str) -> Result<(), ReadingError> {
        let wrong =
            |at, mo: &Mo, why: &str| ReadingError { at, uri: mo.uri.clone(), why: why.into() };
        let list: Vec<Mo> = serde_json::from_str(text)
            .map_err(|error| wrong(0, &Mo::default(), &error.to_string()))?;
        let mut known: BTreeMap<&str, &Mo> = BTreeMap::new();
        for (at, mo) in list.iter().enumerate() {
            if (at == 0) != (mo.subject == "GbpLocalSecGroup") {
                return Err(wrong(at, mo, "the group, and only the group, comes first"));
            }
            if !mo.parent_uri.is_empty() {
                let parent = known.get(mo.parent_uri.as_str());
                let parent = parent.ok_or_else(|| wrong(at, mo, "its parent comes later"))?;
                if !parent.children.contains(&mo.uri) {
                    return Err(wrong(at, mo, "its parent does not know it"));
                }
            }
            if known.insert(&mo.uri, mo).is_some() {
                return Err(wrong(at, mo, "another object has this address"));
            }
        }
        let Some(group) = list.first() else {
            return Err(wrong(0, &Mo::default(), "there is no group"));
        };
        let mut rules = Vec::new();
        for (at, mo) in list.iter().enumerate() {
            if let Some(child) = mo.children.iter().find(|uri| !known.contains_key(uri.as_str())) {
                return Err(wrong(at, mo, &format!("there is no child {child}")));
            }
            if mo.subject == "GbpLocalSecGroupRule" {
                rules.extend(allowed(mo, &known).map_err(|why| wrong(at, mo, why))?);
            }
        }
        let name = group.property("name").and_then(|name| name.as_str()).unwrap_or_default();
        self.groups.insert(name.into(), rules);
        Ok(())
    }

    /// Whether an endpoint with these groups lets a connection pass on its side. Without groups nothing is asked; a group that no file
    /// describes allows nothing.
    pub fn allows(
        &self,
        groups: &[String],
        direction: Direction,
        remote: IpAddr,
        (protocol, port): (Protocol, u16),
    ) -> bool {
        let number = match protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        };
        let matches = |rule: &Allowed| {
            rule.direction.is_none_or(|own| own == direction)
                && rule.is_v6 == remote.is_ipv6()
                && rule.protocol.is_none_or(|own| own == number)
                && rule.ports.is_none_or(|(from, to)| (from..=to).contains(&u64::from(port)))
                && (rule.remote.is_empty() || rule.remote.iter().any(|net| net.contains(&remote)))
        };
        let rules = groups.iter().filter_map(|group| self.groups.get(group)).flatten();
        groups.is_empty() || rules.into_iter().any(matches)
    }
}

/// What a rule allows; nothing if it is not about IP.
fn allowed(rule: &Mo, known: &BTreeMap<&str, &Mo>) -> Result<Option<Allowed>, &'static str> {
    let target = |relation: &str| {
        let mut children = rule.children.iter().filter_map(|uri| known.get(uri.as_str()));
        let relation = children.find(|child| child.subject == relation)?;
        relation.property("target")?["reference_uri"].as_str()
    };
    let action = target("GbpLocalSecGroupRuleToActionRSrc").ok_or("it has no action")?;
    if action != "/PolicyUniverse/PolicySpace/common/GbpLocalAllowDenyAction/allow/" {
        return Err("its action is not known");
    }
    let classifier = target("GbpLocalSecGroupRuleToClassifierRSrc");
    let classifier = classifier.and_then(|uri| known.get(uri)).ok_or("it has no classifier")?;
    let subnets = target("GbpLocalSecGroupRuleToRemoteAddressRSrc");
    let subnets = subnets.and_then(|uri| known.get(uri)).ok_or("it has no subnets")?;
    let text = |mo: &Mo, name: &str| {
        mo.property(name).and_then(|data| data.as_str()).unwrap_or_default().to_owned()
    };
    let number = |name| classifier.property(name).map(|data| data.as_u64().ok_or("not a number"));
    let number = |name| number(name).transpose();
    let is_v6 = match text(classifier, "etherT").as_str() {
        "ipv4" => false,
        "ipv6" => true,
        "arp" => return Ok(None),
        _ => return Err("its classifier has an unknown etherT"),
    };
    if !matches!(text(classifier, "connectionTracking").as_str(), "normal" | "reflexive") {
        return Err("its classifier has an unknown connectionTracking");
    }
    let direction = match text(rule, "direction").as_str() {
        "in" => Some(Direction::Ingress),
        "out" => Some(Direction::Egress),
        "bidirectional" => None,
        _ => return Err("its direction is not known"),
    };
    let ports = match (number("dFromPort")?, number("dToPort")?) {
        (None, None) => None,
        (Some(port), None) | (None, Some(port)) => Some((port, port)),
        (Some(one), Some(other)) => Some((one.min(other), one.max(other))),
    };
    let mut remote = Vec::new();
    for child in subnets.children.iter().filter_map(|uri| known.get(uri.as_str())) {
        let length = child.property("prefixLen").and_then(|data| data.as_u64());
        let net = length.map(|length| format!("{}/{length}", text(child, "address")));
        let net =
            net.and_then(|net| net.parse::<IpNet>().ok()).ok_or("it has a subnet that is none")?;
        remote.push(net);
    }
    Ok(Some(Allowed { direction, is_v6, protocol: number("prot")?, ports, remote }))
}
