//! Sources of a matrix that are not rows of pods.

use std::{collections::BTreeMap, net::IpAddr};

use weir_model::{PodId, PortRange};

use crate::{
    MatrixQuery,
    evaluator::{EndClass, Evaluator},
    matrix::{Line, outside_classes},
    networks::LineNetworks,
    partition::{Partition, ReachEnd},
    port_numbering::NumberedPorts,
};

/// A source that connects only to some ports of some pods, such as an ingress controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSource {
    /// The name of its row.
    pub name: String,
    /// Its pods. Without any, all that is outside the cluster stands for them.
    pub pods: Vec<PodId>,
    /// The ports that it connects to.
    pub targets: BTreeMap<PodId, Vec<PortRange>>,
}

impl MatrixQuery<'_> {
    /// The line of a named source.
    pub(crate) fn source_line<'p>(
        &'p self,
        evaluator: &mut Evaluator<'p>,
        partition: &'p Partition,
        source: &NamedSource,
        ports: NumberedPorts,
    ) -> Line<'p> {
        let classes = self.source_classes(evaluator, partition, source);
        let networks = match &source.pods[..] {
            [] => LineNetworks::outside(),
            pods => LineNetworks::new(self.attachments, pods),
        };
        Line::without_pods(classes, ports, networks)
    }

    /// The classes of a named source. A host network pod has the addresses of its node.
    fn source_classes<'p>(
        &self,
        evaluator: &mut Evaluator<'p>,
        partition: &'p Partition,
        source: &NamedSource,
    ) -> Vec<EndClass<'p>> {
        let mut classes = Vec::new();
        for group in &partition.groups {
            let pods: Vec<&PodId> =
                group.pods.iter().filter(|id| source.pods.contains(id)).collect();
            if !pods.is_empty() {
                classes.push(evaluator.class(pods.into_iter().map(ReachEnd::Pod)));
            }
        }
        let pods = source.pods.iter().filter_map(|id| self.state.world.pods.get(id));
        let of_nodes: Vec<IpAddr> =
            pods.flat_map(|pod| pod.node_addresses().iter().copied()).collect();
        for class in &partition.outside {
            let has = |address: &IpAddr| class.nets.iter().any(|net| net.contains(address));
            if class.name.is_some() && of_nodes.iter().any(has) {
                classes.push(evaluator.class([ReachEnd::Outside(class)]));
            }
        }
        if classes.is_empty() { outside_classes(evaluator, partition) } else { classes }
    }
}
