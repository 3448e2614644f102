//! The file of a HostprotPol: the tree of managed objects that opflex-agent makes flows from.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;

use crate::{
    mo::{Mo, escaped},
    name, net,
    object::{ContainerSpec, PolSpec, Rule},
};

/// A file, and what could not be written into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netpol {
    /// Its name.
    pub file: String,
    /// What it says.
    pub text: String,
    /// Rules and addresses that make no sense and are left out, which allows less.
    pub complaints: Vec<String>,
}

/// The containers by name.
pub(crate) type Containers = BTreeMap<String, ContainerSpec>;

/// The file for an object, in a policy space. A container that is not there has no addresses.
pub fn render(pol: &PolSpec, containers: &BTreeMap<String, ContainerSpec>, space: &str) -> Netpol {
    let mut writer = Writer { containers, space, objects: Vec::new(), complaints: Vec::new() };
    writer.group(pol);
    let text = serde_json::to_string_pretty(&writer.objects).unwrap_or_default();
    let complaints = writer.complaints;
    Netpol { file: format!("{}.netpol", pol.name), text, complaints }
}

struct Writer<'a> {
    containers: &'a Containers,
    space: &'a str,
    objects: Vec<Mo>,
    complaints: Vec<String>,
}

/// Who is at the other end of a rule.
enum Remote {
    Anyone,
    /// These; never nobody.
    These(Vec<IpNet>),
}

/// What a rule is about, in the words of managed objects.
struct Classifier {
    protocol: Option<u8>,
    to: Option<u16>,
    from: Option<u16>,
}

impl Writer<'_> {
    fn group(&mut self, pol: &PolSpec) {
        let uri =
            format!("/PolicyUniverse/PolicySpace/{}/GbpLocalSecGroup/{}/", self.space, pol.name);
        let mut group = Mo::new("GbpLocalSecGroup", uri).with("name", pol.name.as_str());
        let at = self.objects.len();
        self.objects.push(Mo::default());
        for subject in &pol.hostprot_subj {
            let uri = format!("{}GbpLocalSecGroupSubject/{}/", group.uri, subject.name);
            let mo = Mo::new("GbpLocalSecGroupSubject", uri).with("name", subject.name.as_str());
            let mut mo = mo.under(&mut group);
            let at = self.objects.len();
            self.objects.push(Mo::default());
            let mut seen = BTreeSet::new();
            for rule in &subject.hostprot_rule {
                let place = format!("{}|{}|{}", pol.name, subject.name, rule.name);
                let written = if !name::is_plain(&rule.name) || !seen.insert(&rule.name) {
                    Err("its name is used twice, or cannot be part of an address".into())
                } else {
                    self.rule(&place, rule, &mut mo)
                };
                if let Err(why) = written {
                    self.complaints.push(format!("rule {place} is left out: {why}"));
                }
            }
            self.objects[at] = mo;
        }
        self.objects[at] = group;
    }

    fn rule(&mut self, place: &str, rule: &Rule, subject: &mut Mo) -> Result<(), String> {
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
        let classifier = classifier(rule)?;
        // Nobody is there: without addresses, opflex-agent would take it for everybody.
        let Some(remote) = self.remote(place, rule) else { return Ok(()) };

        let space = format!("/PolicyUniverse/PolicySpace/{}", self.space);
        let key = escaped(place);
        let classifier_uri = format!("{space}/GbpeLocalL24Classifier/{key}/");
        let subnets_uri = format!("{space}/GbpLocalSubnets/{key}/");
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
        let to_remote = relation(&mo, to_remote, format!("GbpLocalSubnets/{key}/"))
            .with_target("GbpLocalSubnets", &subnets_uri)
            .under(&mut mo);

        let mut about = Mo::new("GbpeLocalL24Classifier", classifier_uri)
            .with("name", place)
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
        let mut subnets = Mo::new("GbpLocalSubnets", subnets_uri).with("name", place);
        let nets = match remote {
            Remote::Anyone => Vec::new(),
            Remote::These(nets) => nets,
        };
        let each: Vec<Mo> = nets.into_iter().map(|net| subnet(net, &mut subnets)).collect();
        self.objects.extend([mo, to_classifier, to_action, to_remote, about, subnets]);
        self.objects.extend(each);
        Ok(())
    }

    /// Who is at the other end of a rule; `None` if nobody is.
    fn remote(&mut self, place: &str, rule: &Rule) -> Option<Remote> {
        let filters = &rule.hostprot_filter_container.hostprot_filter;
        let (listed, containers) =
            (&rule.hostprot_service_remote_ips, &rule.rs_remote_ip_container);
        if listed.is_empty() && containers.is_empty() && filters.is_empty() {
            return Some(Remote::Anyone);
        }
        let mut nets = Vec::new();
        let mut add = |text: &str, complaints: &mut Vec<String>| match network(text) {
            Some(net) if net.addr().is_ipv4() == (rule.ethertype == "ipv4") => nets.push(net),
            Some(_) => (),
            None => {
                complaints.push(format!("rule {place}: {text:?} is no address and is left out"))
            }
        };
        if listed.is_empty() {
            let known = containers.iter().filter_map(|name| self.containers.get(name));
            known
                .flat_map(|container| container.hostprot_remote_ip.passing(filters))
                .for_each(|text| add(text, &mut self.complaints));
        } else {
            listed.iter().for_each(|text| add(text, &mut self.complaints));
        }
        let nets = net::distinct(nets);
        (!nets.is_empty()).then_some(Remote::These(nets))
    }
}

fn subnet(net: IpNet, subnets: &mut Mo) -> Mo {
    let address = net.addr().to_string();
    // Networks of one rule never lie inside each other, so no two begin at the same address.
    Mo::new("GbpLocalSubnet", format!("{}GbpLocalSubnet/{address}/", subnets.uri))
        .with("name", address.as_str())
        .with("virtualRouterIp", address.as_str())
        .with("prefixLen", net.prefix_len())
        .with("address", address.as_str())
        .under(subnets)
}

fn classifier(rule: &Rule) -> Result<Classifier, String> {
    let protocol = match rule.protocol.to_ascii_lowercase().as_str() {
        "" | "unspecified" => None,
        "icmp" => Some(1),
        "tcp" => Some(6),
        "udp" => Some(17),
        "icmpv6" => Some(58),
        "sctp" => Some(132),
        other => return Err(format!("protocol: {other:?} is not known")),
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

fn network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse::<IpNet>().ok().map(|net| net.trunc()).or_else(address)
}
