//! Laws that hold for any sequence of changes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

use proptest::{collection::vec, prelude::*};
use weir_datapath::{Memory, conformance};
use weir_engine::{Engine, Locality};
use weir_model::{Change, Delta, Program};

/// The deltas of an engine that receives five changes per batch.
fn deltas(changes: &[Change]) -> Vec<Delta> {
    let mut engine = Engine::new(Locality::Everywhere);
    changes.chunks(5).map(|batch| engine.apply(batch)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn memory_conforms(
        changes in weir_testkit::changes(60),
        flows in vec(weir_testkit::flow(), 1..20),
    ) {
        conformance::check(&mut Memory::default(), &deltas(&changes), &flows);
    }

    #[test]
    fn applying_the_undo_of_a_delta_restores_the_program(changes in weir_testkit::changes(60)) {
        let mut program = Program::default();
        for delta in deltas(&changes) {
            let before = program.clone();
            let undo = program.apply(delta.clone());
            let after = program.clone();
            let redo = program.apply(undo);
            prop_assert_eq!(&program, &before);
            program.apply(redo);
            prop_assert_eq!(&program, &after);
        }
    }
}
