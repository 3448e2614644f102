use std::collections::BTreeSet;

use weir_model::{EndpointPort, EndpointSlice, Pod, Service, ServicePort, TargetPort, World};

use crate::peer;

/// Adds the EndpointSlices that the cluster would create, for Services that have a selector and no
/// EndpointSlice. Manifests rarely contain them.
pub fn with_derived_endpoints(mut world: World) -> World {
    let known: BTreeSet<_> =
        world.slices.values().map(|slice| (&slice.id.namespace, &slice.service)).collect();
    let missing =
        world.services.values().filter(|one| !known.contains(&(&one.id.namespace, &one.id.name)));
    let derived: Vec<EndpointSlice> =
        missing.flat_map(|service| derived_slices(service, &world)).collect();
    world.slices.extend(derived.into_iter().map(|slice| (slice.id.clone(), slice)));
    world
}

/// One EndpointSlice for each pod, because a named target port can have several numbers.
fn derived_slices(service: &Service, world: &World) -> Vec<EndpointSlice> {
    let Some(selector) = &service.selector else { return Vec::new() };
    let is_behind = |pod: &&Pod| {
        pod.id.namespace == service.id.namespace
            && !pod.finished
            && peer::holds(selector, &pod.labels)
    };
    let slice = |pod: &Pod| {
        let mut id = service.id.clone();
        id.name = format!("{}-{}", id.name, pod.id.name).into();
        EndpointSlice {
            id,
            service: service.id.name.clone(),
            addresses: pod.addresses.clone(),
            ports: service.ports.iter().filter_map(|port| endpoint_port(port, pod)).collect(),
            location: service.location.clone(),
        }
    };
    world.pods.values().filter(is_behind).map(slice).collect()
}

fn endpoint_port(port: &ServicePort, pod: &Pod) -> Option<EndpointPort> {
    let ServicePort { name, protocol, target, .. } = port;
    let number = match target {
        TargetPort::Number(number) => *number,
        TargetPort::Name(target) => {
            let port = (target.clone(), Some(*protocol));
            peer::numbers(&port, &pod.ports).next().map(|(_, number)| number)?
        }
    };
    Some(EndpointPort { name: name.clone(), protocol: *protocol, port: number })
}
