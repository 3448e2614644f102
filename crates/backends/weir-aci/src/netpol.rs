//! Renders a HostprotPol to a file: the tree of managed objects from which opflex-agent creates
//! flows.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    rc::Rc,
};

use ipnet::IpNet;
use weir_model::Protocol;

use crate::{
    mo::{Mo, percent_encoded},
    name, net,
    object::{ContainerSpec, Filter, HostprotRule, PolSpec, Subj},
};

/// A rendered file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netpol {
    /// The file name.
    pub file: String,
    /// The content.
    pub text: String,
    /// One warning per rule or address that is invalid and was left out. Leaving it out allows
    /// less.
    pub warnings: Vec<String>,
}

/// The containers by name.
pub(crate) type Containers = BTreeMap<String, ContainerSpec>;

/// Renders the file of an object in a policy space. A missing container has no addresses.
pub fn render(pol: &PolSpec, containers: &BTreeMap<String, ContainerSpec>, space: &str) -> Netpol {
    render_within(pol, containers, space, &NetpolLimits::default())
}

/// Bounds for a file.
#[derive(Clone, Debug)]
pub struct NetpolLimits {
    /// The number of networks up to which a rule has its own list. Rules with equal peers and more
    /// networks share one.
    pub own_networks: usize,
    /// The maximum number of pairs of a rule and a network. opflex-agent creates flows for each
    /// pair.
    pub pairs: usize,
}

impl Default for NetpolLimits {
    fn default() -> Self {
        NetpolLimits { own_networks: 100, pairs: 250_000 }
    }
}

/// Renders the file of an object within these limits. A file that exceeds them has no rules.
pub fn render_within(
    pol: &PolSpec,
    containers: &BTreeMap<String, ContainerSpec>,
    space: &str,
    limits: &NetpolLimits,
) -> Netpol {
    let mut writer = NetpolBuilder {
        containers,
        space,
        limits,
        pairs: 0,
        remotes: BTreeMap::new(),
        objects: Objects::default(),
        warnings: Vec::new(),
    };
    writer.group(pol);
    if writer.pairs > limits.pairs {
        let (count, most) = (writer.pairs, limits.pairs);
        (writer.objects, writer.warnings) = (Objects::default(), Vec::new());
        let closed = pol.hostprot_subj.iter();
        let closed = closed.map(|one| Subj { name: one.name.clone(), ..Subj::default() });
        writer.group(&PolSpec { hostprot_subj: closed.collect(), ..pol.clone() });
        writer.warnings.push(format!(
            "all rules of {} are left out: they have {count} pairs of a rule and a network, and opflex-agent would create flows for each; at most {most} are allowed",
            pol.name
        ));
    }
    let (text, warnings) = (writer.objects.into_array(), writer.warnings);
    Netpol { file: format!("{}.netpol", pol.name), text, warnings }
}

/// The text of an array of objects. Their text is a third of the objects in memory.
#[derive(Default)]
struct Objects(String);

impl Objects {
    /// Where the next object begins.
    fn end(&self) -> usize {
        self.0.len()
    }

    fn push(&mut self, object: &Mo) {
        self.0 += &Objects::entry(object);
    }

    /// Inserts an object before those that were added after `at`.
    fn insert(&mut self, at: usize, object: &Mo) {
        self.0.insert_str(at, &Objects::entry(object));
    }

    fn entry(object: &Mo) -> String {
        let text = serde_json::to_string_pretty(object).unwrap_or_default();
        format!("\n{text},").replace('\n', "\n  ")
    }

    /// The whole array.
    fn into_array(mut self) -> String {
        self.0.pop();
        self.0.insert(0, '[');
        self.0 += if self.0.len() > 1 { "\n]" } else { "]" };
        self.0
    }
}

/// Why a subject or a rule cannot be an object of the file.
const UNUSABLE_NAME: &str = "its name is a duplicate or has characters that a URI cannot hold";

struct NetpolBuilder<'a> {
    containers: &'a Containers,
    space: &'a str,
    limits: &'a NetpolLimits,
    /// The number of pairs of a rule and a network so far.
    pairs: usize,
    /// The networks of each distinct description of peers.
    remotes: BTreeMap<RemoteKey, Remote>,
    objects: Objects,
    warnings: Vec<String>,
}

/// The description of a rule's peers: family, containers, filters and addresses.
type RemoteKey = (String, Vec<String>, Vec<Filter>, Vec<String>);

/// The peers of a rule.
#[derive(Clone)]
struct Remote {
    /// The networks. Empty for all peers.
    nets: Rc<[IpNet]>,
    /// Whether the rule has no peer at present. Without addresses, opflex-agent would match every
    /// peer.
    is_nobody: bool,
    /// The key of the list that rules share.
    shared: Option<String>,
}

/// The protocol and ports of a rule, as numbers.
struct Classifier {
    protocol: Option<u8>,
    to: Option<u16>,
    from: Option<u16>,
}

impl NetpolBuilder<'_> {
    fn group(&mut self, pol: &PolSpec) {
        let uri =
            format!("/PolicyUniverse/PolicySpace/{}/GbpLocalSecGroup/{}/", self.space, pol.name);
        let mut group = Mo::new("GbpLocalSecGroup", uri).with("name", pol.name.as_str());
        let at = self.objects.end();
        let mut subjects = BTreeSet::new();
        for subject in &pol.hostprot_subj {
            if !name::is_plain(&subject.name) || !subjects.insert(&subject.name) {
                let path = format!("{}|{}", pol.name, subject.name);
                self.warnings.push(format!("subject {path} is left out: {UNUSABLE_NAME}"));
                continue;
            }
            let uri = format!("{}GbpLocalSecGroupSubject/{}/", group.uri, subject.name);
            let mo = Mo::new("GbpLocalSecGroupSubject", uri).with("name", subject.name.as_str());
            let mut mo = mo.under(&mut group);
            let at = self.objects.end();
            let mut seen = BTreeSet::new();
            for rule in &subject.hostprot_rule {
                let path = format!("{}|{}|{}", pol.name, subject.name, rule.name);
                let written = if !name::is_plain(&rule.name) || !seen.insert(&rule.name) {
                    Err(UNUSABLE_NAME.into())
                } else {
                    self.rule(&path, rule, &mut mo)
                };
                if let Err(why) = written {
                    self.warnings.push(format!("rule {path} is left out: {why}"));
                }
            }
            self.objects.insert(at, &mo);
        }
        self.objects.insert(at, &group);
    }

    fn rule(&mut self, path: &str, rule: &HostprotRule, subject: &mut Mo) -> Result<(), String> {
        let direction = match rule.direction.as_str() {
            "ingress" => "in",
            "egress" => "out",
            other => return Err(format!("direction: expected ingress or egress, not {other:?}")),
        };
        if !matches!(rule.ethertype.as_str(), "ipv4" | "ipv6" | "arp") {
            let other = &rule.ethertype;
            return Err(format!("ethertype: expected ipv4, ipv6 or arp, not {other:?}"));
        }
        if !matches!(rule.conn_track.as_str(), "reflexive" | "normal") {
            let other = &rule.conn_track;
            return Err(format!("connTrack: expected reflexive or normal, not {other:?}"));
        }
        let classifier = parse_classifier(rule)?;
        let remote = self.remote(path, rule);
        self.pairs = self.pairs.saturating_add(remote.nets.len());
        if remote.is_nobody || self.pairs > self.limits.pairs {
            return Ok(());
        }

        let space = format!("/PolicyUniverse/PolicySpace/{}", self.space);
        let key = percent_encoded(path);
        let classifier_uri = format!("{space}/GbpeLocalL24Classifier/{key}/");
        let subnets_key = remote.shared.as_ref().unwrap_or(&key);
        let subnets_uri = format!("{space}/GbpLocalSubnets/{subnets_key}/");
        let action_uri = "/PolicyUniverse/PolicySpace/common/GbpLocalAllowDenyAction/allow/";

        let uri = format!("{}GbpLocalSecGroupRule/{}/", subject.uri, rule.name);
        let mut mo = Mo::new("GbpLocalSecGroupRule", uri)
            .with("name", rule.name.as_str())
            .with("direction", direction)
            .with("order", 1)
            .under(subject);
        let relation =
            |mo: &Mo, name: &str, rest: String| Mo::new(name, format!("{}{name}/{rest}", mo.uri));
        let to_classifier = "GbpLocalSecGroupRuleToClassifierRSrc";
        let to_classifier = relation(&mo, to_classifier, format!("GbpeLocalL24Classifier/{key}"))
            .with_target("GbpeLocalL24Classifier", &classifier_uri)
            .under(&mut mo);
        let to_action = "GbpLocalSecGroupRuleToActionRSrc";
        let to_action = relation(&mo, to_action, "GbpLocalAllowDenyAction/allow/".into())
            .with_target("GbpLocalAllowDenyAction", action_uri)
            .under(&mut mo);
        let to_remote = "GbpLocalSecGroupRuleToRemoteAddressRSrc";
        let to_remote = relation(&mo, to_remote, format!("GbpLocalSubnets/{subnets_key}/"))
            .with_target("GbpLocalSubnets", &subnets_uri)
            .under(&mut mo);

        let mut about = Mo::new("GbpeLocalL24Classifier", classifier_uri)
            .with("name", path)
            .with("etherT", rule.ethertype.as_str())
            .with("connectionTracking", rule.conn_track.as_str());
        let numbers = [
            ("prot", classifier.protocol.map(u16::from)),
            ("dToPort", classifier.to),
            ("dFromPort", classifier.from),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                about = about.with(name, number);
            }
        }
        for object in [mo, to_classifier, to_action, to_remote, about] {
            self.objects.push(&object);
        }
        if *subnets_key == key {
            let mut subnets = Mo::new("GbpLocalSubnets", subnets_uri).with("name", path);
            let at = self.objects.end();
            for net in remote.nets.iter() {
                let object = subnet(*net, &mut subnets);
                self.objects.push(&object);
            }
            self.objects.insert(at, &subnets);
        }
        Ok(())
    }

    /// The peers of a rule. Rules with the same description of many peers share one list.
    fn remote(&mut self, path: &str, rule: &HostprotRule) -> Remote {
        let filters = &rule.hostprot_filter_container.hostprot_filter;
        let (listed, containers) =
            (&rule.hostprot_service_remote_ips, &rule.rs_remote_ip_container);
        let key: RemoteKey =
            (rule.ethertype.clone(), containers.clone(), filters.clone(), listed.clone());
        if let Some(remote) = self.remotes.get(&key) {
            return remote.clone();
        }
        let is_anyone = listed.is_empty() && containers.is_empty() && filters.is_empty();
        let mut nets = Vec::new();
        let mut add = |text: &str, warnings: &mut Vec<String>| match parse_net(text) {
            Some(net) if net.addr().is_ipv4() == (rule.ethertype == "ipv4") => nets.push(net),
            Some(_) => (),
            None => {
                warnings.push(format!("rule {path}: {text:?} is not an address and is left out"))
            }
        };
        if listed.is_empty() {
            let known = containers.iter().filter_map(|name| self.containers.get(name));
            known
                .flat_map(|container| container.hostprot_remote_ip.matching(filters))
                .for_each(|text| add(text, &mut self.warnings));
        } else {
            listed.iter().for_each(|text| add(text, &mut self.warnings));
        }
        let nets: Rc<[IpNet]> = net::distinct(nets).into();
        let is_nobody = !is_anyone && nets.is_empty();
        let shared = (nets.len() > self.limits.own_networks).then(|| percent_encoded(path));
        let remote = Remote { nets, is_nobody, shared };
        self.remotes.insert(key, remote.clone());
        remote
    }
}

fn subnet(net: IpNet, subnets: &mut Mo) -> Mo {
    let address = net.addr().to_string();
    // Networks of one rule never overlap, so no two begin at the same address.
    Mo::new("GbpLocalSubnet", format!("{}GbpLocalSubnet/{address}/", subnets.uri))
        .with("name", address.as_str())
        .with("virtualRouterIp", address.as_str())
        .with("prefixLen", net.prefix_len())
        .with("address", address.as_str())
        .under(subnets)
}

const IPPROTO_ICMP: u8 = 1;
const IPPROTO_ICMPV6: u8 = 58;

fn parse_classifier(rule: &HostprotRule) -> Result<Classifier, String> {
    let protocol = match rule.protocol.to_ascii_lowercase().as_str() {
        "" | "unspecified" => None,
        "icmp" => Some(IPPROTO_ICMP),
        "icmpv6" => Some(IPPROTO_ICMPV6),
        "tcp" => Some(Protocol::Tcp.number()),
        "udp" => Some(Protocol::Udp.number()),
        "sctp" => Some(Protocol::Sctp.number()),
        other => return Err(format!("protocol: {other:?} is unknown")),
    };
    let port = |field: &str, text: &str| match text {
        "" | "unspecified" => Ok(None),
        number => match number.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(format!("{field}: expected a port, not {number:?}")),
        },
    };
    let to = port("toPort", &rule.to_port)?;
    Ok(Classifier { protocol, to, from: port("fromPort", &rule.from_port)? })
}

fn parse_net(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse::<IpNet>().ok().map(|net| net.trunc()).or_else(address)
}
