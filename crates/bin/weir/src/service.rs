//! Addresses of Services. Policies apply to the backends, after load balancing, so a connection to
//! such an address has no verdict of its own.

use std::net::IpAddr;

use weir_model::World;

/// How to name the connection instead.
pub(crate) const HINT: &str = "give a pod behind the Service, and the port of the pod";

/// Explains that an address is that of a Service, and of no pod.
pub(crate) fn explain_address(world: &World, address: IpAddr) -> Option<String> {
    let service = world.services.values().find(|service| service.addresses.contains(&address))?;
    let is_of_pod = world.pods.values().any(|pod| pod.addresses.contains(&address));
    (!is_of_pod).then(|| {
        format!(
            "{address} is the address of Service {}, and policies apply to its backends",
            service.id
        )
    })
}
