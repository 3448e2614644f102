use std::collections::BTreeSet;

use weir_model::{
    Action, Block, Direction, DomainPattern, Name, Peer, PolicyRule, PortMatch, PortSpec, Severity,
    Who,
};

use super::{Dialect, pods_or_namespaces};
use crate::{
    check,
    document::{Tree, TreeValue, quote},
    lower::{Fields, LowerContext, cidr, one_of, port, selector},
};

/// The most networks or domain names in a peer (C26).
const MAX_NETWORKS: usize = 25;

/// The rules of a direction; `None` if there are none: then the policy does not affect it (C2,
/// C24).
pub(super) fn rules(
    ctx: &mut LowerContext,
    list: &Tree,
    direction: Direction,
    dialect: &Dialect,
) -> Option<Vec<PolicyRule>> {
    at_most(ctx, list, dialect.limit, "rules");
    let Some(items) = ctx.list(list) else {
        return Some(vec![deny_all(0, list.line)]);
    };
    let mut rules = Vec::new();
    for (index, item) in items.iter().enumerate() {
        rules.extend(ctx.at(index, |ctx| rule(ctx, index, item, direction, dialect)));
    }
    (!items.is_empty()).then_some(rules)
}

pub(super) fn deny_all(index: usize, line: u32) -> PolicyRule {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    PolicyRule { index, name: None, line, action: Action::Deny, peers: None, ports: None }
}

/// A rule. An invalid rule fails closed (C16, C17): an allow rule matches nothing, any other denies
/// everything.
fn rule(
    ctx: &mut LowerContext,
    index: usize,
    tree: &Tree,
    direction: Direction,
    dialect: &Dialect,
) -> Option<PolicyRule> {
    let list = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let fields = ctx.fields(tree, &["name", "action", list, dialect.ports]);
    let action = ctx.at("action", |ctx| match fields.get("action") {
        Some(_) if fields.is_repeated("action") => None,
        Some(action) => ctx.word(action, dialect.actions),
        None => {
            let words: Vec<&str> = dialect.actions.iter().map(|(word, _)| *word).collect();
            let message = format!("a rule needs an action: {}", one_of(&words));
            ctx.invalid(fields.line, message, "add `action:`");
            None
        }
    });
    let name = fields.get("name").and_then(|name| ctx.at("name", |ctx| rule_name(ctx, name)));
    let peers = ctx.at(list, |ctx| match fields.get(list).filter(|l| !is_empty_list(l)) {
        Some(peers) => {
            at_most(ctx, peers, dialect.limit, "peers");
            let peers = ctx.each(peers, |ctx, index, item| {
                ctx.tolerating_unknown(|ctx| peer(ctx, index, item, direction, dialect, action))
            });
            peers.map(|peers| peers.into_iter().flatten().collect::<Vec<Peer>>())
        }
        None => {
            let message = format!("a rule needs at least one peer in `{list}`");
            ctx.invalid(fields.line, message, "to select all pods, add `- namespaces: {}`");
            None
        }
    });
    let ports = match fields.get(dialect.ports) {
        None => Some(None),
        Some(tree) if dialect.no_ports && is_empty_list(tree) => Some(None),
        Some(tree) => ctx.at(dialect.ports, |ctx| {
            at_most(ctx, tree, dialect.limit, dialect.ports);
            if is_empty_list(tree) {
                let message = format!("`{}` must not be empty", dialect.ports);
                ctx.invalid(tree.line, message, "remove it to match every port");
                return None;
            }
            ctx.each(tree, |ctx, _, item| (dialect.port)(ctx, item)).map(Some)
        }),
    };
    if let (Some(peers), Some(Some(ports))) = (&peers, &ports) {
        names_need_pods(ctx, peers, ports, dialect, fields.line);
    }
    match (action, peers, ports) {
        (Some(action), Some(peers), Some(ports)) if fields.clean => Some(PolicyRule {
            index: u32::try_from(index).ok()?,
            name,
            line: tree.line,
            action,
            peers: Some(peers),
            ports,
        }),
        (Some(Action::Allow), _, _) => None,
        _ => Some(PolicyRule { name, ..deny_all(index, tree.line) }),
    }
}

fn is_empty_list(tree: &Tree) -> bool {
    matches!(&tree.value, TreeValue::Seq(items) if items.is_empty())
}

fn rule_name(ctx: &mut LowerContext, tree: &Tree) -> Option<Name> {
    let text = ctx.text(tree)?;
    if text.chars().count() > 100 {
        let message = "the name of a rule has at most 100 characters";
        ctx.invalid(tree.line, message, "shorten the name");
        return None;
    }
    Some(ctx.name(text))
}

/// C26.
fn at_most(ctx: &mut LowerContext, list: &Tree, limit: usize, what: &str) {
    let count = list.items().len();
    if count > limit {
        let message = format!("there are {count} {what}; at most {limit} are allowed");
        ctx.invalid(list.line, message, "split them over several rules or policies");
    }
}

/// C15: only pods have named ports.
fn names_need_pods(
    ctx: &mut LowerContext,
    peers: &[Peer],
    ports: &[PortSpec],
    dialect: &Dialect,
    line: u32,
) {
    let named = ports.iter().find(|port| matches!(port.ports, PortMatch::Named { .. }));
    if let Some(port) = named
        && peers.iter().any(|peer| !matches!(peer.who, Who::Pods { .. }))
    {
        let hint = "write the ports as numbers, or move these peers to a separate rule";
        let line = if port.line == 0 { line } else { port.line };
        let message = format!("only pods have named ports: {}", dialect.named_ports);
        ctx.at(dialect.ports, |ctx| ctx.invalid(line, message, hint));
    }
}

/// A peer. A list of networks or names becomes several peers with one index.
fn peer(
    ctx: &mut LowerContext,
    index: usize,
    tree: &Tree,
    direction: Direction,
    dialect: &Dialect,
    action: Option<Action>,
) -> Option<Vec<Peer>> {
    let known: &[&'static str] = match direction {
        Direction::Ingress => &INGRESS_PEERS[..2],
        Direction::Egress => dialect.egress_peers,
    };
    let fields = match direction {
        Direction::Ingress => ingress_peer_fields(ctx, tree),
        Direction::Egress => ctx.fields(tree, known),
    };
    let one = match fields.count(known) {
        0 if !fields.clean && fields.count(&INGRESS_PEERS[2..]) > 0 => false,
        // C16: it may be a peer of a newer API.
        0 => {
            let message = format!("expected {}, found none of them", one_of(known));
            let hint = "add one of them; until then an allow rule matches nothing, and any other rule denies everything";
            ctx.find("invalid", Severity::Warning, fields.line, message, hint);
            false
        }
        _ => port::exactly_one(ctx, &fields, known),
    };
    let index = u32::try_from(index).ok()?;
    let chosen = pods_or_namespaces(ctx, &fields, dialect);
    let one_peer = |who| vec![Peer { index, line: tree.line, who }];
    let pods = chosen.map(|chosen| chosen.map(|(scope, pods)| one_peer(Who::Pods { scope, pods })));
    let nodes = fields.get("nodes").filter(|_| known.contains(&"nodes")).map(|nodes| {
        ctx.at("nodes", |ctx| selector::selector(ctx, nodes))
            .map(|nodes| one_peer(Who::Nodes(nodes)))
    });
    let networks = fields.get("networks").filter(|_| known.contains(&"networks")).map(|list| {
        ctx.at("networks", |ctx| {
            several(ctx, list, |ctx, item| {
                let net = cidr::network(ctx, item, dialect.spelling)?;
                Some(Peer { index, line: item.line, who: Who::Block(Block::new(net, [])) })
            })
        })
    });
    let domains =
        fields.get("domainNames").filter(|_| known.contains(&"domainNames")).map(|list| {
            ctx.at("domainNames", |ctx| {
                if action.is_some_and(|action| action != Action::Allow) {
                    let message = "domainNames can only be allowed, not denied or passed";
                    let hint = "deny networks, or allow the names before a rule that denies";
                    ctx.invalid(list.line, message, hint);
                    return None;
                }
                several(ctx, list, |ctx, item| {
                    let domain = domain(ctx, item)?;
                    let message = format!("weir has no addresses of {domain} here, so this allows nothing");
                    let hint = "agents on Linux nodes learn them from DNS answers; in a policy test, write them in `dns:`";
                    ctx.find(UNRESOLVED_NAME, Severity::Warning, item.line, message, hint);
                    Some(Peer { index, line: item.line, who: Who::Domain(domain) })
                })
            })
        });
    (fields.clean && one).then_some(())?;
    pods.or(nodes).or(networks).or(domains).flatten()
}

/// The fields of an ingress peer, the released ones first.
const INGRESS_PEERS: [&str; 4] = ["namespaces", "pods", "networks", "nodes"];

/// The fields of an ingress peer. Networks and nodes are a proposal upstream (NPEP-127): they are
/// refused like a peer of a newer API (C11, C16).
fn ingress_peer_fields<'t>(ctx: &mut LowerContext, tree: &'t Tree) -> Fields<'t> {
    let (released, proposed) = INGRESS_PEERS.split_at(2);
    let is_proposed = proposed.iter().any(|field| tree.get(field).is_some());
    let mut fields = ctx.fields(tree, if is_proposed { &INGRESS_PEERS } else { released });
    for field in proposed {
        let Some(line) = fields.get(field).and_then(|_| fields.line_of(field)) else { continue };
        fields.clean = false;
        let message = format!(
            "`{field}` of ingress peers is only proposed upstream (NPEP-127); no version of the API has it"
        );
        let hint = "use `namespaces` or `pods`, or an ipBlock of a NetworkPolicy; until then an allow rule matches nothing, and any other rule denies everything";
        ctx.at(*field, |ctx| {
            ctx.find("unknown-field", Severity::Warning, line, message, hint);
        });
    }
    fields
}

fn several<T>(
    ctx: &mut LowerContext,
    list: &Tree,
    mut read: impl FnMut(&mut LowerContext, &Tree) -> Option<T>,
) -> Option<Vec<T>> {
    at_most(ctx, list, MAX_NETWORKS, "entries");
    if is_empty_list(list) {
        ctx.invalid(list.line, "the list must not be empty", "add an entry, or remove the peer");
        return None;
    }
    // The API server treats the list as a set and compares the texts.
    let mut seen = BTreeSet::new();
    for (index, item) in list.items().iter().enumerate() {
        if let Some(text) = item.text()
            && !seen.insert(text)
        {
            let message = format!("{} is in the list twice", quote(text));
            ctx.at(index, |ctx| ctx.invalid(item.line, message, "remove one of the two"));
        }
    }
    ctx.each(list, |ctx, _, item| read(ctx, item))
}

/// The code of a finding about a domain name. Policy tests give its addresses, and agents learn them.
pub const UNRESOLVED_NAME: &str = "unresolved-name";

/// C18: case and a final dot are ignored.
fn domain(ctx: &mut LowerContext, tree: &Tree) -> Option<DomainPattern> {
    let text = ctx.text(tree)?;
    if let Err(expected) = check::domain_name(text) {
        ctx.invalid(
            tree.line,
            format!("expected {expected}, found {}", quote(text)),
            "correct the name",
        );
        return None;
    }
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    Some(match name.strip_prefix("*.") {
        Some(parent) => DomainPattern::Under(ctx.name(parent)),
        None => DomainPattern::Exact(ctx.name(&name)),
    })
}
