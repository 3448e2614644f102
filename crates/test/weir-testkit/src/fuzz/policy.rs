use std::sync::Arc;

use weir_model::{
    Action, Block, DomainPattern, Peer, Policy, PolicyId, PolicyKind, PolicyRule, PortMatch,
    PortRange, PortSpec, Protocol, Requirement, Scope, Selector, Spec, Subject, Tier, Who,
};

use super::cursor::Cursor;
use crate::{
    policy::{no_pass, rule::make_valid},
    pool,
};

/// The kind of policy that a rule is for.
#[derive(Clone, Copy)]
enum RuleForm {
    Namespace,
    AdminIngress,
    AdminEgress,
}

pub(super) fn policy(cursor: &mut Cursor<'_>) -> Policy {
    let (id, tier) = id(cursor);
    let (scope, forms) = match tier {
        Tier::Namespace => (Scope::Own, [RuleForm::Namespace, RuleForm::Namespace]),
        _ => (Scope::Matching(namespaces(cursor)), [RuleForm::AdminIngress, RuleForm::AdminEgress]),
    };
    let subject = Subject { scope, pods: selector(cursor) };
    let [mut ingress, mut egress] = forms.map(|form| {
        cursor.maybe(|cursor| {
            let mut index = 0..;
            cursor.list(3, |cursor| rule(cursor, form, index.next().unwrap_or_default()))
        })
    });
    if id.kind == PolicyKind::BaselineAdminNetworkPolicy {
        [&mut ingress, &mut egress].into_iter().flatten().for_each(|rules| no_pass(rules));
    }
    Policy {
        id,
        location: None,
        spec: Arc::new(Spec { tier, subject, ingress, egress }),
        staged: false,
    }
}

pub(super) fn id(cursor: &mut Cursor<'_>) -> (PolicyId, Tier) {
    let id = |kind, namespace, name| PolicyId { kind, namespace, name };
    let kind = cursor.below(8);
    let name = cursor.name(if kind < 4 { pool::POLICIES } else { pool::CLUSTER_POLICIES });
    match kind {
        0..4 => {
            let namespace = cursor.name(pool::NAMESPACES);
            (id(PolicyKind::NetworkPolicy, namespace, name), Tier::Namespace)
        }
        4 => {
            let priority = priority(cursor);
            (id(PolicyKind::AdminNetworkPolicy, "".into(), name), Tier::Admin { priority })
        }
        5 => {
            let kind = PolicyKind::BaselineAdminNetworkPolicy;
            (id(kind, "".into(), "default".into()), Tier::Baseline { priority: 1001 })
        }
        kind => {
            let priority = priority(cursor);
            let tier =
                if kind == 6 { Tier::Admin { priority } } else { Tier::Baseline { priority } };
            (id(PolicyKind::ClusterNetworkPolicy, "".into(), name), tier)
        }
    }
}

fn priority(cursor: &mut Cursor<'_>) -> u32 {
    cursor.one_of(pool::PRIORITIES)
}

fn rule(cursor: &mut Cursor<'_>, form: RuleForm, index: u32) -> PolicyRule {
    let action = match form {
        RuleForm::Namespace => Action::Allow,
        _ => cursor.one_of(&[Action::Allow, Action::Deny, Action::Pass]),
    };
    let peers = cursor.maybe(|cursor| {
        let mut index = 0..;
        cursor.list(3, |cursor| Peer {
            index: index.next().unwrap_or_default(),
            line: 0,
            who: who(cursor, form),
        })
    });
    let ports = cursor
        .maybe(|cursor| cursor.list(3, |cursor| PortSpec { line: 0, ports: port_match(cursor) }));
    make_valid(PolicyRule { index, name: None, line: 0, action, peers, ports })
}

fn who(cursor: &mut Cursor<'_>, form: RuleForm) -> Who {
    let choice = match form {
        RuleForm::Namespace => cursor.below(3),
        RuleForm::AdminIngress => 1,
        RuleForm::AdminEgress => 1 + cursor.below(4),
    };
    match choice {
        0 => Who::Pods { scope: Scope::Own, pods: selector(cursor) },
        1 => Who::Pods { scope: Scope::Matching(namespaces(cursor)), pods: selector(cursor) },
        2 => Who::Block(block(cursor)),
        3 => Who::Nodes(selector(cursor)),
        _ => {
            let shape = cursor.one_of(&[DomainPattern::Exact, DomainPattern::Under]);
            Who::Domain(shape(cursor.name(pool::DOMAINS)))
        }
    }
}

fn namespaces(cursor: &mut Cursor<'_>) -> Selector {
    match cursor.below(4) {
        3 => {
            let name = cursor.name(pool::NAMESPACES);
            [Requirement::equals("kubernetes.io/metadata.name", name)].into_iter().collect()
        }
        _ => selector(cursor),
    }
}

fn selector(cursor: &mut Cursor<'_>) -> Selector {
    cursor.list(2, requirement).into_iter().collect()
}

fn requirement(cursor: &mut Cursor<'_>) -> Requirement {
    let shape = cursor.below(6);
    let key = cursor.name(pool::LABEL_KEYS);
    let value = |cursor: &mut Cursor<'_>| cursor.name(pool::LABEL_VALUES);
    match shape {
        0 | 1 => Requirement::equals(key, value(cursor)),
        2 => Requirement::In(key, [value(cursor), value(cursor)].into()),
        3 => Requirement::NotIn(key, [value(cursor), value(cursor)].into()),
        4 => Requirement::Exists(key),
        _ => Requirement::Absent(key),
    }
}

fn block(cursor: &mut Cursor<'_>) -> Block {
    let net = pool::net(cursor.one_of(pool::NETS));
    let except = cursor.list(4, |cursor| pool::net(cursor.one_of(pool::NETS)));
    pool::block(net, except)
}

fn port_match(cursor: &mut Cursor<'_>) -> PortMatch {
    let shape = cursor.below(5);
    let protocol = cursor.one_of(&Protocol::ALL);
    let number = |cursor: &mut Cursor<'_>| cursor.one_of(pool::PORTS);
    match shape {
        0 => PortMatch::Range(PortRange::one(protocol, number(cursor))),
        1 => {
            let (a, b) = (number(cursor), number(cursor));
            PortMatch::Range(PortRange { protocol, first: a.min(b), last: a.max(b) })
        }
        2 => PortMatch::Range(PortRange::all(protocol)),
        3 => PortMatch::Named { name: cursor.name(pool::PORT_NAMES), protocol: Some(protocol) },
        _ => PortMatch::Named { name: cursor.name(pool::PORT_NAMES), protocol: None },
    }
}
