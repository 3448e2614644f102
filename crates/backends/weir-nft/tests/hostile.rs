//! The size of the table for policies whose parts multiply.

use std::{collections::BTreeSet, sync::Arc};

use weir_engine::{Engine, Locality};
use weir_model::{Change, Direction, Program};
use weir_testkit::{HostileAdminShape, HostileShape};

/// A policy of this size: its name, and the rules that a node gets for it.
type Hostile = (String, Program);

/// Policies of all shapes.
fn all_shapes(bytes: usize) -> impl Iterator<Item = Hostile> {
    let policies = HostileShape::ALL.into_iter().flat_map(move |shape| {
        let manifests = move |direction| shape.manifests(direction, bytes);
        Direction::BOTH.map(|direction| (format!("{shape}, {direction}"), manifests(direction)))
    });
    let admin = HostileAdminShape::ALL.into_iter().flat_map(move |shape| {
        let directions = shape.directions().iter().copied();
        directions.map(move |direction| {
            (format!("{shape}, {direction}"), shape.manifests(direction, bytes))
        })
    });
    policies.chain(admin).map(|(name, manifests)| {
        let program = program(&name, &manifests);
        (name, program)
    })
}

fn program(name: &str, text: &str) -> Program {
    let mut reader = weir_api::ManifestReader::new();
    reader.read_file("hostile".into(), text.as_bytes());
    let manifests = reader.finish();
    assert_eq!(manifests.findings.first(), None, "{name}");
    let mut program = Program::default();
    let mut engine = Engine::new(Locality::Node("here".into()));
    program.apply(engine.apply(manifests.objects.into_iter().map(Change::Put)));
    program
}

/// The size of all distinct sections, and of their sets.
fn size(program: &Program) -> usize {
    let rules = program.endpoints.values().map(|endpoint| &endpoint.rules);
    let chains = rules.flat_map(|rules| [&rules.ingress, &rules.egress]);
    let sections = chains.flat_map(|chain| {
        let ordered = chain.admin.iter().chain(&chain.baseline);
        chain.isolation.iter().flatten().chain(ordered)
    });
    let mut seen = BTreeSet::new();
    let distinct = sections.filter(|section| seen.insert(Arc::as_ptr(section)));
    let sections: usize = distinct.map(|section| section.cost()).sum();
    sections + program.sets.values().map(|members| 1 + members.len()).sum::<usize>()
}

/// The kernel's time to add sets grows with the square of their number.
#[test]
fn a_policy_needs_few_sets() {
    let sets = |bytes| {
        let all = all_shapes(bytes);
        all.map(|(name, program)| (name, weir_nft::render(&program).sets.len()))
    };
    for ((name, small), (_, large)) in sets(30_000).zip(sets(150_000)) {
        assert!(small <= 110 && large <= 130, "{name}: {small} and {large} sets");
    }
}

/// The number of sets, elements, chains and rules.
fn objects(program: &Program) -> usize {
    let table = weir_nft::render(program);
    let sets = table.sets.values().map(|set| 1 + set.elements.len());
    let chains = table.chains.values().map(|chain| 1 + chain.rules.len());
    sets.chain(chains).sum()
}

/// The number of objects is proportional to the size of the policy, not to the product of its
/// parts. The factor has room for merged rules: `MergeLimit`.
#[test]
fn the_table_is_as_large_as_the_policy() {
    for (name, program) in all_shapes(100_000) {
        let (size, objects) = (size(&program), objects(&program));
        assert!(objects <= 6 * size + 1_000, "{name}: {size}, {objects} objects");
    }
}

/// Named ports of peers are sets, and their number too is proportional to the policy.
#[test]
fn the_rules_are_as_large_as_the_policy() {
    let bytes = 100_000;
    for (name, program) in all_shapes(bytes) {
        let size = size(&program);
        assert!(size <= bytes / 10, "{name}: {size}");
    }
}
