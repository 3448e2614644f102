pub(crate) mod reason;
mod rule;

pub use rule::UNRESOLVED_NAME;

use std::sync::Arc;

use weir_model::{
    Action, Direction, Object, Policy, PolicyId, PolicyKind, PolicyRule, PortSpec, Scope, Selector,
    Spec, Subject, Tier,
};

use self::rule::{deny_all, rules};
use super::{
    Fields, Home, LowerContext, Lowered, check_version, cidr::Spelling, meta, port, selector, stage,
};
use crate::{check, document::Tree};

/// The differences between the cluster-wide kinds.
struct Dialect {
    kind: PolicyKind,
    versions: &'static [&'static str],
    fields: &'static [&'static str],
    actions: &'static [(&'static str, Action)],
    ports: &'static str,
    /// Whether an empty list of ports is valid and means every port (C15).
    no_ports: bool,
    port: fn(&mut LowerContext, &Tree) -> Option<PortSpec>,
    egress_peers: &'static [&'static str],
    /// How the API server checks networks, and its words about named ports.
    spelling: Spelling,
    named_ports: &'static str,
    /// The most rules per direction, peers per rule, and ports per rule (C26).
    limit: usize,
    /// The required selectors of `pods`.
    needs: &'static [&'static str],
}

const ADMIN: Dialect = Dialect {
    kind: PolicyKind::AdminNetworkPolicy,
    versions: &["policy.networking.k8s.io/v1alpha1"],
    fields: &["priority", "subject", "ingress", "egress"],
    actions: &[("Allow", Action::Allow), ("Deny", Action::Deny), ("Pass", Action::Pass)],
    ports: "ports",
    no_ports: true,
    port: port::v1alpha1,
    egress_peers: &["namespaces", "pods", "nodes", "networks", "domainNames"],
    spelling: Spelling::V1alpha1,
    named_ports: reason::NAMED_PORTS,
    limit: 100,
    needs: &["namespaceSelector", "podSelector"],
};

const BASELINE: Dialect = Dialect {
    kind: PolicyKind::BaselineAdminNetworkPolicy,
    fields: &["subject", "ingress", "egress"],
    actions: &[("Allow", Action::Allow), ("Deny", Action::Deny)],
    egress_peers: &["namespaces", "pods", "nodes", "networks"],
    named_ports: reason::NAMED_PORTS_BASELINE,
    ..ADMIN
};

const CLUSTER: Dialect = Dialect {
    kind: PolicyKind::ClusterNetworkPolicy,
    versions: &["policy.networking.k8s.io/v1alpha2", "policy.networking.k8s.io/v1beta1"],
    fields: &["tier", "priority", "subject", "ingress", "egress"],
    actions: &[("Accept", Action::Allow), ("Deny", Action::Deny), ("Pass", Action::Pass)],
    ports: "protocols",
    no_ports: false,
    port: port::v1alpha2,
    spelling: Spelling::V1alpha2,
    limit: 25,
    needs: &["podSelector"],
    ..ADMIN
};

/// The priority of a BaselineAdminNetworkPolicy: after all others of its tier.
const LAST: u32 = 1001;

/// A cluster-wide policy. If the API server would reject it, it allows nothing, and its pass
/// rules become deny rules.
pub(crate) fn lower(
    ctx: &mut LowerContext,
    tree: &Tree,
    kind: &str,
    version: Option<&str>,
) -> Option<Lowered> {
    let dialect = match kind {
        "AdminNetworkPolicy" => &ADMIN,
        "BaselineAdminNetworkPolicy" => &BASELINE,
        _ => &CLUSTER,
    };
    let meta = meta(ctx, tree, kind, Home::Cluster, check::dns_subdomain);
    check_version(ctx, tree, version, dialect.versions);
    let name = meta.name.unwrap_or_else(|| ctx.name(&format!("unnamed-{}", tree.line)));
    if dialect.kind == PolicyKind::BaselineAdminNetworkPolicy && &*name != "default" {
        let line = tree.path(&["metadata", "name"]).map_or(tree.line, |name| name.line);
        ctx.at("metadata", |ctx| {
            ctx.at("name", |ctx| ctx.invalid(line, reason::BASELINE_NAME, "name it default"));
        });
    }
    let fields = ctx.fields(tree, &["apiVersion", "kind", "metadata", "spec", "status"]);
    ctx.invalid |= !fields.clean;
    let none = Tree::null(tree.line);
    let mut spec = ctx.at("spec", |ctx| spec_of(ctx, fields.get("spec").unwrap_or(&none), dialect));
    // The unknown field may be a misspelt spec.
    if fields.is_repeated("spec") || !fields.clean {
        spec = Spec { subject: everyone(), ..lockdown(spec, tree.line) };
    }
    let id = PolicyId { kind: dialect.kind, namespace: ctx.name(""), name };
    let staged = stage::is_staged(ctx, tree, dialect.kind);
    let policy = Policy { id, location: meta.location, spec: Arc::new(spec), staged };
    Some(Lowered::Object(Object::Policy(policy)))
}

fn spec_of(ctx: &mut LowerContext, tree: &Tree, dialect: &Dialect) -> Spec {
    let fields = ctx.fields(tree, dialect.fields);
    ctx.invalid |= !fields.clean;
    let tier = tier(ctx, &fields, dialect);
    let subject = ctx.at("subject", |ctx| subject(ctx, &fields, dialect));
    let mut side = |direction, field: &'static str| {
        let list = fields.get(field)?;
        if fields.is_repeated(field) {
            Some(vec![deny_all(0, list.line)])
        } else {
            ctx.at(field, |ctx| rules(ctx, list, direction, dialect))
        }
    };
    let ingress = side(Direction::Ingress, "ingress");
    let egress = side(Direction::Egress, "egress");
    ctx.invalid |= subject.is_none();
    let closed = |rules: Option<Vec<PolicyRule>>| {
        if ctx.invalid { rules.map(fail_closed) } else { rules }
    };
    let spec = Spec {
        tier,
        subject: subject.unwrap_or_else(everyone),
        ingress: closed(ingress),
        egress: closed(egress),
    };
    // An unknown field may be a misspelt list of rules.
    if fields.clean { spec } else { lockdown(spec, tree.line) }
}

/// Denies everything that the rules do not deny already.
fn lockdown(spec: Spec, line: u32) -> Spec {
    let more = |rules: Option<Vec<PolicyRule>>| {
        let mut rules = rules.unwrap_or_default();
        rules.push(deny_all(rules.len(), line));
        Some(rules)
    };
    Spec { ingress: more(spec.ingress), egress: more(spec.egress), ..spec }
}

/// All pods.
fn everyone() -> Subject {
    Subject { scope: Scope::Matching(Selector::everything()), pods: Selector::everything() }
}

/// The rules of an invalid object: allow rules are removed, and pass rules deny.
fn fail_closed(rules: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let strict = rules.into_iter().filter(|rule| rule.action != Action::Allow);
    strict.map(|rule| PolicyRule { action: Action::Deny, ..rule }).collect()
}

/// The tier and the priority. An invalid one becomes the highest (C3).
fn tier(ctx: &mut LowerContext, fields: &Fields, dialect: &Dialect) -> Tier {
    if dialect.kind == PolicyKind::BaselineAdminNetworkPolicy {
        return Tier::Baseline { priority: LAST };
    }
    let missing = |ctx: &mut LowerContext, field: &'static str, values: &str| {
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
fn subject(ctx: &mut LowerContext, fields: &Fields, dialect: &Dialect) -> Option<Subject> {
    if fields.is_repeated("subject") {
        return None;
    }
    let Some(tree) = fields.get("subject") else {
        let hint = "add `subject:` with `namespaces:` or `pods:`";
        ctx.invalid(fields.line, "the policy needs a subject", hint);
        return None;
    };
    let known = ["namespaces", "pods"];
    let fields = ctx.fields(tree, &known);
    let one = port::exactly_one(ctx, &fields, &known);
    let chosen = pods_or_namespaces(ctx, &fields, dialect);
    (fields.clean && one).then_some(())?;
    let (scope, pods) = chosen??;
    Some(Subject { scope, pods })
}

type Chosen = (Scope, Selector);

/// The pods that `namespaces` or `pods` select; `None` if neither is given, `Some(None)` if it is
/// invalid.
fn pods_or_namespaces(
    ctx: &mut LowerContext,
    fields: &Fields,
    dialect: &Dialect,
) -> Option<Option<Chosen>> {
    let namespaces = fields.get("namespaces").map(|tree| {
        let namespaces = ctx.at("namespaces", |ctx| selector::selector(ctx, tree));
        namespaces.map(|namespaces| (Scope::Matching(namespaces), Selector::everything()))
    });
    let pods =
        fields.get("pods").map(|tree| ctx.at("pods", |ctx| namespaced_pods(ctx, tree, dialect)));
    namespaces.or(pods)
}

fn namespaced_pods(ctx: &mut LowerContext, tree: &Tree, dialect: &Dialect) -> Option<Chosen> {
    let fields = ctx.fields(tree, &["namespaceSelector", "podSelector"]);
    let mut select = |field: &'static str| {
        ctx.at(field, |ctx| match fields.get(field) {
            Some(tree) => selector::selector(ctx, tree),
            None if dialect.needs.contains(&field) => {
                let hint = format!("add `{field}: {{}}` to select all of them");
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
