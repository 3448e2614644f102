use std::collections::BTreeMap;

use weir_model::{Change, Direction, Flow, Pod, Verdict, World};

use crate::{Hpp, Netpol, Object, Reading, ReadingError, Settings, render};

/// A cluster whose connections are judged by the files that its nodes would have.
#[derive(Debug)]
pub struct Judge {
    hpp: Hpp,
    files: Vec<Netpol>,
    reading: Reading,
}

impl Judge {
    /// Renders everything, and reads it back.
    pub fn new(settings: &Settings, space: &str, world: &World) -> Result<Self, ReadingError> {
        let mut hpp = Hpp::new(settings.clone());
        let changes: Vec<Change> = world.changes().collect();
        hpp.apply(&changes);
        let files = files(&hpp, space);
        let mut reading = Reading::default();
        for file in &files {
            reading.add(&file.text)?;
        }
        Ok(Judge { hpp, files, reading })
    }

    /// What is kept in the API.
    pub fn hpp(&self) -> &Hpp {
        &self.hpp
    }

    /// The files of all nodes.
    pub fn files(&self) -> &[Netpol] {
        &self.files
    }

    /// Whether a connection passes.
    pub fn verdict(&self, flow: &Flow) -> Verdict {
        let passes = |direction: &Direction| {
            let (here, there) = flow.ends(*direction);
            let Some(pod) = self.hpp.owner(here) else { return true };
            // What a pod sends to itself never leaves it.
            let itself = self.hpp.owner(there).is_some_and(|other| other.id == pod.id);
            let groups = self.hpp.groups(pod);
            itself || self.reading.allows(&groups, *direction, there, (flow.protocol, flow.port))
        };
        match Direction::BOTH.iter().all(passes) {
            true => Verdict::Allow,
            false => Verdict::Deny,
        }
    }
}

/// The files for all objects.
fn files(hpp: &Hpp, space: &str) -> Vec<Netpol> {
    let containers: BTreeMap<String, _> = hpp
        .objects()
        .values()
        .filter_map(|object| match object {
            Object::Container(spec) => Some((spec.name.clone(), spec.clone())),
            Object::Pol(_) => None,
        })
        .collect();
    let pols = hpp.objects().values().filter_map(|object| match object {
        Object::Pol(pol) => Some(pol),
        Object::Container(_) => None,
    });
    pols.map(|pol| render(&pol.spec, &containers, space)).collect()
}

impl Hpp {
    /// The pod that has an address.
    fn owner(&self, address: std::net::IpAddr) -> Option<&Pod> {
        self.claimant(address).and_then(|id| self.world.pods.get(id))
    }
}
