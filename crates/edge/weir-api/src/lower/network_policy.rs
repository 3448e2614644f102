use std::sync::Arc;

use weir_model::{
    Action, Direction, Object, Peer, Policy, PolicyId, PolicyKind, PolicyRule, PortSpec, Scope,
    Selector, Severity, Spec, Subject, Tier, Who,
};

use super::{
    Fields, Home, LowerContext, Lowered, check_version, cidr, meta, port, selector, stage,
};
use crate::{check, document::Tree};

/// A NetworkPolicy, or a kind with the same spec. If the API server would reject it, it isolates
/// its pods and allows nothing.
pub(crate) fn lower(
    ctx: &mut LowerContext,
    tree: &Tree,
    kind: PolicyKind,
    version: Option<&str>,
) -> Option<Lowered> {
    let (name, expected) = match kind {
        PolicyKind::ClusterSetNetworkPolicy => {
            ("ClusterSetNetworkPolicy", "submariner.io/v1alpha1")
        }
        _ => ("NetworkPolicy", "networking.k8s.io/v1"),
    };
    let meta = meta(ctx, tree, name, Home::Namespace, check::dns_subdomain);
    check_version(ctx, tree, version, &[expected]);
    let fields = ctx.fields(tree, &["apiVersion", "kind", "metadata", "spec", "status"]);
    ctx.invalid |= !fields.clean;
    let spec = match fields.get("spec") {
        Some(spec) if !fields.is_repeated("spec") => ctx.at("spec", |ctx| spec_of(ctx, spec)),
        // The unknown field may be a misspelt spec.
        _ if !fields.clean => lockdown(),
        _ => ctx.at("spec", |ctx| spec_of(ctx, &Tree::null(tree.line))),
    };
    let id = PolicyId {
        kind,
        namespace: meta.namespace,
        name: meta.name.unwrap_or_else(|| ctx.name(&format!("unnamed-{}", tree.line))),
    };
    let staged = stage::is_staged(ctx, tree, kind);
    let policy = Policy { id, location: meta.location, spec: Arc::new(spec), staged };
    let object = Object::Policy(policy);
    Some(match meta.generated_for {
        Some(by) => Lowered::Generated { object, by },
        None => Lowered::Object(object),
    })
}

/// The spec of a policy whose spec is unreadable: it isolates all pods and allows nothing.
fn lockdown() -> Spec {
    let subject = Subject { scope: Scope::Own, pods: Selector::everything() };
    Spec { tier: Tier::Namespace, subject, ingress: Some(Vec::new()), egress: Some(Vec::new()) }
}

fn spec_of(ctx: &mut LowerContext, tree: &Tree) -> Spec {
    let fields = ctx.fields(tree, &["podSelector", "policyTypes", "ingress", "egress"]);
    ctx.invalid |= !fields.clean;
    let pods = match fields.get("podSelector") {
        _ if fields.is_repeated("podSelector") => None,
        None => Some(Selector::everything()),
        Some(pods) => ctx.at("podSelector", |ctx| selector::selector(ctx, pods)),
    };
    ctx.invalid |= pods.is_none();
    let ingress = ctx.at("ingress", |ctx| rules(ctx, fields.get("ingress"), Direction::Ingress));
    let egress = ctx.at("egress", |ctx| rules(ctx, fields.get("egress"), Direction::Egress));
    let types = ctx.at("policyTypes", |ctx| directions(ctx, &fields));
    ignored_rules(ctx, &fields, &types);
    let side = |rules: Option<Vec<PolicyRule>>, direction| {
        // T4, T5.
        let is_isolated = types.contains(&direction);
        let rules = if ctx.invalid { Vec::new() } else { rules.unwrap_or_default() };
        is_isolated.then_some(rules)
    };
    Spec {
        tier: Tier::Namespace,
        subject: Subject { scope: Scope::Own, pods: pods.unwrap_or_default() },
        ingress: side(ingress, Direction::Ingress),
        egress: side(egress, Direction::Egress),
    }
}

/// Reports the rules of a direction that is not in `policyTypes`: they have no effect (T4, T5).
fn ignored_rules(ctx: &mut LowerContext, fields: &Fields, types: &[Direction]) {
    let sides =
        [(Direction::Ingress, "ingress", "Ingress"), (Direction::Egress, "egress", "Egress")];
    for (direction, field, word) in sides {
        if let Some(list) = fields.get(field)
            && !list.items().is_empty()
            && !types.contains(&direction)
        {
            let message =
                format!("policyTypes does not contain {word}, so these rules are ignored");
            let hint = format!("add {word} to policyTypes, or remove the rules");
            let line = fields.line_of(field).unwrap_or(list.line);
            ctx.at(field, |ctx| {
                ctx.find("ignored-rules", Severity::Warning, line, message, hint);
            });
        }
    }
}

/// The directions that the policy isolates: the listed ones, or both if the list is invalid.
fn directions(ctx: &mut LowerContext, fields: &Fields) -> Vec<Direction> {
    let listed = match fields.get("policyTypes") {
        _ if fields.is_repeated("policyTypes") => None,
        // The unknown field may be misspelt policyTypes.
        None if !fields.clean => None,
        None => Some(Vec::new()),
        Some(list) => {
            let words = [("Ingress", Direction::Ingress), ("Egress", Direction::Egress)];
            let listed = ctx.each(list, |ctx, _, item| ctx.word(item, &words));
            if list.items().len() > 2 {
                let hint = "list Ingress and Egress at most once each";
                ctx.invalid(list.line, "there are more than two policyTypes", hint);
            }
            listed.filter(|_| list.items().len() <= 2)
        }
    };
    match listed {
        None => Direction::BOTH.into(),
        Some(listed) if !listed.is_empty() => listed,
        // T1 to T3: egress only if there are rules for it, or a value that may be rules.
        Some(_) => match fields.get("egress") {
            Some(egress) if !matches!(&egress.value, crate::document::TreeValue::Seq(rules) if rules.is_empty()) => {
                Direction::BOTH.into()
            }
            _ => vec![Direction::Ingress],
        },
    }
}

/// The rules of one direction. A rule with an unknown field is left out, so that it allows nothing
/// (V9).
fn rules(
    ctx: &mut LowerContext,
    tree: Option<&Tree>,
    direction: Direction,
) -> Option<Vec<PolicyRule>> {
    let mut rules = Vec::new();
    ctx.each(tree?, |ctx, index, item| {
        rules.extend(rule(ctx, index, item, direction));
        Some(())
    })?;
    Some(rules)
}

fn rule(
    ctx: &mut LowerContext,
    index: usize,
    tree: &Tree,
    direction: Direction,
) -> Option<PolicyRule> {
    let list = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let fields = ctx.fields(tree, &[list, "ports"]);
    // I9: missing and empty lists mean everyone, and every port.
    let peers: Option<Option<Vec<Peer>>> = match fields.get(list) {
        None => Some(None),
        Some(peers) => ctx.at(list, |ctx| ctx.each(peers, peer).map(unless_empty)),
    };
    let ports: Option<Option<Vec<PortSpec>>> = match fields.get("ports") {
        None => Some(None),
        Some(ports) => ctx.at("ports", |ctx| {
            ctx.each(ports, |ctx, _, item| port::port(ctx, item)).map(unless_empty)
        }),
    };
    fields.clean.then_some(())?;
    Some(PolicyRule {
        index: u32::try_from(index).ok()?,
        name: None,
        line: tree.line,
        action: Action::Allow,
        peers: peers?,
        ports: ports?,
    })
}

fn unless_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// V2, P1 to P7.
pub(super) fn peer(ctx: &mut LowerContext, index: usize, tree: &Tree) -> Option<Peer> {
    let fields = ctx.fields(tree, &["podSelector", "namespaceSelector", "ipBlock"]);
    let mut select = |field: &'static str| {
        fields.get(field).map(|tree| ctx.at(field, |ctx| selector::selector(ctx, tree)))
    };
    let (pods, namespaces) = (select("podSelector"), select("namespaceSelector"));
    let block = fields.get("ipBlock").map(|tree| ctx.at("ipBlock", |ctx| cidr::block(ctx, tree)));
    let who = match (block, pods, namespaces) {
        (Some(block), None, None) => Who::Block(block?),
        (Some(_), _, _) => {
            let hint = "make them two peers: begin the ipBlock with its own `- `";
            ctx.invalid(fields.line, "an ipBlock cannot be combined with a selector", hint);
            return None;
        }
        (None, None, None) => {
            let message = "the peer is empty; expected podSelector, namespaceSelector or ipBlock";
            let hint = "to allow everyone, remove the list of peers";
            ctx.invalid(fields.line, message, hint);
            return None;
        }
        (None, pods, namespaces) => Who::Pods {
            scope: match namespaces {
                None => Scope::Own,
                Some(namespaces) => Scope::Matching(namespaces?),
            },
            pods: pods.unwrap_or(Some(Selector::everything()))?,
        },
    };
    fields.clean.then_some(())?;
    Some(Peer { index: u32::try_from(index).ok()?, line: tree.line, who })
}
