use std::collections::BTreeSet;

use weir_model::{Labels, Name, Requirement, Selector};

use super::{LowerContext, PathStep};
use crate::{
    check,
    document::{MapEntry, Tree, quote},
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// A label selector. `None` if a part of it is invalid, because the rest alone would select more
/// than intended.
pub(crate) fn selector(ctx: &mut LowerContext, tree: &Tree) -> Option<Selector> {
    let fields = ctx.fields(tree, &["matchLabels", "matchExpressions"]);
    let equals = match fields.get("matchLabels") {
        None => Some(Vec::new()),
        Some(labels) => ctx.at("matchLabels", |ctx| {
            let (pairs, clean) = pairs(ctx, labels);
            clean.then(|| pairs.into_iter().map(|(k, v)| Requirement::equals(k, v)).collect())
        }),
    };
    let expressions = match fields.get("matchExpressions") {
        None => Some(Vec::new()),
        Some(list) => {
            ctx.at("matchExpressions", |ctx| ctx.each(list, |ctx, _, item| requirement(ctx, item)))
        }
    };
    fields.clean.then_some(())?;
    Some(equals?.into_iter().chain(expressions?).collect())
}

/// V8, L1 to L8.
fn requirement(ctx: &mut LowerContext, tree: &Tree) -> Option<Requirement> {
    let fields = ctx.fields(tree, &["key", "operator", "values"]);
    let key = ctx.at("key", |ctx| match fields.get("key") {
        Some(key) => {
            let text = ctx.text(key)?;
            key_fits(ctx, text, key.line).then(|| ctx.name(text))
        }
        None => {
            ctx.invalid(fields.line, "a label expression needs a key", "add `key:`");
            None
        }
    });
    let operator = ctx.at("operator", |ctx| match fields.get("operator") {
        Some(operator) => ctx.word(
            operator,
            &[
                ("In", Operator::In),
                ("NotIn", Operator::NotIn),
                ("Exists", Operator::Exists),
                ("DoesNotExist", Operator::DoesNotExist),
            ],
        ),
        None => {
            let hint = "add `operator:` with In, NotIn, Exists or DoesNotExist";
            ctx.invalid(fields.line, "a label expression needs an operator", hint);
            None
        }
    });
    let values = match fields.get("values") {
        None => Some(BTreeSet::new()),
        Some(list) => ctx.at("values", |ctx| {
            let values: Option<Vec<Name>> = ctx.each(list, |ctx, _, item| value(ctx, item));
            values.map(BTreeSet::from_iter)
        }),
    };
    fields.clean.then_some(())?;
    let (key, operator, values) = (key?, operator?, values?);
    let line = fields.get("values").map_or(fields.line, |values| values.line);
    let takes_values = matches!(operator, Operator::In | Operator::NotIn);
    if takes_values == values.is_empty() {
        let (message, hint) = if takes_values {
            ("In and NotIn need at least one value", "add `values:`")
        } else {
            ("Exists and DoesNotExist take no values", "remove `values:`")
        };
        ctx.at("values", |ctx| ctx.invalid(line, message, hint));
        return None;
    }
    Some(match operator {
        Operator::In => Requirement::In(key, values),
        Operator::NotIn => Requirement::NotIn(key, values),
        Operator::Exists => Requirement::Exists(key),
        Operator::DoesNotExist => Requirement::Absent(key),
    })
}

/// The labels of an object. Errors are reported, and the labels are kept as probably intended.
pub(crate) fn labels(ctx: &mut LowerContext, tree: &Tree) -> Labels {
    pairs(ctx, tree).0.into_iter().collect()
}

/// Keys and values, and whether the API server would accept all of them.
fn pairs(ctx: &mut LowerContext, tree: &Tree) -> (Vec<(Name, Name)>, bool) {
    let mut clean = ctx.any_fields(tree).clean;
    let entries = tree.entries();
    let mut pairs = Vec::with_capacity(entries.len());
    for entry in entries {
        let key_fits = is_string(ctx, entry) && key_fits(ctx, &entry.key, entry.line);
        let key = ctx.name(&entry.key);
        let value = ctx.at(PathStep::Key(entry.key.clone()), |ctx| {
            // Like the API server, treat null as the empty string.
            if entry.value.is_null() { Some(ctx.name("")) } else { value(ctx, &entry.value) }
        });
        clean &= key_fits && value.is_some();
        let meant = entry.value.written().map(|text| ctx.name(text));
        pairs.extend(value.or(meant).map(|value| (key, value)));
    }
    let distinct: BTreeSet<&Name> = pairs.iter().map(|(key, _)| key).collect();
    if distinct.len() < pairs.len() {
        // The document's reader reported a repeated key.
        ctx.invalid = true;
        clean = false;
    }
    (pairs, clean)
}

/// Reports a key such as `on`, which YAML reads as another key, so that the selector matches
/// nothing.
fn is_string(ctx: &mut LowerContext, entry: &MapEntry) -> bool {
    if let Some(written) = &entry.written {
        let is_boolean = ["true", "false"].contains(&&*entry.key);
        let what = if is_boolean { "boolean" } else { "number" };
        let message = format!(
            "expected a string key, found the {what} {written}, which means {}; quote it",
            entry.key
        );
        let hint = format!("write \"{written}\" in double quotes");
        ctx.at(PathStep::Key(written.clone()), |ctx| ctx.invalid(entry.line, message, hint));
    }
    entry.written.is_none()
}

fn key_fits(ctx: &mut LowerContext, key: &str, line: u32) -> bool {
    let expected = check::label_key(key);
    if let Err(expected) = &expected {
        let message = format!("{} is not a valid label key: expected {expected}", quote(key));
        ctx.invalid(line, message, "correct the key");
    }
    expected.is_ok()
}

fn value(ctx: &mut LowerContext, tree: &Tree) -> Option<Name> {
    let text = ctx.text(tree)?;
    match check::label_value(text) {
        Ok(()) => Some(ctx.name(text)),
        Err(expected) => {
            let message =
                format!("{} is not a valid label value: expected {expected}", quote(text));
            ctx.invalid(tree.line, message, "correct the value");
            None
        }
    }
}
