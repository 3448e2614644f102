use std::collections::BTreeMap;

use weir_model::{Change, Direction, Flow, Pod, Verdict, World};

use crate::{
    AciLimits, AciSettings, Evaluator, EvaluatorError, HostprotObject, Hpp, Netpol, NetpolLimits,
    render_within,
};

/// A cluster with the files of all nodes. It evaluates flows against these files.
#[derive(Debug)]
pub struct RenderedCluster {
    hpp: Hpp,
    files: Vec<Netpol>,
    evaluator: Evaluator,
}

impl RenderedCluster {
    /// Renders all objects, and parses the files again.
    pub fn new(settings: &AciSettings, space: &str, world: &World) -> Result<Self, EvaluatorError> {
        let limits = (AciLimits::default(), NetpolLimits::default());
        RenderedCluster::within(settings, space, world, limits)
    }

    /// Renders all objects within these limits, and parses the files again.
    pub fn within(
        settings: &AciSettings,
        space: &str,
        world: &World,
        (objects, files): (AciLimits, NetpolLimits),
    ) -> Result<Self, EvaluatorError> {
        let mut hpp = Hpp::new(settings.clone()).with_limits(objects);
        let changes: Vec<Change> = world.changes().collect();
        hpp.apply(&changes);
        let files = render_files(&hpp, space, &files);
        let mut evaluator = Evaluator::default();
        for file in &files {
            evaluator.add(&file.text)?;
        }
        Ok(RenderedCluster { hpp, files, evaluator })
    }

    /// The objects of the cluster.
    pub fn hpp(&self) -> &Hpp {
        &self.hpp
    }

    /// The files of all nodes.
    pub fn files(&self) -> &[Netpol] {
        &self.files
    }

    /// Evaluates a flow.
    pub fn verdict(&self, flow: &Flow) -> Verdict {
        let allows = |direction: &Direction| {
            let (local, remote) = flow.ends(*direction);
            self.hpp.pods_at(local).all(|pod| {
                // Traffic from a pod to itself never leaves the pod.
                let is_loopback = self.hpp.pods_at(remote).any(|other| other.id == pod.id);
                let groups = self.hpp.groups(pod);
                let port = (flow.protocol, flow.port);
                is_loopback || self.evaluator.allows(&groups, *direction, remote, port)
            })
        };
        if Direction::BOTH.iter().all(allows) { Verdict::Allow } else { Verdict::Deny }
    }
}

/// Renders the files of all objects.
fn render_files(hpp: &Hpp, space: &str, limits: &NetpolLimits) -> Vec<Netpol> {
    let containers: BTreeMap<String, _> = hpp
        .objects()
        .values()
        .filter_map(|object| match object {
            HostprotObject::Container(spec) => Some((spec.name.clone(), spec.clone())),
            HostprotObject::Pol(_) => None,
        })
        .collect();
    let pols = hpp.objects().values().filter_map(|object| match object {
        HostprotObject::Pol(pol) => Some(pol),
        HostprotObject::Container(_) => None,
    });
    pols.map(|pol| render_within(&pol.spec, &containers, space, limits)).collect()
}

impl Hpp {
    /// The pods that hold an address.
    fn pods_at(&self, address: std::net::IpAddr) -> impl Iterator<Item = &Pod> {
        self.holders(address).filter_map(|id| self.world.pods.get(id))
    }
}
