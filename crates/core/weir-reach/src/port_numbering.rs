//! Lists of ports to evaluate, numbered so that they are cheap to compare.

use std::{collections::HashMap, rc::Rc};

use weir_model::PortRange;

use crate::evaluator::Evaluator;

/// Ports to evaluate, each with the index of its slice; equal lists have one number.
pub(crate) type NumberedPorts = (usize, Rc<[(PortRange, usize)]>);

/// All lists of ports that are evaluated.
#[derive(Default)]
pub(crate) struct PortNumbering {
    lists: HashMap<Option<Vec<PortRange>>, NumberedPorts>,
}

impl PortNumbering {
    /// The list with its number. `None` stands for all ports.
    pub(crate) fn list(
        &mut self,
        evaluator: &Evaluator<'_>,
        ports: Option<Vec<PortRange>>,
    ) -> NumberedPorts {
        let number = self.lists.len();
        let list = self.lists.entry(ports).or_insert_with_key(|ports| {
            let slices = evaluator.slices();
            let mut ports = match ports {
                None => slices.to_vec(),
                Some(ports) => {
                    let (whole, mut some): (Vec<PortRange>, Vec<PortRange>) =
                        ports.iter().partition(|port| port.first == 0);
                    let is_asked = |slice: &&PortRange| {
                        whole.iter().any(|whole| whole.protocol == slice.protocol)
                    };
                    some.extend(slices.iter().filter(is_asked));
                    some
                }
            };
            ports.sort();
            ports.dedup();
            (number, ports.into_iter().map(|port| (port, evaluator.slice(port))).collect())
        });
        list.clone()
    }
}
