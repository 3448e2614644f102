//! What selectors say about labels and about each other.

use weir_model::{Labels, Requirement, Selector};

/// Whether the labels meet every requirement.
pub(crate) fn matches(selector: &Selector, labels: &Labels) -> bool {
    selector.requirements().iter().all(|requirement| meets(requirement, labels))
}

/// Whether the labels meet one requirement.
pub(crate) fn meets(requirement: &Requirement, labels: &Labels) -> bool {
    let value = labels.value(requirement.key());
    match requirement {
        Requirement::In(_, values) => value.is_some_and(|value| values.contains(value)),
        Requirement::NotIn(_, values) => value.is_none_or(|value| !values.contains(value)),
        Requirement::Exists(_) => value.is_some(),
        Requirement::Absent(_) => value.is_none(),
    }
}

/// Whether `wide` holds wherever `narrow` does. May miss a case, never invents one.
pub(crate) fn covers(wide: &Selector, narrow: &Selector) -> bool {
    wide.requirements()
        .iter()
        .all(|wanted| narrow.requirements().iter().any(|given| implies(given, wanted)))
}

fn implies(given: &Requirement, wanted: &Requirement) -> bool {
    use Requirement::{Absent, Exists, In, NotIn};
    if given.key() != wanted.key() {
        return false;
    }
    match (given, wanted) {
        (In(_, given), In(_, wanted)) => given.is_subset(wanted),
        (In(_, given), NotIn(_, wanted)) => given.is_disjoint(wanted),
        (In(..) | Exists(_), Exists(_)) | (Absent(_), Absent(_) | NotIn(..)) => true,
        (NotIn(_, given), NotIn(_, wanted)) => wanted.is_subset(given),
        _ => false,
    }
}

/// Two requirements that can never hold together (or one that never holds: then it comes twice).
pub(crate) fn contradiction<'s>(
    selectors: &[&'s Selector],
) -> Option<(&'s Requirement, &'s Requirement)> {
    let all: Vec<&Requirement> = selectors.iter().flat_map(|s| s.requirements()).collect();
    let pairs =
        all.iter().enumerate().flat_map(|(at, one)| all[at..].iter().map(|two| (*one, *two)));
    pairs.into_iter().find(|(one, two)| clash(one, two) || clash(two, one))
}

fn clash(one: &Requirement, two: &Requirement) -> bool {
    use Requirement::{Absent, Exists, In, NotIn};
    if one.key() != two.key() {
        return false;
    }
    match (one, two) {
        (In(_, one), In(_, two)) => one.is_disjoint(two),
        (In(_, one), NotIn(_, two)) => one.is_subset(two),
        (In(..) | Exists(_), Absent(_)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(text: &str) -> Selector {
        let value = |text: &str| text.split('|').map(Into::into).collect();
        text.split_terminator(',')
            .map(|part| {
                match (part.split_once("!="), part.split_once('='), part.strip_prefix('!')) {
                    (Some((key, values)), ..) => Requirement::NotIn(key.into(), value(values)),
                    (_, Some((key, values)), _) => Requirement::In(key.into(), value(values)),
                    (_, _, Some(key)) => Requirement::Absent(key.into()),
                    _ => Requirement::Exists(part.into()),
                }
            })
            .collect()
    }

    #[test]
    fn a_selector_covers_what_asks_for_more() {
        for (wide, narrow) in [
            ("", "a=1"),
            ("a", "a=1"),
            ("a=1|2", "a=1,b=2"),
            ("a!=3", "a=1"),
            ("a!=3", "!a"),
            ("a!=3", "a!=3|4"),
        ] {
            assert!(covers(&selector(wide), &selector(narrow)), "{wide} covers {narrow}");
            assert!(!covers(&selector(narrow), &selector(wide)), "{narrow} does not cover {wide}");
        }
    }

    #[test]
    fn contradictions_are_seen() {
        for text in ["a=1,a=2", "a=1,a!=1", "a=1,!a", "a,!a"] {
            assert!(contradiction(&[&selector(text)]).is_some(), "{text}");
        }
        for text in ["", "a=1", "a=1|2,a=2", "a!=1,a!=2", "a,b=1", "a!=1,!a"] {
            assert!(contradiction(&[&selector(text)]).is_none(), "{text}");
        }
    }
}
