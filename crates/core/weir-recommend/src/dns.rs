//! The DNS servers of the cluster.

use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{
    Block, Name, Pod, PodId, Protocol, Requirement, Selector, Service, ServicePort, Who, World,
};

use crate::workload::{Workloads, scope};

const DNS_PORT: u16 = 53;

/// The namespace and the label of the DNS servers in most clusters.
const NAMESPACE: &str = "kube-system";
const LABEL: (&str, &str) = ("k8s-app", "kube-dns");

/// The label of NodeLocal DNSCache, and the address at which it answers.
const CACHE_LABEL: (&str, &str) = ("k8s-app", "node-local-dns");
const CACHE_ADDRESS: [u8; 4] = [169, 254, 20, 10];

/// The DNS servers of a cluster.
pub(crate) struct DnsServers<'a> {
    /// The pods and their ports.
    pods: Vec<(&'a Pod, BTreeSet<(Protocol, u16)>)>,
    has_cache: bool,
}

impl<'a> DnsServers<'a> {
    /// Finds the pods behind the DNS Service, or those with the usual label.
    pub(crate) fn find(world: &'a World) -> Self {
        let services: Vec<&Service> =
            world.services.values().filter(|service| is_dns(service)).collect();
        let mut pods = Vec::new();
        for pod in world.pods.values().filter(|pod| !pod.finished && !pod.host_network) {
            let behind = services.iter().filter(|service| service.selects(pod));
            let ports = behind.flat_map(|service| &service.ports).filter(|port| is_dns_port(port));
            let mut ports: BTreeSet<(Protocol, u16)> =
                ports.filter_map(|port| Some((port.protocol, port.number_at(pod)?))).collect();
            if ports.is_empty() && &*pod.id.namespace == NAMESPACE && has_label(pod, LABEL) {
                ports.extend([(Protocol::Udp, DNS_PORT), (Protocol::Tcp, DNS_PORT)]);
            }
            if !ports.is_empty() {
                pods.push((pod, ports));
            }
        }
        let is_cache = |pod: &Pod| pod.host_network && has_label(pod, CACHE_LABEL);
        DnsServers { pods, has_cache: world.pods.values().any(is_cache) }
    }

    /// The servers as peers of a policy in the namespace `own`, with their ports.
    pub(crate) fn peers(
        &self,
        workloads: &Workloads<'_>,
        own: &Name,
    ) -> BTreeSet<(Who, (Protocol, u16))> {
        let mut peers = BTreeSet::new();
        for (pod, ports) in &self.pods {
            let Some(server) = workloads.of(&pod.id).map(|at| &workloads.all[at]) else { continue };
            let who = Who::Pods { scope: server.scope(own), pods: server.selector.clone() };
            peers.extend(ports.iter().map(|port| (who.clone(), *port)));
        }
        let both = [(Protocol::Udp, DNS_PORT), (Protocol::Tcp, DNS_PORT)];
        if peers.is_empty() {
            let label = Requirement::equals(LABEL.0, LABEL.1);
            let pods: Selector = [label].into_iter().collect();
            let who = Who::Pods { scope: scope(&NAMESPACE.into(), own), pods };
            peers.extend(both.map(|port| (who.clone(), port)));
        }
        if self.has_cache {
            let who = Who::Block(Block::host(IpAddr::from(CACHE_ADDRESS)));
            peers.extend(both.map(|port| (who.clone(), port)));
        }
        peers
    }

    /// Whether a pod is one of the servers.
    pub(crate) fn contains(&self, pod: &PodId) -> bool {
        self.pods.iter().any(|(server, _)| server.id == *pod)
    }
}

fn is_dns(service: &Service) -> bool {
    &*service.id.namespace == NAMESPACE && service.ports.iter().any(is_dns_port)
        || &*service.id.namespace == "openshift-dns"
}

fn is_dns_port(port: &ServicePort) -> bool {
    port.port == DNS_PORT
}

fn has_label(pod: &Pod, (key, value): (&str, &str)) -> bool {
    pod.labels.value(key).is_some_and(|own| **own == *value)
}
