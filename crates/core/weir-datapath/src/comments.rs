//! Comments of kernel objects, for human readers.

use std::sync::Arc;

use weir_model::{Chain, PolicyId, Section};

/// The most policies that a comment names.
pub const MAX_POLICY_NAMES: usize = 3;

/// The policies that select a pod in one direction.
pub fn isolated_by(rules: &Chain) -> String {
    let isolation = rules.isolation.iter().flatten();
    let sections = || rules.admin.iter().chain(isolation.clone()).chain(&rules.baseline);
    if sections().next().is_none() {
        return "isolated".to_owned();
    }
    format!("isolated by {}", policy_names(sections()))
}

/// The names of the first policies, and the number of the others.
pub fn policy_names<'a>(sections: impl IntoIterator<Item = &'a Arc<Section>>) -> String {
    let mut sections = sections.into_iter();
    let first = sections.by_ref().take(MAX_POLICY_NAMES);
    let first: Vec<String> = first.map(|section| policy_name(&section.policy)).collect();
    match sections.count() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// The name of a policy, after its namespace if it has one.
pub fn policy_name(policy: &PolicyId) -> String {
    match &*policy.namespace {
        "" => policy.name.to_string(),
        namespace => format!("{namespace}/{}", policy.name),
    }
}
