//! The maps and programs as text.

use std::fmt;

use weir_datapath::{Mode, Planner};
use weir_model::{Delta, IpFamily, Program};

use crate::{
    EbpfPlanner, Tables,
    program::{self, Features, TickClock},
};

/// The content of the maps for a program, and the instructions that look it up.
#[derive(Clone, Debug)]
pub struct Rendered(Tables);

/// The printed programs are for a kernel with conntrack and 250 ticks in a second, as most have.
const FEATURES: Features = Features { conntrack: true, clock: TickClock::with_rate(250) };

/// The maps of an agent that starts with a program, and the programs.
pub fn render(program: &Program) -> Rendered {
    let mut planner = EbpfPlanner::new(Mode::Enforce, [0; 16]);
    planner.plan(program, &Delta::from(program));
    Rendered(planner.tables().clone())
}

impl fmt::Display for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for write in self.0.writes() {
            writeln!(f, "{write}")?;
        }
        for family in IpFamily::BOTH {
            writeln!(f, "\nprogram for {family}:")?;
            let program = program::program(family, FEATURES);
            let mut slot = 0;
            for instruction in program {
                writeln!(f, "{slot:5}: {instruction}")?;
                slot += instruction.slots();
            }
        }
        Ok(())
    }
}
