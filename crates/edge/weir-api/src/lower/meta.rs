use weir_model::{Labels, Location, Name, ObjectRef, Severity};

use super::{LowerContext, PathStep, selector};
use crate::{
    check,
    document::{Tree, TreeValue, quote},
};

/// The metadata of an object.
pub(crate) struct Meta {
    pub(crate) name: Option<Name>,
    /// `default` if none is given (S2).
    pub(crate) namespace: Name,
    pub(crate) labels: Labels,
    pub(crate) location: Option<Location>,
    /// Seconds since 1970, 0 if unknown.
    pub(crate) born: u64,
    /// The uid, if given.
    pub(crate) uid: Option<Name>,
    /// Kind (lower case) and name of the owners.
    pub(crate) owners: Vec<(Name, Name)>,
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
    let namespace = match home {
        Home::Namespace => text("namespace").unwrap_or("default"),
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
    let generated_for = controller.and_then(|owner| {
        let kind = owner.get("kind")?.text()?;
        let name = owner.get("name")?.text()?;
        Some(ctx.name(&format!("{kind} {namespace}/{name}")))
    });
    let owners = references.iter().filter_map(|owner| {
        let kind = owner.get("kind")?.text()?.to_lowercase();
        let name = owner.get("name")?.text()?;
        Some((ctx.name(&kind), ctx.name(name)))
    });
    let owners = owners.collect();
    Meta {
        name: name.map(|name| ctx.name(name)),
        namespace: ctx.name(namespace),
        labels,
        location: ctx.location(tree.line),
        born: text("creationTimestamp").and_then(seconds).unwrap_or(0),
        uid: metadata
            .get("uid")
            .and_then(Tree::text)
            .filter(|uid| !uid.is_empty())
            .map(|uid| ctx.name(uid)),
        owners,
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

/// Seconds since 1970 of an RFC 3339 time, as in `2024-05-01T12:00:00Z`.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let is = |at: usize, any: &[u8]| text.as_bytes().get(at).is_some_and(|b| any.contains(b));
    let separated = is(4, b"-") && is(7, b"-") && is(10, b"Tt") && is(13, b":") && is(16, b":");
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let in_range = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !separated || !in_range {
        return None;
    }
    let fraction = text.get(19..)?;
    let zone = match fraction.strip_prefix('.') {
        Some(digits) => digits.trim_start_matches(|c: char| c.is_ascii_digit()),
        None => fraction,
    };
    let offset = match zone.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), rest @ ..] if rest.len() == 5 && rest[2] == b':' => {
            let part = |at: usize| std::str::from_utf8(&rest[at..at + 2]).ok()?.parse::<i64>().ok();
            let minutes = part(0)? * 60 + part(3)?;
            if *sign == b'+' { minutes } else { -minutes }
        }
        _ => return None,
    };
    // Years count from March, so that the leap day is the last day of a year.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    u64::try_from(days * 86_400 + hour * 3_600 + (minute - offset) * 60 + second).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_3339_times_become_seconds() {
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(seconds("2024-02-29T12:30:15Z"), Some(1_709_209_815));
        assert_eq!(seconds("2024-02-29T12:30:15.123+01:30"), Some(1_709_209_815 - 5400));
        for bad in [
            "",
            "yesterday",
            "2024-13-01T00:00:00Z",
            "2024-01-01",
            "1969-01-01T00:00:00Z",
            "2024-01-01T00:00:00",
        ] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
