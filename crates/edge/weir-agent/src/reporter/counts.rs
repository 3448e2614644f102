use std::{collections::BTreeSet, sync::Arc};

use weir_model::{Program, RuleSet};

use crate::report::Counts;

/// The size of a program. Endpoints that share a rule set count its rules once.
pub(super) fn count(policies: usize, program: &Program) -> Counts {
    let mut seen = BTreeSet::new();
    let endpoints = program.endpoints.values();
    let distinct = endpoints.filter(|endpoint| seen.insert(Arc::as_ptr(&endpoint.rules)));
    let rules = |rules: &RuleSet| rules.ingress.rules().count() + rules.egress.rules().count();
    Counts {
        policies,
        endpoints: program.endpoints.len(),
        rules: distinct.map(|endpoint| rules(&endpoint.rules)).sum(),
        sets: program.sets.len(),
        members: program.sets.values().map(BTreeSet::len).sum(),
    }
}
