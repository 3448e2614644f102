//! A plan: groups of writes to maps, or new maps.

use std::fmt;

use weir_datapath::Plan;

use crate::tables::{Tables, Write};

/// The steps to a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapPlan {
    /// The steps in order.
    pub steps: Vec<MapStep>,
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapStep {
    /// Installs programs with new maps of a capacity, and then removes the old ones.
    Replace(Box<Tables>, u32),
    /// Changes an element of a map.
    Write(Write),
    /// Waits until every packet that may have read an old element has been filtered.
    Wait,
}

impl Plan for MapPlan {
    fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl fmt::Display for MapPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            match step {
                MapStep::Replace(tables, _) => {
                    writeln!(f, "install the programs with new maps:")?;
                    for write in tables.writes() {
                        writeln!(f, "  {write}")?;
                    }
                }
                MapStep::Write(write) => writeln!(f, "{write}")?,
                MapStep::Wait => writeln!(f, "wait for packets in flight")?,
            }
        }
        Ok(())
    }
}
