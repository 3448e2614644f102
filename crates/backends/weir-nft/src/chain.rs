//! The chains that carry out the rules of pods.

use std::{collections::BTreeMap, sync::Arc};

use weir_model::{
    Block, Chain as Rules, Direction, IpFamily, Name, Peers, Ports, Program, Section,
};

use crate::{
    ElementData, ElementKey, Field, Match, NftChain, NftRule, NftSet, Planner, SetKind, Statement,
    intervals::interval_key,
    merge,
    names::{comment, digest},
    objects::Objects,
    tier::TierCompiler,
};

/// Adds the chain that carries out rules for one family. Allowed packets return.
pub(crate) fn add(
    planner: &mut Planner,
    program: &Program,
    rules: &Rules,
    direction: Direction,
    family: IpFamily,
) -> Name {
    let admin = add_admin(planner, program, &rules.admin, direction, family);
    let rest = match &rules.isolation {
        Some(sections) => merge::isolation(planner, program, &sections.to_vec(), direction, family),
        None if has_rules(&rules.baseline) => {
            TierCompiler::baseline(&rules.baseline, direction, family).compile(planner, program)
        }
        None => Vec::new(),
    };
    match admin {
        Some(admin) if rest.is_empty() => admin,
        admin => {
            let first = admin.map(|admin| NftRule::new([], Statement::Jump(admin)));
            let all = first.into_iter().chain(rest).collect();
            add_by_content(&mut planner.objects, direction, family, "", all)
        }
    }
}

/// Adds the chain of the admin tier, which all pods with the same policies share. Passed packets
/// return, allowed ones do not. `None` if the tier has no rules.
fn add_admin(
    planner: &mut Planner,
    program: &Program,
    sections: &[Arc<Section>],
    direction: Direction,
    family: IpFamily,
) -> Option<Name> {
    if !has_rules(sections) {
        return None;
    }
    let sections_at = sections.iter().map(|section| Arc::as_ptr(section).addr()).collect();
    let known = (sections_at, direction, family);
    if let Some(chain) = planner.admin_chains.get(&known) {
        return Some(chain.clone());
    }
    let compiler = TierCompiler::admin(sections, direction, family);
    let rules = compiler.compile(planner, program);
    let chain = add_by_content(&mut planner.objects, direction, family, "-admin", rules);
    planner.admin_chains.insert(known, chain.clone());
    Some(chain)
}

fn has_rules(sections: &[Arc<Section>]) -> bool {
    sections.iter().any(|section| !section.rules.is_empty())
}

/// Adds a chain under a name with a digest of its rules.
pub(crate) fn add_by_content(
    objects: &mut Objects,
    direction: Direction,
    family: IpFamily,
    suffix: &str,
    rules: Vec<NftRule>,
) -> Name {
    let text: Vec<String> = rules.iter().map(NftRule::to_string).collect();
    let name = format!("{direction}{}-{}{suffix}", family.digit(), digest(&text.join("\n")));
    let name = Name::from(name);
    objects.add_chain(&name, NftChain { hook: None, rules });
    name
}

/// The matches for peers. `None` if none of them has this family.
pub(crate) fn match_peers(
    planner: &mut Planner,
    program: &Program,
    peers: &Peers,
    direction: Direction,
    family: IpFamily,
) -> Option<Vec<Match>> {
    let address = Field::peer(direction, family);
    Some(match peers {
        Peers::Any => Vec::new(),
        Peers::Set(set) if let Some(numbered) = &mut planner.objects.numbered => {
            vec![numbered.match_peers(vec![set.clone()])]
        }
        Peers::Set(set) => {
            let name: Name =
                format!("pods{}-{}", family.digit(), digest(&format!("{set:?}"))).into();
            let meaning = comment(&set.to_string());
            planner.add_copy(program, &name, set, SetKind::Addresses(family), meaning);
            vec![Match::In(vec![address], name)]
        }
        Peers::PortSet(set) => {
            let name: Name =
                format!("ports{}-{}", family.digit(), digest(&format!("{set:?}"))).into();
            let meaning = comment(&set.to_string());
            planner.add_copy(program, &name, set, SetKind::Ports(family), meaning);
            vec![Match::In(vec![address, Field::Protocol, Field::DestinationPort], name)]
        }
        Peers::Block(block) => vec![Match::In(vec![address], add_block(planner, block, family)?)],
    })
}

/// Adds the set of the addresses of a block. `None` if it has none of this family.
fn add_block(planner: &mut Planner, block: &Block, family: IpFamily) -> Option<Name> {
    let intervals = block.intervals().into_iter();
    let elements: BTreeMap<_, _> =
        intervals.map(|interval| (interval_key(interval, family), None)).collect();
    if elements.is_empty() || IpFamily::from(block.net.addr()) != family {
        return None;
    }
    let name = format!("blocks{}-{}", family.digit(), digest(&format!("{block:?}"))).into();
    let set =
        NftSet { kind: SetKind::Blocks(family), comment: comment(&block.to_string()), elements };
    planner.objects.add_set(&name, set);
    Some(name)
}

/// The matches for ports.
pub(crate) fn match_ports(objects: &mut Objects, ports: &Ports) -> Vec<Match> {
    let Ports::Of(ranges) = ports else { return Vec::new() };
    if let [one] = &ranges[..] {
        return vec![Match::To(*one)];
    }
    if let Some(numbered) = &mut objects.numbered {
        return vec![numbered.match_ports(ranges)];
    }
    let single = ranges.iter().all(|range| range.first == range.last);
    let kind = if single { SetKind::Services } else { SetKind::ServiceRanges };
    let name: Name = format!("services-{}", digest(&format!("{ranges:?}"))).into();
    let elements = ranges.iter().map(|range| (ElementKey::Service(*range), None)).collect();
    let set = NftSet { kind, comment: comment(&ports.to_string()), elements };
    objects.add_set(&name, set);
    vec![Match::In(vec![Field::Protocol, Field::DestinationPort], name)]
}

/// Adds a map from ports to chains. Returns the rule that looks the port of a packet up in it.
pub(crate) fn look_up_ports(
    objects: &mut Objects,
    elements: BTreeMap<ElementKey, Option<Arc<ElementData>>>,
) -> NftRule {
    let single =
        |key: &ElementKey| matches!(key, ElementKey::Service(range) if range.first == range.last);
    let single = elements.keys().all(single);
    let kind = if single { SetKind::ServiceChains } else { SetKind::ServiceRangeChains };
    let chains = elements.iter().map(|(key, data)| (key, data.as_ref().map(|data| &data.verdict)));
    let content = digest(&format!("{:?}", chains.collect::<Vec<_>>()));
    let name: Name = format!("classes-{content}").into();
    let comment = comment("ports, each with the chain of its rules");
    objects.add_set(&name, NftSet { kind, comment, elements });
    NftRule::new([], Statement::Map(vec![Field::Protocol, Field::DestinationPort], name))
}
