use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_model::{
    Action, Chain as Rules, Direction, Peers, PodId, PortRange, Ports, Program, Protocol, Rule,
    Section, SetId,
};

use crate::{
    Chain, Element, Family, Hook, Kind, Ruleset, Set,
    intervals::intervals,
    merge,
    name::{comment, digest},
};

/// What passes unasked: replies and what belongs to them, and what IPv6 needs to find its neighbours.
const ALWAYS: [&str; 2] = [
    "ct state established,related accept",
    "icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } accept",
];

/// The ruleset that enforces a program.
pub fn render(program: &Program) -> Ruleset {
    let mut render = Render { program, ruleset: Ruleset::default() };
    let mut forward = Chain { hook: Some(Hook::Forward), rules: ALWAYS.map(str::to_owned).into() };
    for direction in [Direction::Egress, Direction::Ingress] {
        for family in Family::BOTH {
            let name = render.dispatch(direction, family);
            forward.rules.push(format!("{} {} vmap @{name}", family.header(), here(direction)));
        }
    }
    render.hairpins(&mut forward);
    render.ruleset.chains.insert("forward".to_owned(), forward);
    render.ruleset
}

/// The ruleset as it grows.
pub(crate) struct Render<'a> {
    pub(crate) program: &'a Program,
    pub(crate) ruleset: Ruleset,
}

/// The field that holds the address of the pod whose rules are asked.
fn here(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "daddr",
        Direction::Egress => "saddr",
    }
}

/// The field that holds the address of the other end.
pub(crate) fn there(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "saddr",
        Direction::Egress => "daddr",
    }
}

impl Render<'_> {
    /// The map from the addresses of pods to the chains that judge them.
    fn dispatch(&mut self, direction: Direction, family: Family) -> String {
        let mut elements = BTreeSet::new();
        for (id, endpoint) in &self.program.endpoints {
            let rules = endpoint.rules.chain(direction);
            let addresses =
                endpoint.addresses.iter().filter(|address| Family::of(**address) == family);
            for &address in addresses.filter(|_| !rules.is_open()) {
                let chain = self.chain(rules, direction, family);
                elements.insert(Element { address, rest: jump(id, &chain) });
            }
        }
        let name = format!(
            "{}{}",
            if direction == Direction::Ingress { "in" } else { "out" },
            family.digit()
        );
        let comment = format!("pods that policies speak for, {direction}");
        self.ruleset
            .sets
            .insert(name.clone(), Set { kind: Kind::Verdicts, family, comment, elements });
        name
    }

    /// A pod that reaches itself through a service is not judged: before anything else its address is looked up with itself.
    fn hairpins(&mut self, forward: &mut Chain) {
        let judged = self.program.endpoints.values().filter(|endpoint| !endpoint.rules.is_open());
        let addresses: BTreeSet<_> =
            judged.flat_map(|endpoint| endpoint.addresses.iter().copied()).collect();
        for family in Family::BOTH.into_iter().rev() {
            let own = addresses.iter().filter(|address| Family::of(**address) == family);
            let elements: BTreeSet<Element> = own
                .map(|address| Element { address: *address, rest: format!(" . {address}") })
                .collect();
            if elements.is_empty() {
                continue;
            }
            let name = format!("self{}", family.digit());
            let header = family.header();
            forward
                .rules
                .insert(ALWAYS.len(), format!("{header} saddr . {header} daddr @{name} accept"));
            let comment = "pods that reach themselves".to_owned();
            self.ruleset.sets.insert(name, Set { kind: Kind::Pairs, family, comment, elements });
        }
    }

    /// The chain that decides as these rules do, for packets of one family. A packet that passes returns.
    fn chain(&mut self, rules: &Rules, direction: Direction, family: Family) -> String {
        let mut last = Vec::new();
        match &rules.isolation {
            Some(sections) => last.extend(merge::isolation(self, sections, direction, family)),
            None => {
                for (section, rule) in each(&rules.baseline) {
                    let verdict =
                        if rule.action == Action::Deny { "counter drop" } else { "return" };
                    last.extend(self.rule(section, rule, family, verdict));
                }
            }
        }
        let passes = each(&rules.admin).any(|(_, rule)| rule.action == Action::Pass);
        let rest = passes.then(|| self.add_chain(direction, family, "-rest", last.clone()));
        let mut all = Vec::new();
        for (section, rule) in each(&rules.admin) {
            let verdict = match (rule.action, &rest) {
                (Action::Deny, _) => "counter drop".to_owned(),
                (Action::Pass, Some(rest)) => format!("goto {rest}"),
                (Action::Allow | Action::Pass, _) => "return".to_owned(),
            };
            all.extend(self.rule(section, rule, family, &verdict));
        }
        match rest {
            Some(rest) => all.push(format!("goto {rest}")),
            None => all.extend(last),
        }
        self.add_chain(direction, family, "", all)
    }

    /// Enters a chain under a name made of what it says.
    pub(crate) fn add_chain(
        &mut self,
        direction: Direction,
        family: Family,
        suffix: &str,
        rules: Vec<String>,
    ) -> String {
        let name = format!("{direction}{}-{}{suffix}", family.digit(), digest(&rules.join("\n")));
        self.ruleset.chains.insert(name.clone(), Chain { hook: None, rules });
        name
    }

    /// One rule, as it is. Nothing if it cannot match in this family.
    fn rule(
        &mut self,
        section: &Section,
        rule: &Rule,
        family: Family,
        verdict: &str,
    ) -> Option<String> {
        let peers = self.peers(&rule.peers, rule.origin.direction, family)?;
        let origin = comment(&format!("{} {}", section.policy, rule.origin));
        Some(line([&peers, &ports(&rule.ports), verdict, &format!("comment \"{origin}\"")]))
    }

    /// The match for some peers; `None` if nobody of this family is among them.
    pub(crate) fn peers(
        &mut self,
        peers: &Peers,
        direction: Direction,
        family: Family,
    ) -> Option<String> {
        let field = format!("{} {}", family.header(), there(direction));
        Some(match peers {
            Peers::Any => String::new(),
            Peers::Set(set) => format!("{field} @{}", self.set(set, family, Kind::Addresses)),
            Peers::PortSet(set) => {
                format!("{field} . meta l4proto . th dport @{}", self.set(set, family, Kind::Ports))
            }
            Peers::Block(block) => match &intervals([block], family)[..] {
                [] => return None,
                [one] => format!("{field} {one}"),
                several => format!("{field} {{ {} }}", several.join(", ")),
            },
        })
    }

    /// The kernel's copy of a set, in one family.
    fn set(&mut self, id: &SetId, family: Family, kind: Kind) -> String {
        let word = if kind == Kind::Ports { "ports" } else { "pods" };
        let name = format!("{word}{}-{}", family.digit(), digest(&format!("{id:?}")));
        if !self.ruleset.sets.contains_key(&name) {
            let members = self.program.sets.get(id).into_iter().flatten();
            let ours = members.filter(|member| Family::of(member.address) == family);
            let elements = ours.map(|member| Element {
                address: member.address,
                rest: member.port.map_or(String::new(), |(protocol, port)| {
                    format!(" . {} . {port}", word_of(protocol))
                }),
            });
            let set = Set {
                kind,
                family,
                comment: comment(&id.to_string()),
                elements: elements.collect(),
            };
            self.ruleset.sets.insert(name.clone(), set);
        }
        name
    }
}

fn jump(id: &PodId, chain: &str) -> String {
    format!(" comment \"{}\" : jump {chain}", comment(&id.to_string()))
}

fn each(sections: &[Arc<Section>]) -> impl Iterator<Item = (&Section, &Rule)> {
    sections.iter().flat_map(|section| section.rules.iter().map(move |rule| (&**section, rule)))
}

/// Words of a rule, without those that are empty.
pub(crate) fn line<const N: usize>(words: [&str; N]) -> String {
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn word_of(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// The match for some ports.
pub(crate) fn ports(ports: &Ports) -> String {
    let Ports::Of(ranges) = ports else { return String::new() };
    let range = |range: &PortRange| match (range.first, range.last) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    let mut by_protocol: BTreeMap<Protocol, Vec<&PortRange>> = BTreeMap::new();
    ranges.iter().for_each(|range| by_protocol.entry(range.protocol).or_default().push(range));
    match &by_protocol.iter().collect::<Vec<_>>()[..] {
        [(protocol, ranges)] => match &ranges[..] {
            [all] if **all == PortRange::all(**protocol) => {
                format!("meta l4proto {}", word_of(**protocol))
            }
            [one] => format!("{} dport {}", word_of(**protocol), range(one)),
            several => {
                let list: Vec<String> = several.iter().map(|one| range(one)).collect();
                format!("{} dport {{ {} }}", word_of(**protocol), list.join(", "))
            }
        },
        _ => {
            let list =
                ranges.iter().map(|one| format!("{} . {}", word_of(one.protocol), range(one)));
            format!("meta l4proto . th dport {{ {} }}", list.collect::<Vec<_>>().join(", "))
        }
    }
}
