//! Evaluates selectors and compares them with each other.

use std::collections::BTreeMap;

use weir_model::{Labels, Name, Requirement, Selector};

use crate::MAX_COMPARED;

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

/// Whether `wide` matches everything that `narrow` matches. It can miss a case, but never reports a
/// false one.
pub(crate) fn covers(wide: &Selector, narrow: &Selector) -> bool {
    let given = narrow.requirements();
    wide.requirements().iter().all(|wanted| {
        given.binary_search(wanted).is_ok()
            || given.iter().take(MAX_COMPARED).any(|given| implies(given, wanted))
    })
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

/// Two requirements that cannot both hold, or twice the same requirement if it alone cannot hold.
pub(crate) fn contradiction<'s>(
    selectors: &[&'s Selector],
) -> Option<(&'s Requirement, &'s Requirement)> {
    use Requirement::{Exists, In};
    // Only requirements on the same key conflict, and only if one of the two requires the key to
    // exist.
    let mut keys: BTreeMap<&Name, [Vec<&Requirement>; 2]> = BTreeMap::new();
    for requirement in selectors.iter().flat_map(|s| s.requirements()) {
        let requires = matches!(requirement, In(..) | Exists(_));
        keys.entry(requirement.key()).or_default()[usize::from(!requires)].push(requirement);
    }
    keys.values().find_map(|[requiring, excluding]| {
        if let Some(never) = requiring.iter().find(|one| clash(one, one)) {
            return Some((*never, *never));
        }
        let requiring = &requiring[..requiring.len().min(MAX_COMPARED)];
        requiring.iter().enumerate().find_map(|(at, one)| {
            let mut others = requiring[at..].iter().chain(excluding);
            others.find(|two| clash(one, two) || clash(two, one)).map(|two| (*one, *two))
        })
    })
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
    fn a_selector_covers_a_selector_with_more_requirements() {
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
    fn contradictions_are_found() {
        for text in ["a=1,a=2", "a=1,a!=1", "a=1,!a", "a,!a"] {
            assert!(contradiction(&[&selector(text)]).is_some(), "{text}");
        }
        for text in ["", "a=1", "a=1|2,a=2", "a!=1,a!=2", "a,b=1", "a!=1,!a"] {
            assert!(contradiction(&[&selector(text)]).is_none(), "{text}");
        }
    }

    #[test]
    fn long_selectors_are_compared_in_linear_time() {
        let long = |text: &str| (0..50_000).map(|n| format!("a{text}{n}")).collect::<Vec<_>>();
        let (not, one) = (long("!=").join(","), long("=1|").join(","));
        let (not, one) = (selector(&not), selector(&one));
        assert!(contradiction(&[&not]).is_none() && contradiction(&[&one]).is_none());
        assert!(contradiction(&[&not, &selector("a=7")]).is_some());
        assert!(covers(&not, &not) && covers(&one, &one) && !covers(&not, &one));
    }
}
