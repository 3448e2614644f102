//! A Memcached. It is not an object of the model, but requests a NetworkPolicy from its operator.

use std::{collections::BTreeSet, sync::Arc};

use weir_model::{
    Action, Peer, Policy, PolicyId, PolicyKind, PolicyRule, PortMatch, PortRange, PortSpec,
    Protocol, Requirement, Scope, Selector, Severity, Spec, Subject, Tier,
};

use super::{Fields, Home, LowerContext, Lowered, check_version, meta, network_policy};
use crate::{check, document::Tree};

/// The longest label value.
const LABEL: usize = 63;

/// The policy that a Memcached requests, and the errors in that request. The operator checks all
/// other fields.
///
/// An invalid Memcached isolates its pods and allows nothing.
pub(crate) fn lower(ctx: &mut LowerContext, tree: &Tree, version: Option<&str>) -> Option<Lowered> {
    const VERSIONS: [&str; 2] = ["memcached.c5c3.io/v1alpha1", "memcached.c5c3.io/v1beta1"];
    let meta = meta(ctx, tree, "Memcached", Home::Namespace, check::dns_subdomain);
    check_version(ctx, tree, version, &VERSIONS);
    let spec = tree.get("spec")?;
    let requested = ctx.at("spec", |ctx| {
        let spec = ctx.open_fields(spec, &["monitoring", "security"]);
        let monitoring = part(ctx, &spec, "monitoring", &["enabled"], is_on);
        part(ctx, &spec, "security", &["tls", "networkPolicy"], |ctx, security| {
            let tls = part(ctx, security, "tls", &["enabled"], tls);
            let is_monitored = monitoring == Some(true);
            let policy = security.get("networkPolicy")?;
            ctx.at("networkPolicy", |ctx| {
                let policy = ctx.fields(policy, &["enabled", "allowedSources"]);
                let protection = Protection { tls: tls.unwrap_or_default(), is_monitored };
                network_policy_of(ctx, &policy, &protection)
            })
        })
    });
    let requested = requested.flatten();
    let name = meta.name?;
    if requested.is_some() && name.len() > LABEL {
        let message = format!(
            "the name has {} characters, but the label app.kubernetes.io/instance allows only {LABEL}",
            name.len()
        );
        let line = tree.path(&["metadata", "name"]).map_or(tree.line, |name| name.line);
        ctx.at("metadata", |ctx| {
            ctx.at("name", |ctx| ctx.invalid(line, message, "choose a shorter name"));
        });
    }
    let rules = match requested {
        // The error may be a misspelt request.
        _ if ctx.invalid || ctx.has_errors => Vec::new(),
        Some(rule) => vec![rule],
        None => return None,
    };
    let labels =
        [("name", "memcached"), ("instance", &*name), ("managed-by", "memcached-operator")];
    let labels = labels.map(|(key, value)| {
        let key = ctx.name(&format!("app.kubernetes.io/{key}"));
        Requirement::In(key, BTreeSet::from([ctx.name(value)]))
    });
    let subject = Subject { scope: Scope::Own, pods: labels.into_iter().collect::<Selector>() };
    let spec = Spec { tier: Tier::Namespace, subject, ingress: Some(rules), egress: None };
    let by = ctx.name(&format!("Memcached {}/{name}", meta.namespace));
    let id = PolicyId { kind: PolicyKind::NetworkPolicy, namespace: meta.namespace, name };
    let policy = Policy { id, location: meta.location, spec: Arc::new(spec), staged: false };
    Some(Lowered::Requested { policy, by })
}

/// The other fields that matter for the policy.
struct Protection {
    tls: Tls,
    is_monitored: bool,
}

/// The line that enables TLS; none if it is disabled.
#[derive(Clone, Copy, Default)]
struct Tls {
    line: Option<u32>,
}

/// Reads a part of a mapping, if it exists. It may have further fields for the operator.
fn part<T>(
    ctx: &mut LowerContext,
    fields: &Fields,
    name: &'static str,
    known: &[&'static str],
    read: impl FnOnce(&mut LowerContext, &Fields) -> T,
) -> Option<T> {
    let tree = fields.get(name)?;
    Some(ctx.at(name, |ctx| {
        let fields = ctx.open_fields(tree, known);
        read(ctx, &fields)
    }))
}

fn is_on(ctx: &mut LowerContext, fields: &Fields) -> bool {
    let enabled = fields.get("enabled");
    enabled.and_then(|tree| ctx.at("enabled", |ctx| ctx.boolean(tree))) == Some(true)
}

fn tls(ctx: &mut LowerContext, fields: &Fields) -> Tls {
    if !is_on(ctx, fields) {
        return Tls::default();
    }
    let name = fields.get("certificateSecretRef").and_then(|secret| secret.get("name"));
    if name.and_then(Tree::text).is_none_or(str::is_empty) {
        ctx.at("certificateSecretRef", |ctx| {
            let message = "TLS is enabled without a certificate, so no client can use it";
            let hint = "name the Secret with tls.crt and tls.key in certificateSecretRef.name";
            ctx.find("memcached-no-certificate", Severity::Warning, fields.line, message, hint);
        });
    }
    Tls { line: fields.line_of("enabled") }
}

/// The rule of the requested policy, if one is requested.
fn network_policy_of(
    ctx: &mut LowerContext,
    fields: &Fields,
    protection: &Protection,
) -> Option<PolicyRule> {
    let is_requested = is_on(ctx, fields);
    let sources = fields.get("allowedSources");
    let line = fields.line_of("allowedSources").unwrap_or(fields.line);
    let peers: Option<Vec<Peer>> = sources
        .and_then(|sources| ctx.at("allowedSources", |ctx| ctx.each(sources, network_policy::peer)))
        .filter(|peers| !peers.is_empty());
    let count = sources.map_or(0, |sources| sources.items().len());
    match (is_requested, sources, count) {
        (false, Some(_), 1..) => ctx.at("enabled", |ctx| {
            let message = "there are allowedSources, but the NetworkPolicy is not enabled: all pods can connect";
            let hint = "write `enabled: true`";
            ctx.find("memcached-unprotected", Severity::Warning, line, message, hint);
        }),
        (true, Some(_), 0) => ctx.at("allowedSources", |ctx| {
            let message = "an empty list of allowedSources allows everyone, not no one";
            let hint = "list the allowed sources, or remove the list to allow everyone";
            ctx.find("memcached-everyone", Severity::Warning, line, message, hint);
        }),
        (true, None, _) => ctx.at("allowedSources", |ctx| {
            let message =
                "the NetworkPolicy closes other ports, but everyone can connect to these";
            let hint = "list the allowed sources in allowedSources";
            ctx.find("memcached-everyone", Severity::Info, line, message, hint);
        }),
        _ => (),
    }
    if let (true, 0, Some(line)) = (is_requested, count, protection.tls.line) {
        let message =
            "TLS opens port 11212 and does not close 11211, and everyone can connect to both";
        let hint = "list the allowed sources in allowedSources, which applies to both ports";
        ctx.find("memcached-plaintext", Severity::Warning, line, message, hint);
    }
    if is_requested && protection.is_monitored && count > 0 {
        ctx.at("allowedSources", |ctx| {
            let message = "these sources also apply to the metrics at port 9150";
            let hint =
                "make sure that Prometheus is among them; every source can also connect to memcached";
            ctx.find("memcached-metrics", Severity::Info, line, message, hint);
        });
    }
    let has_tls = protection.tls.line.is_some();
    let ports = [(11211, true), (11212, has_tls), (9150, protection.is_monitored)];
    let ports = ports.into_iter().filter(|(_, is_open)| *is_open).map(|(port, _)| PortSpec {
        line: fields.line,
        ports: PortMatch::Range(PortRange::one(Protocol::Tcp, port)),
    });
    is_requested.then(|| PolicyRule {
        index: 0,
        name: None,
        line: fields.line,
        action: Action::Allow,
        peers,
        ports: Some(ports.collect()),
    })
}
