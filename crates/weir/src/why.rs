//! What decided about a flow, in a line.

use weir_model::{Direction, Flow};

use crate::reach::State;

/// What decided about a flow, in a line.
pub(crate) fn line(state: &State, flow: &Flow) -> String {
    let sides: Vec<String> = [Direction::Egress, Direction::Ingress]
        .into_iter()
        .filter_map(|d| state.program.judged(flow, d).map(|(id, _)| format!("{d} of {id}")))
        .collect();
    sides.join(", ")
}
