//! The ends of a connection as they are typed: an address, `namespace/pod`, `pod`, or `namespace/deployment/name`.

use std::net::IpAddr;

use weir_model::{Pod, PodId};

use crate::{failure::Failure, source::Loaded};

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A pod, and how many like it its workload has if it was named by that.
    Pod(PodId, usize),
    /// An address, whoever has it.
    Address(IpAddr),
}

impl End {
    /// Finds what was typed in a world.
    pub(crate) fn find(
        text: &str,
        namespace: Option<&str>,
        loaded: &Loaded,
    ) -> Result<Self, Failure> {
        if let Ok(address) = text.parse() {
            return Ok(End::Address(address));
        }
        let parts: Vec<&str> = text.split('/').collect();
        let id = match parts[..] {
            [name] => PodId::new(namespace.unwrap_or("default"), name),
            [namespace, name] => PodId::new(namespace, name),
            [_, _, _] => return workload(text, loaded),
            _ => return Err(Failure::new(format!("`{text}` is no end of a connection"), FORMS)),
        };
        match loaded.world.pods.contains_key(&id) {
            true => Ok(End::Pod(id, 1)),
            false => Err(no_pod(&id, loaded)),
        }
    }

    /// The pod, if it is one.
    pub(crate) fn pod<'w>(&self, loaded: &'w Loaded) -> Option<&'w Pod> {
        match self {
            End::Pod(id, _) => loaded.world.pods.get(id),
            End::Address(_) => None,
        }
    }

    /// Its addresses, the primary one first.
    pub(crate) fn addresses(&self, loaded: &Loaded) -> Vec<IpAddr> {
        match self {
            End::Pod(..) => self.pod(loaded).map(|pod| pod.addresses.clone()).unwrap_or_default(),
            End::Address(address) => vec![*address],
        }
    }
}

const FORMS: &str =
    "an end is an address, `namespace/pod`, `pod` with -n, or `namespace/deployment/name`";

fn workload(text: &str, loaded: &Loaded) -> Result<End, Failure> {
    let lower = text.to_ascii_lowercase();
    match loaded.workloads.get(&lower).map(Vec::as_slice) {
        Some([first, ..]) => {
            let all = loaded.workloads.get(&lower).map_or(1, Vec::len);
            Ok(End::Pod(first.clone(), all))
        }
        _ => {
            let known: Vec<&str> = loaded.workloads.keys().map(String::as_str).take(5).collect();
            let hint = match known.is_empty() {
                true => FORMS.to_owned(),
                false => format!("known workloads are {}", known.join(", ")),
            };
            Err(Failure::new(format!("there is no workload {text}"), hint))
        }
    }
}

fn no_pod(id: &PodId, loaded: &Loaded) -> Failure {
    let pods = &loaded.world.pods;
    let other = pods.keys().find(|other| other.name == id.name);
    let workload = loaded.workloads.keys().find(|name| {
        let mut parts = name.splitn(3, '/');
        parts.next() == Some(&*id.namespace) && parts.nth(1) == Some(&*id.name)
    });
    let near: Vec<String> =
        pods.keys().filter(|o| o.namespace == id.namespace).map(PodId::to_string).take(5).collect();
    let hint = match (workload, other, near.is_empty()) {
        (Some(workload), ..) => format!("there is {workload}; use that"),
        (None, Some(other), _) => format!("did you mean {other}?"),
        (None, None, false) => format!("pods of {} are {}", id.namespace, near.join(", ")),
        (None, None, true) => format!("there is no pod in namespace {}; {FORMS}", id.namespace),
    };
    Failure::new(format!("there is no pod {id}"), hint)
}
