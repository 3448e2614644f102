use crate::{Claim, Labels, Requirement};

use super::*;

fn pod(name: &str, app: &str, addresses: &[&str], sql: Option<u16>) -> Pod {
    let address = |text: &&str| text.parse().unwrap();
    let port = |port| NamedPort { name: "sql".into(), protocol: Protocol::Tcp, port };
    Pod {
        id: PodId::new("shop", name),
        labels: Labels::from_iter([(Name::from("app"), Name::from(app))]),
        addresses: addresses.iter().map(address).collect(),
        node: None,
        ports: sql.map(port).into_iter().collect(),
        host_network: false,
        finished: false,
        claim: Claim::Running,
        uid: None,
        owner: None,
        location: None,
    }
}

fn service(families: &[IpFamily]) -> Service {
    Service {
        id: ServiceId { namespace: "shop".into(), name: "db".into() },
        kind: ServiceKind::ClusterIp,
        external_traffic: ExternalTraffic::Cluster,
        addresses: Vec::new(),
        families: families.to_vec(),
        ports: vec![ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            target: TargetPort::Name("sql".into()),
            node_port: None,
        }],
        selector: Some(Selector::from_iter([Requirement::equals("app", "db")])),
        location: None,
    }
}

fn world() -> World {
    let mut done = pod("done", "db", &["10.0.0.9"], Some(1));
    done.finished = true;
    let pods = [
        pod("a", "db", &["10.0.0.1", "fd00::1"], Some(5432)),
        pod("b", "db", &["10.0.0.2"], Some(5433)),
        pod("c", "db", &["10.0.0.3"], None),
        pod("web", "web", &["10.0.0.4"], Some(5432)),
        done,
    ];
    World { pods: pods.into_iter().map(|pod| (pod.id.clone(), pod)).collect(), ..World::default() }
}

fn show(service: &Service, world: &World) -> Vec<String> {
    let backends = service.backends(&service.ports[0], world);
    let show = |backend: &ServiceBackend| {
        let pod = backend.pod.as_ref().map_or("-".to_owned(), ToString::to_string);
        format!("{pod} {:?} {:?}", backend.addresses, backend.port)
    };
    backends.iter().map(show).collect()
}

#[test]
fn each_selected_pod_has_its_own_number_for_a_named_port() {
    assert_eq!(
        show(&service(&[]), &world()),
        [
            "shop/a [10.0.0.1, fd00::1] Some(5432)",
            "shop/b [10.0.0.2] Some(5433)",
            "shop/c [10.0.0.3] None"
        ]
    );
    assert_eq!(
        show(&service(&[IpFamily::V6]), &world()),
        ["shop/a [fd00::1] Some(5432)", "shop/b [] Some(5433)", "shop/c [] None"]
    );
}

#[test]
fn endpoint_slices_replace_the_selector() {
    let mut world = world();
    let slice = |name: &str, addresses: &[&str], port| EndpointSlice {
        id: ServiceId { namespace: "shop".into(), name: name.into() },
        service: "db".into(),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port }],
        location: None,
    };
    let slices = [
        slice("v4", &["10.0.0.1", "192.0.2.1"], 5432),
        slice("v6", &["fd00::1"], 5432),
        slice("old", &["192.0.2.1", "10.0.0.9"], 5432),
    ];
    world.slices.extend(slices.into_iter().map(|slice| (slice.id.clone(), slice)));
    let mut backends = show(&service(&[]), &world);
    backends.sort();
    assert_eq!(
        backends,
        [
            "- [10.0.0.9] Some(5432)",
            "- [192.0.2.1] Some(5432)",
            "shop/a [10.0.0.1, fd00::1] Some(5432)"
        ]
    );
}
