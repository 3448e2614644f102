use std::collections::BTreeSet;

use weir_model::{EndpointPort, EndpointSlice, Pod, Service, ServicePort, World};

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
    let slice = |pod: &Pod| {
        let mut id = service.id.clone();
        id.name = format!("{}-{}", id.name, pod.id.name).into();
        let port = |port: &ServicePort| {
            let number = port.number_at(pod)?;
            Some(EndpointPort { name: port.name.clone(), protocol: port.protocol, port: number })
        };
        EndpointSlice {
            id,
            service: service.id.name.clone(),
            addresses: pod.addresses.clone(),
            ports: service.ports.iter().filter_map(port).collect(),
            location: service.location.clone(),
        }
    };
    world.pods.values().filter(|pod| service.selects(pod)).map(slice).collect()
}
