use weir_model::{Labels, Location, Name, ObjectRef, Severity};

use super::{LowerContext, PathStep, selector, workload_kind};
use crate::{
    check,
    document::{Tree, TreeValue, quote},
};

/// The metadata of an object.
pub(crate) struct Meta {
    pub(crate) name: Option<Name>,
    /// The default namespace if none is given (S2).
    pub(crate) namespace: Name,
    pub(crate) labels: Labels,
    pub(crate) location: Option<Location>,
    /// The object is being deleted.
    pub(crate) terminating: bool,
    /// The uid, if given.
    pub(crate) uid: Option<Name>,
    /// Kind (lower case) and name of the owners.
    pub(crate) owners: Vec<(Name, Name)>,
    /// Kind, as written, and name of the owner that controls it.
    pub(crate) controller: Option<(Name, Name)>,
    /// The object that a controller generated it for, by kind and name.
    pub(crate) generated_for: Option<Name>,
}

/// A check of names.
pub(crate) type NameRule = fn(&str) -> Result<(), String>;

/// Whether objects of a kind have a namespace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    Namespace,
    Cluster,
}

/// The code of a finding about a policy whose namespace is uncertain.
pub(crate) const MISPLACED: &str = "misplaced-policy";

/// The fields of `metadata`.
const FIELDS: [&str; 17] = [
    "name",
    "generateName",
    "namespace",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "resourceVersion",
    "uid",
    "selfLink",
    "clusterName",
    "initializers",
];

/// Reads `metadata`. Findings name the object from here on.
///
/// A name or namespace that is not a string is used as written, so that the object keeps its
/// intended place.
pub(crate) fn meta(
    ctx: &mut LowerContext,
    tree: &Tree,
    kind: &str,
    home: Home,
    rule: NameRule,
) -> Meta {
    let none = Tree::null(tree.line);
    let metadata = tree.get("metadata").unwrap_or(&none);
    let text =
        |key: &str| metadata.get(key).and_then(Tree::written).filter(|text| !text.is_empty());
    let default_namespace = ctx.default_namespace.clone();
    let namespace = match home {
        Home::Namespace => text("namespace").unwrap_or(&default_namespace),
        Home::Cluster => "",
    };
    let generated = text("generateName").map(|prefix| format!("{prefix}{}", tree.line));
    let name = text("name").or(generated.as_deref());
    ctx.about(ObjectRef {
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.unwrap_or("without a name").into(),
    });
    ctx.at("metadata", |ctx| {
        if kind.ends_with("NetworkPolicy") {
            policy_fields(ctx, tree, metadata, home);
        } else {
            ctx.tolerating_unknown(|ctx| ctx.fields(metadata, &FIELDS));
        }
    });
    ctx.at("metadata", |ctx| {
        if !matches!(metadata.value, TreeValue::Map(_) | TreeValue::Null) {
            return;
        }
        for key in ["name", "generateName", "namespace"] {
            if let Some(value) = metadata.get(key) {
                ctx.at(key, |ctx| ctx.text(value));
            }
        }
        let is_text = |key: &str| metadata.get(key).is_none_or(|value| value.text().is_some());
        match (text("name"), &generated) {
            (Some(name), _) if is_text("name") => {
                let line = metadata.get("name").map_or(metadata.line, |name| name.line);
                ctx.at("name", |ctx| fits(ctx, name, line, rule));
            }
            (None, None) if is_text("name") => ctx.at("name", |ctx| {
                ctx.invalid(metadata.line, "the object needs a name", "add `name:`");
            }),
            _ => (),
        }
        if home == Home::Namespace && is_text("namespace") {
            let line = metadata.get("namespace").map_or(metadata.line, |namespace| namespace.line);
            ctx.at("namespace", |ctx| fits(ctx, namespace, line, check::dns_label));
        }
    });
    let labels = match metadata.get("labels") {
        None => Labels::default(),
        Some(labels) => {
            ctx.at("metadata", |ctx| ctx.at("labels", |ctx| selector::labels(ctx, labels)))
        }
    };
    let references = metadata.get("ownerReferences").map_or(&[][..], Tree::items);
    let is_true = |tree: &Tree| matches!(tree.value, TreeValue::Bool(true, _));
    let controller = references.iter().find(|owner| owner.get("controller").is_some_and(is_true));
    let controller =
        controller.and_then(|owner| Some((owner.get("kind")?.text()?, owner.get("name")?.text()?)));
    let generated_for = controller.map(|(kind, name)| format!("{kind} {namespace}/{name}").into());
    let controller = controller.map(|(kind, name)| (kind.into(), name.into()));
    let owners = references.iter().filter_map(|owner| {
        let kind = owner.get("kind")?.text()?;
        let version = owner.get("apiVersion").and_then(Tree::text).unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let name = owner.get("name")?.text()?;
        Some((workload_kind(kind, group).into(), name.into()))
    });
    let owners = owners.collect();
    // No other object has the same name or uid, so they are not interned.
    Meta {
        name: name.map(Name::from),
        namespace: ctx.name(namespace),
        labels,
        location: ctx.location(tree.line),
        terminating: text("deletionTimestamp").is_some_and(|time| !time.is_empty()),
        uid: metadata.get("uid").and_then(Tree::text).filter(|uid| !uid.is_empty()).map(Name::from),
        owners,
        controller,
        generated_for,
    }
}

/// Rejects a policy with an invalid field in its `metadata`, because that field may be its
/// namespace.
fn policy_fields(ctx: &mut LowerContext, tree: &Tree, metadata: &Tree, home: Home) {
    let fields = ctx.fields(metadata, &FIELDS);
    ctx.invalid |= !fields.clean;
    let is_known = match fields.get("namespace") {
        None => fields.clean,
        Some(namespace) => {
            let usable = |text: &str| text.is_empty() || check::dns_label(text).is_ok();
            namespace.text().is_some_and(usable) && !fields.is_repeated("namespace")
        }
    };
    let twice = tree.entries().iter().filter(|entry| &*entry.key == "metadata").count() > 1;
    if home == Home::Namespace && (twice || !is_known) {
        let message =
            "the namespace of the policy is invalid; weir uses the first one given, or default";
        let hint = "correct `metadata`, and write the namespace once";
        ctx.at("namespace", |ctx| {
            ctx.find(MISPLACED, Severity::Error, metadata.line, message, hint);
        });
    }
    if let Some(annotations) = fields.get("annotations") {
        ctx.at("annotations", |ctx| {
            ctx.any_fields(annotations);
            for entry in annotations.entries().iter().filter(|entry| !entry.value.is_null()) {
                ctx.at(PathStep::Key(entry.key.clone()), |ctx| ctx.text(&entry.value));
            }
        });
    }
}

fn fits(ctx: &mut LowerContext, name: &str, line: u32, rule: NameRule) {
    if let Err(expected) = rule(name) {
        let message = format!("{} is not a valid name: expected {expected}", quote(name));
        ctx.invalid(line, message, "correct the name");
    }
}
