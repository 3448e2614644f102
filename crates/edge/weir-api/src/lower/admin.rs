use std::sync::Arc;

use weir_model::{
    Action, Direction, DomainPattern, Object, Peer, Policy, PolicyId, PolicyKind, PolicyRule,
    PortMatch, PortSpec, Scope, Selector, Spec, Subject, Tier, Who,
};

use super::{
    Context, Fields, Home, Lowered, check_version,
    cidr::{self, Spelling},
    meta, one_of, port, selector,
};
use crate::{
    check,
    document::{Node, quote},
};

/// What the cluster-wide kinds differ in.
struct Dialect {
    kind: PolicyKind,
    version: &'static str,
    fields: &'static [&'static str],
    actions: &'static [(&'static str, Action)],
    ports: &'static str,
    port: fn(&mut Context, &Node) -> Option<PortSpec>,
    egress_peers: &'static [&'static str],
    /// Rules per direction, peers per rule, ports per rule (C26).
    limit: usize,
    /// The selectors that `pods` must have.
    needs: &'static [&'static str],
}

const ADMIN: Dialect = Dialect {
    kind: PolicyKind::AdminNetworkPolicy,
    version: "policy.networking.k8s.io/v1alpha1",
    fields: &["priority", "subject", "ingress", "egress"],
    actions: &[("Allow", Action::Allow), ("Deny", Action::Deny), ("Pass", Action::Pass)],
    ports: "ports",
    port: port::v1alpha1,
    egress_peers: &["namespaces", "pods", "nodes", "networks", "domainNames"],
    limit: 100,
    needs: &["namespaceSelector", "podSelector"],
};

const BASELINE: Dialect = Dialect {
    kind: PolicyKind::BaselineAdminNetworkPolicy,
    fields: &["subject", "ingress", "egress"],
    actions: &[("Allow", Action::Allow), ("Deny", Action::Deny)],
    egress_peers: &["namespaces", "pods", "nodes", "networks"],
    ..ADMIN
};

const CLUSTER: Dialect = Dialect {
    kind: PolicyKind::ClusterNetworkPolicy,
    version: "policy.networking.k8s.io/v1alpha2",
    fields: &["tier", "priority", "subject", "ingress", "egress"],
    actions: &[("Accept", Action::Allow), ("Deny", Action::Deny), ("Pass", Action::Pass)],
    ports: "protocols",
    port: port::v1alpha2,
    limit: 25,
    needs: &["podSelector"],
    ..ADMIN
};

/// The priority of a BaselineAdminNetworkPolicy: after all others of its tier.
const LAST: u32 = 1001;

/// The most networks or domain names in a peer (C26).
const MAX_NETWORKS: usize = 25;

/// A cluster-wide policy. If the API server refuses it, it allows nothing, and denies where it would have passed.
pub(crate) fn lower(
    ctx: &mut Context,
    node: &Node,
    kind: &str,
    version: Option<&str>,
) -> Option<Lowered> {
    let dialect = match kind {
        "AdminNetworkPolicy" => &ADMIN,
        "BaselineAdminNetworkPolicy" => &BASELINE,
        _ => &CLUSTER,
    };
    let meta = meta(ctx, node, kind, Home::Cluster, check::dns_subdomain);
    check_version(ctx, node, version, &[dialect.version]);
    let name = meta.name.unwrap_or_else(|| ctx.name(&format!("unnamed-{}", node.line)));
    if dialect.kind == PolicyKind::BaselineAdminNetworkPolicy && &*name != "default" {
        let line = node.path(&["metadata", "name"]).map_or(node.line, |name| name.line);
        let message =
            format!("the only name a BaselineAdminNetworkPolicy can have is default, not {name}");
        ctx.at("metadata", |ctx| {
            ctx.at("name", |ctx| ctx.invalid(line, message, "name it default"));
        });
    }
    let fields = ctx.fields(node, &["apiVersion", "kind", "metadata", "spec", "status"]);
    ctx.invalid |= !fields.clean;
    let none = Node::null(node.line);
    let mut spec = ctx.at("spec", |ctx| spec_of(ctx, fields.get("spec").unwrap_or(&none), dialect));
    if fields.is_repeated("spec") {
        let denial = Some(vec![deny_all(0, node.line)]);
        spec = Spec { subject: everyone(), ingress: denial.clone(), egress: denial, ..spec };
    }
    let id = PolicyId { kind: dialect.kind, namespace: ctx.name(""), name };
    let policy = Policy { id, place: meta.place, spec: Arc::new(spec) };
    Some(Lowered::Object(Object::Policy(policy)))
}

fn spec_of(ctx: &mut Context, node: &Node, dialect: &Dialect) -> Spec {
    let fields = ctx.fields(node, dialect.fields);
    ctx.invalid |= !fields.clean;
    let tier = tier(ctx, &fields, dialect);
    let subject = ctx.at("subject", |ctx| subject(ctx, &fields, dialect));
    let mut side = |direction, field: &'static str| {
        let list = fields.get(field)?;
        match fields.is_repeated(field) {
            true => Some(vec![deny_all(0, list.line)]),
            false => ctx.at(field, |ctx| rules(ctx, list, direction, dialect)),
        }
    };
    let ingress = side(Direction::Ingress, "ingress");
    let egress = side(Direction::Egress, "egress");
    ctx.invalid |= subject.is_none();
    let closed = |rules: Option<Vec<PolicyRule>>| match ctx.invalid {
        true => rules.map(fail_closed),
        false => rules,
    };
    Spec {
        tier,
        subject: subject.unwrap_or_else(everyone),
        ingress: closed(ingress),
        egress: closed(egress),
    }
}

/// Every pod there is.
fn everyone() -> Subject {
    Subject { scope: Scope::Matching(Selector::everything()), pods: Selector::everything() }
}

/// The rules of an object that the API server refuses: nothing is allowed, and what would be passed on is denied.
fn fail_closed(rules: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let strict = rules.into_iter().filter(|rule| rule.action != Action::Allow);
    strict.map(|rule| PolicyRule { action: Action::Deny, ..rule }).collect()
}

/// Where it stands; what cannot be read comes first (C3).
fn tier(ctx: &mut Context, fields: &Fields, dialect: &Dialect) -> Tier {
    if dialect.kind == PolicyKind::BaselineAdminNetworkPolicy {
        return Tier::Baseline { priority: LAST };
    }
    let missing = |ctx: &mut Context, field: &'static str, values: &str| {
        let message = format!("expected `{field}`, {values}");
        ctx.invalid(fields.line, message, format!("add `{field}:`"));
    };
    let priority = ctx.at("priority", |ctx| match fields.get("priority") {
        Some(priority) => ctx.number(priority, 0, 1000),
        None => {
            missing(ctx, "priority", "from 0 to 1000");
            None
        }
    });
    let priority = priority.and_then(|priority| u32::try_from(priority).ok()).unwrap_or(0);
    if dialect.kind == PolicyKind::AdminNetworkPolicy {
        return Tier::Admin { priority };
    }
    let tiers = [("Admin", Tier::Admin { priority }), ("Baseline", Tier::Baseline { priority })];
    let tier = ctx.at("tier", |ctx| match fields.get("tier") {
        Some(tier) => ctx.word(tier, &tiers),
        None => {
            missing(ctx, "tier", "Admin or Baseline");
            None
        }
    });
    tier.unwrap_or(Tier::Admin { priority })
}

/// C14.
fn subject(ctx: &mut Context, fields: &Fields, dialect: &Dialect) -> Option<Subject> {
    if fields.is_repeated("subject") {
        return None;
    }
    let Some(node) = fields.get("subject") else {
        let hint = "add `subject:` with `namespaces:` or `pods:`";
        ctx.invalid(fields.line, "the policy needs a subject", hint);
        return None;
    };
    let known = ["namespaces", "pods"];
    let fields = ctx.fields(node, &known);
    let one = port::exactly_one(ctx, &fields, &known);
    let chosen = pods_or_namespaces(ctx, &fields, dialect);
    (fields.clean && one).then_some(())?;
    let (scope, pods) = chosen??;
    Some(Subject { scope, pods })
}

type Chosen = (Scope, Selector);

/// What `namespaces` or `pods` choose; `None` if neither is given, `Some(None)` if it cannot be read.
fn pods_or_namespaces(
    ctx: &mut Context,
    fields: &Fields,
    dialect: &Dialect,
) -> Option<Option<Chosen>> {
    let namespaces = fields.get("namespaces").map(|node| {
        let namespaces = ctx.at("namespaces", |ctx| selector::selector(ctx, node));
        namespaces.map(|namespaces| (Scope::Matching(namespaces), Selector::everything()))
    });
    let pods =
        fields.get("pods").map(|node| ctx.at("pods", |ctx| namespaced_pods(ctx, node, dialect)));
    namespaces.or(pods)
}

fn namespaced_pods(ctx: &mut Context, node: &Node, dialect: &Dialect) -> Option<Chosen> {
    let fields = ctx.fields(node, &["namespaceSelector", "podSelector"]);
    let mut select = |field: &'static str| {
        ctx.at(field, |ctx| match fields.get(field) {
            Some(node) => selector::selector(ctx, node),
            None if dialect.needs.contains(&field) => {
                let hint = format!("add `{field}: {{}}` to mean all of them");
                ctx.invalid(fields.line, format!("expected `{field}`"), hint);
                None
            }
            None => Some(Selector::everything()),
        })
    };
    let (namespaces, pods) = (select("namespaceSelector"), select("podSelector"));
    fields.clean.then_some(())?;
    Some((Scope::Matching(namespaces?), pods?))
}

/// The rules of a direction; `None` if there are none: then it is not touched (C2, C24).
fn rules(
    ctx: &mut Context,
    list: &Node,
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

fn deny_all(index: usize, line: u32) -> PolicyRule {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    PolicyRule { index, name: None, line, action: Action::Deny, peers: None, ports: None }
}

/// A rule. If it cannot be read it fails closed (C16, C17): an allowing one matches nothing, any other denies everything.
fn rule(
    ctx: &mut Context,
    index: usize,
    node: &Node,
    direction: Direction,
    dialect: &Dialect,
) -> Option<PolicyRule> {
    let list = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let fields = ctx.fields(node, &["name", "action", list, dialect.ports]);
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
            let peers = ctx
                .each(peers, |ctx, index, item| peer(ctx, index, item, direction, dialect, action));
            peers.map(|peers| peers.into_iter().flatten().collect::<Vec<Peer>>())
        }
        None => {
            let message = format!("a rule needs at least one peer in `{list}`");
            ctx.invalid(fields.line, message, "to mean all pods, add `- namespaces: {}`");
            None
        }
    });
    let ports = match fields.get(dialect.ports) {
        None => Some(None),
        Some(node) => ctx.at(dialect.ports, |ctx| {
            at_most(ctx, node, dialect.limit, dialect.ports);
            if is_empty_list(node) {
                let message = format!("`{}` must not be empty", dialect.ports);
                ctx.invalid(node.line, message, "leave it out to mean every port");
                return None;
            }
            ctx.each(node, |ctx, _, item| (dialect.port)(ctx, item)).map(Some)
        }),
    };
    if let (Some(peers), Some(Some(ports))) = (&peers, &ports) {
        names_need_pods(ctx, peers, ports, dialect, fields.line);
    }
    match (action, peers, ports) {
        (Some(action), Some(peers), Some(ports)) if fields.clean => Some(PolicyRule {
            index: u32::try_from(index).ok()?,
            name,
            line: node.line,
            action,
            peers: Some(peers),
            ports,
        }),
        (Some(Action::Allow), _, _) => None,
        _ => Some(PolicyRule { name, ..deny_all(index, node.line) }),
    }
}

fn is_empty_list(node: &Node) -> bool {
    matches!(&node.value, crate::document::Value::Seq(items) if items.is_empty())
}

fn rule_name(ctx: &mut Context, node: &Node) -> Option<weir_model::Name> {
    let text = ctx.text(node)?;
    if text.chars().count() > 100 {
        let message = "the name of a rule has at most 100 characters";
        ctx.invalid(node.line, message, "shorten the name");
        return None;
    }
    Some(ctx.name(text))
}

/// C26.
fn at_most(ctx: &mut Context, list: &Node, limit: usize, what: &str) {
    let count = list.items().len();
    if count > limit {
        let message = format!("there are {count} {what}; at most {limit} are allowed");
        ctx.invalid(list.line, message, "split them over several rules or policies");
    }
}

/// C15: only pods have named ports.
fn names_need_pods(
    ctx: &mut Context,
    peers: &[Peer],
    ports: &[PortSpec],
    dialect: &Dialect,
    line: u32,
) {
    let named = ports.iter().find(|port| matches!(port.ports, PortMatch::Named { .. }));
    if let Some(port) = named
        && peers.iter().any(|peer| !matches!(peer.who, Who::Pods { .. }))
    {
        let message = "networks, nodes and domainNames have no named ports";
        let hint = "give the ports as numbers, or put these peers in a rule of their own";
        let line = if port.line == 0 { line } else { port.line };
        ctx.at(dialect.ports, |ctx| ctx.invalid(line, message, hint));
    }
}

/// A peer: a list of networks or names is several, with one index.
fn peer(
    ctx: &mut Context,
    index: usize,
    node: &Node,
    direction: Direction,
    dialect: &Dialect,
    action: Option<Action>,
) -> Option<Vec<Peer>> {
    let known = match direction {
        Direction::Ingress => &["namespaces", "pods"],
        Direction::Egress => dialect.egress_peers,
    };
    let fields = ctx.fields(node, known);
    let one = port::exactly_one(ctx, &fields, known);
    let index = u32::try_from(index).ok()?;
    let chosen = pods_or_namespaces(ctx, &fields, dialect);
    let one_peer = |who| vec![Peer { index, line: node.line, who }];
    let pods = chosen.map(|chosen| chosen.map(|(scope, pods)| one_peer(Who::Pods { scope, pods })));
    let nodes = fields.get("nodes").filter(|_| known.contains(&"nodes")).map(|nodes| {
        ctx.at("nodes", |ctx| selector::selector(ctx, nodes))
            .map(|nodes| one_peer(Who::Nodes(nodes)))
    });
    let networks = fields.get("networks").filter(|_| known.contains(&"networks")).map(|list| {
        ctx.at("networks", |ctx| {
            several(ctx, list, |ctx, item| {
                let net = cidr::network(ctx, item, Spelling::New)?;
                Some(Peer {
                    index,
                    line: item.line,
                    who: Who::Block(weir_model::Block::new(net, [])),
                })
            })
        })
    });
    let domains =
        fields.get("domainNames").filter(|_| known.contains(&"domainNames")).map(|list| {
            ctx.at("domainNames", |ctx| {
                if action.is_some_and(|action| action != Action::Allow) {
                    let message = "domainNames can only be allowed, not denied or passed";
                    let hint = "deny by networks, or allow the names before a denial";
                    ctx.invalid(list.line, message, hint);
                    return None;
                }
                several(ctx, list, |ctx, item| {
                    let domain = domain(ctx, item)?;
                    Some(Peer { index, line: item.line, who: Who::Domain(domain) })
                })
            })
        });
    (fields.clean && one).then_some(())?;
    pods.or(nodes).or(networks).or(domains).flatten()
}

fn several<T>(
    ctx: &mut Context,
    list: &Node,
    mut read: impl FnMut(&mut Context, &Node) -> Option<T>,
) -> Option<Vec<T>> {
    at_most(ctx, list, MAX_NETWORKS, "entries");
    if is_empty_list(list) {
        ctx.invalid(list.line, "the list must not be empty", "add an entry, or remove the peer");
        return None;
    }
    ctx.each(list, |ctx, _, item| read(ctx, item))
}

/// C18: case and a final dot do not matter.
fn domain(ctx: &mut Context, node: &Node) -> Option<DomainPattern> {
    let text = ctx.text(node)?;
    if let Err(expected) = check::domain_name(text) {
        ctx.invalid(
            node.line,
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
