//! A compiled program, as text and as data.

use std::{
    collections::{BTreeSet, HashMap},
    io::{self, Write},
    sync::Arc,
};

use serde::Serialize;
use weir_model::{Chain, Peers, Program, RuleSet, Section, SectionList};

use super::{
    count,
    plain::Plain,
    style::{FAINT, Painted, STRONG},
    table::{self, Cell},
};

/// A program with its shared rule sets numbered.
#[derive(Serialize)]
pub(crate) struct Listing {
    endpoints: Vec<EndpointListing>,
    rules: Vec<RuleSetListing>,
    sets: Vec<SetListing>,
}

#[derive(Serialize)]
struct EndpointListing {
    pod: String,
    addresses: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    rules: usize,
}

#[derive(Serialize)]
struct RuleSetListing {
    number: usize,
    endpoints: usize,
    ingress: ChainListing,
    egress: ChainListing,
}

#[derive(Serialize)]
struct ChainListing {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    admin: Vec<SectionListing>,
    isolation: Option<Vec<SectionListing>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    baseline: Vec<SectionListing>,
}

#[derive(Serialize)]
struct SectionListing {
    policy: String,
    #[serde(rename = "place", skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    rules: Vec<RuleListing>,
}

#[derive(Serialize)]
struct RuleListing {
    action: String,
    peers: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    ports: String,
    origin: String,
    #[serde(skip_serializing_if = "is_zero")]
    line: u32,
}

#[derive(Serialize)]
struct SetListing {
    set: String,
    members: Vec<String>,
}

fn is_zero(line: &u32) -> bool {
    *line == 0
}

impl Listing {
    /// The whole program, or its part for the pods of a namespace.
    pub(crate) fn new(program: &Program, namespace: Option<&str>) -> Self {
        let mut numbers: HashMap<&RuleSet, usize> = HashMap::new();
        let mut rules: Vec<(&Arc<RuleSet>, usize)> = Vec::new();
        let mut endpoints = Vec::new();
        let shown = program.endpoints.iter();
        for (id, endpoint) in shown.filter(|(id, _)| namespace.is_none_or(|n| *id.namespace == *n))
        {
            let number = *numbers.entry(&endpoint.rules).or_insert_with(|| {
                rules.push((&endpoint.rules, 0));
                rules.len()
            });
            rules[number - 1].1 += 1;
            endpoints.push(EndpointListing {
                pod: id.to_string(),
                addresses: endpoint.addresses.iter().map(ToString::to_string).collect(),
                node: endpoint.node.as_ref().map(ToString::to_string),
                rules: number,
            });
        }
        let named: BTreeSet<_> = rules
            .iter()
            .flat_map(|(set, _)| set.ingress.rules().chain(set.egress.rules()))
            .filter_map(|rule| match &rule.peers {
                Peers::Set(set) | Peers::PortSet(set) => Some(set),
                Peers::Any | Peers::Block(_) => None,
            })
            .collect();
        let sets = program.sets.iter().filter(|(id, _)| namespace.is_none() || named.contains(id));
        Listing {
            endpoints,
            rules: (1..)
                .zip(rules)
                .map(|(number, (set, endpoints))| RuleSetListing {
                    number,
                    endpoints,
                    ingress: chain(&set.ingress),
                    egress: chain(&set.egress),
                })
                .collect(),
            sets: sets
                .map(|(id, members)| SetListing {
                    set: id.to_string(),
                    members: members.iter().map(ToString::to_string).collect(),
                })
                .collect(),
        }
    }
}

fn chain(chain: &Chain) -> ChainListing {
    let list = |sections: &[Arc<Section>]| sections.iter().map(|s| section(s)).collect();
    let isolation = chain.isolation.as_ref().map(SectionList::to_vec);
    ChainListing {
        admin: list(&chain.admin),
        isolation: isolation.as_deref().map(list),
        baseline: list(&chain.baseline),
    }
}

fn section(section: &Section) -> SectionListing {
    SectionListing {
        policy: section.policy.to_string(),
        location: section.location.as_ref().map(ToString::to_string),
        rules: section
            .rules
            .iter()
            .map(|rule| RuleListing {
                action: rule.action.to_string(),
                peers: rule.peers.to_string(),
                ports: weir_view::text::ports(rule),
                origin: rule.origin.to_string(),
                line: rule.origin.line,
            })
            .collect(),
    }
}

/// Writes the program as text.
pub(crate) fn write(out: &mut dyn Write, listing: &Listing) -> io::Result<()> {
    writeln!(out, "{}", Painted(STRONG, "endpoints"))?;
    let rows: Vec<Vec<Cell>> = listing
        .endpoints
        .iter()
        .map(|endpoint| {
            vec![
                endpoint.pod.as_str().into(),
                endpoint.addresses.join(", ").into(),
                endpoint.node.as_ref().map(|n| format!("node {n}")).unwrap_or_default().into(),
                format!("rules {}", endpoint.rules).into(),
            ]
        })
        .collect();
    table::write(out, 2, &rows)?;
    for rules in &listing.rules {
        let title = format!("rules {}", rules.number);
        let shared = count(rules.endpoints, "endpoint");
        writeln!(out, "\n{} ({shared})", Painted(STRONG, title))?;
        direction(out, "ingress", "from", &rules.ingress)?;
        direction(out, "egress", "to", &rules.egress)?;
    }
    if !listing.sets.is_empty() {
        writeln!(out, "\n{}", Painted(STRONG, "sets"))?;
    }
    for set in &listing.sets {
        writeln!(
            out,
            "  {}  {}",
            Plain(&set.set),
            Painted(FAINT, count(set.members.len(), "member"))
        )?;
        for member in &set.members {
            writeln!(out, "    {member}")?;
        }
    }
    Ok(())
}

fn direction(out: &mut dyn Write, name: &str, word: &str, chain: &ChainListing) -> io::Result<()> {
    if chain.admin.is_empty() && chain.isolation.is_none() && chain.baseline.is_empty() {
        return writeln!(out, "  {name}: open");
    }
    writeln!(out, "  {name}:")?;
    sections(out, "admin", word, &chain.admin)?;
    match &chain.isolation {
        Some(policies) => {
            sections(out, "isolated by", word, policies)?;
            writeln!(out, "    otherwise deny")
        }
        None => {
            sections(out, "baseline", word, &chain.baseline)?;
            writeln!(out, "    otherwise allow")
        }
    }
}

fn sections(
    out: &mut dyn Write,
    tier: &str,
    word: &str,
    list: &[SectionListing],
) -> io::Result<()> {
    for section in list {
        let location = section.location.as_deref().unwrap_or_default();
        writeln!(out, "    {tier} {}  {}", Plain(&section.policy), Painted(FAINT, location))?;
        let rows: Vec<Vec<Cell>> = section
            .rules
            .iter()
            .map(|rule| {
                let line =
                    if rule.line == 0 { String::new() } else { format!(" line {}", rule.line) };
                vec![
                    rule.action.as_str().into(),
                    format!("{word} {}", rule.peers).into(),
                    rule.ports.as_str().into(),
                    Cell::new(format!("{}{line}", rule.origin), FAINT),
                ]
            })
            .collect();
        table::write(out, 6, &rows)?;
    }
    Ok(())
}
