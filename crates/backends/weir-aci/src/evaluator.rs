//! Evaluates flows against the rendered files, with the semantics of opflex-agent.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use weir_model::{Direction, Protocol};

use crate::mo::Mo;

/// The rules of the files, by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluator {
    groups: BTreeMap<String, Vec<Allowed>>,
}

/// A file is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("object {at} ({uri}): {why}")]
pub struct EvaluatorError {
    at: usize,
    uri: String,
    why: String,
}

/// The traffic that one rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Allowed {
    /// `None` means both directions.
    direction: Option<Direction>,
    is_v6: bool,
    protocol: Option<u64>,
    ports: Option<(u64, u64)>,
    /// An empty list matches every peer.
    remote: Arc<[IpNet]>,
}

impl Evaluator {
    /// Adds a file. Like opflex-agent, it reads objects in order, and rejects one whose parent does
    /// not come first.
    pub fn add(&mut self, text: &str) -> Result<(), EvaluatorError> {
        let wrong =
            |at, mo: &Mo, why: &str| EvaluatorError { at, uri: mo.uri.clone(), why: why.into() };
        let list: Vec<Mo> = serde_json::from_str(text)
            .map_err(|error| wrong(0, &Mo::default(), &error.to_string()))?;
        let mut known: BTreeMap<&str, &Mo> = BTreeMap::new();
        let mut listed: HashSet<(&str, &str)> = HashSet::new();
        for (at, mo) in list.iter().enumerate() {
            if (at == 0) != (mo.subject == "GbpLocalSecGroup") {
                return Err(wrong(
                    at,
                    mo,
                    "the group must be the first object, and the only group",
                ));
            }
            if !mo.parent_uri.is_empty() {
                if !known.contains_key(mo.parent_uri.as_str()) {
                    return Err(wrong(at, mo, "its parent does not come before it"));
                }
                if !listed.contains(&(&*mo.parent_uri, &*mo.uri)) {
                    return Err(wrong(at, mo, "its parent does not list it as a child"));
                }
            }
            if known.insert(&mo.uri, mo).is_some() {
                return Err(wrong(at, mo, "another object has the same URI"));
            }
            listed.extend(mo.children.iter().map(|child| (&*mo.uri, &**child)));
        }
        let Some(group) = list.first() else {
            return Err(wrong(0, &Mo::default(), "the file has no group"));
        };
        let (mut rules, mut networks) = (Vec::new(), BTreeMap::new());
        for (at, mo) in list.iter().enumerate() {
            if let Some(child) = mo.children.iter().find(|uri| !known.contains_key(uri.as_str())) {
                return Err(wrong(at, mo, &format!("child {child} is missing")));
            }
            if mo.subject == "GbpLocalSecGroupRule" {
                rules.extend(allowed(mo, &known, &mut networks).map_err(|why| wrong(at, mo, why))?);
            }
        }
        let name = group.property("name").and_then(|name| name.as_str()).unwrap_or_default();
        self.groups.insert(name.into(), rules);
        Ok(())
    }

    /// Whether an endpoint with these groups allows a connection on its side. Without groups
    /// everything is allowed. A group without a file allows nothing.
    pub fn allows(
        &self,
        groups: &[String],
        direction: Direction,
        remote: IpAddr,
        (protocol, port): (Protocol, u16),
    ) -> bool {
        let matches = |rule: &Allowed| {
            rule.direction.is_none_or(|own| own == direction)
                && rule.is_v6 == remote.is_ipv6()
                && rule.protocol.is_none_or(|own| own == u64::from(protocol.number()))
                && rule.ports.is_none_or(|(from, to)| (from..=to).contains(&u64::from(port)))
                && (rule.remote.is_empty() || rule.remote.iter().any(|net| net.contains(&remote)))
        };
        let rules = groups.iter().filter_map(|group| self.groups.get(group)).flatten();
        groups.is_empty() || rules.into_iter().any(matches)
    }
}

/// The networks of each list, which rules can share.
type Networks<'m> = BTreeMap<&'m str, Arc<[IpNet]>>;

/// The traffic that a rule allows, or `None` for a rule about ARP.
fn allowed<'m>(
    rule: &'m Mo,
    known: &BTreeMap<&'m str, &'m Mo>,
    networks: &mut Networks<'m>,
) -> Result<Option<Allowed>, &'static str> {
    let target = |relation: &str| {
        let mut children = rule.children.iter().filter_map(|uri| known.get(uri.as_str()));
        let relation = children.find(|child| child.subject == relation)?;
        relation.property("target")?["reference_uri"].as_str()
    };
    let action = target("GbpLocalSecGroupRuleToActionRSrc").ok_or("it has no action")?;
    if action != "/PolicyUniverse/PolicySpace/common/GbpLocalAllowDenyAction/allow/" {
        return Err("its action is unknown");
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
        _ => return Err("its direction is unknown"),
    };
    let ports = match (number("dFromPort")?, number("dToPort")?) {
        (None, None) => None,
        (Some(port), None) | (None, Some(port)) => Some((port, port)),
        (Some(one), Some(other)) => Some((one.min(other), one.max(other))),
    };
    let mut remote = Vec::new();
    if let Some(remote) = networks.get(&*subnets.uri) {
        let (protocol, remote) = (number("prot")?, remote.clone());
        return Ok(Some(Allowed { direction, is_v6, protocol, ports, remote }));
    }
    for child in subnets.children.iter().filter_map(|uri| known.get(uri.as_str())) {
        let length = child.property("prefixLen").and_then(|data| data.as_u64());
        let net = length.map(|length| format!("{}/{length}", text(child, "address")));
        let net =
            net.and_then(|net| net.parse::<IpNet>().ok()).ok_or("one of its subnets is invalid")?;
        remote.push(net);
    }
    let remote: Arc<[IpNet]> = remote.into();
    networks.insert(&subnets.uri, remote.clone());
    Ok(Some(Allowed { direction, is_v6, protocol: number("prot")?, ports, remote }))
}
