//! The size of the table for policies whose parts multiply.

use std::{collections::BTreeSet, sync::Arc};

use weir_engine::{Engine, Locality};
use weir_model::{Change, Direction, Program};
use weir_testkit::HostileShape;

/// The rules that a node gets for a policy of this size.
fn program(shape: HostileShape, direction: Direction, bytes: usize) -> Program {
    let mut reader = weir_api::ManifestReader::new();
    reader.read_file("hostile".into(), shape.manifests(direction, bytes).as_bytes());
    let manifests = reader.finish();
    assert_eq!(manifests.findings.first(), None, "{shape}");
    let mut program = Program::default();
    let mut engine = Engine::new(Locality::Node("here".into()));
    program.apply(engine.apply(manifests.objects.into_iter().map(Change::Put)));
    program
}

/// The size of all distinct sections, and of their sets.
fn size(program: &Program) -> usize {
    let rules = program.endpoints.values().map(|endpoint| &endpoint.rules);
    let chains = rules.flat_map(|rules| [&rules.ingress, &rules.egress]);
    let sections: Vec<_> = chains.flat_map(|chain| chain.isolation.iter().flatten()).collect();
    let mut seen = BTreeSet::new();
    let distinct = sections.into_iter().filter(|section| seen.insert(Arc::as_ptr(section)));
    let sections: usize = distinct.map(|section| section.cost()).sum();
    sections + program.sets.values().map(|members| 1 + members.len()).sum::<usize>()
}

/// The kernel's time to add sets grows with the square of their number.
#[test]
fn a_policy_needs_few_sets() {
    let sets = |shape, bytes| {
        let largest = Direction::BOTH
            .map(|direction| weir_nft::render(&program(shape, direction, bytes)).sets.len());
        largest.into_iter().max().unwrap_or_default()
    };
    for shape in HostileShape::ALL {
        let (small, large) = (sets(shape, 30_000), sets(shape, 150_000));
        assert!(small <= 100 && large <= 120, "{shape}: {small} and {large} sets");
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
    for shape in HostileShape::ALL {
        for direction in Direction::BOTH {
            let program = program(shape, direction, 100_000);
            let (size, objects) = (size(&program), objects(&program));
            assert!(objects <= 6 * size + 1_000, "{shape}, {direction}: {size}, {objects} objects");
        }
    }
}

/// Named ports of peers are sets, and their number too is proportional to the policy.
#[test]
fn the_rules_are_as_large_as_the_policy() {
    for shape in HostileShape::ALL {
        for direction in Direction::BOTH {
            let bytes = 100_000;
            let size = size(&program(shape, direction, bytes));
            assert!(size <= bytes / 10, "{shape}, {direction}: {size}");
        }
    }
}
