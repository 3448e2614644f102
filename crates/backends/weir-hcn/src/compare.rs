use weir_datapath::Planner as _;
use weir_model::Program;

use crate::{Acl, HnsEndpoint, Installed, Planner, Step, tracker::has_desired_acls};

/// The difference between the ACLs on the endpoints of a machine and those of a program; empty if
/// there is none. `-` precedes an ACL that the endpoint should not have, `+` one that it lacks.
pub fn compare(program: &Program, installed: &Installed) -> String {
    let Installed { inventory, tracker, network } = installed;
    let mut text = String::new();
    for step in Planner::default().replan(program, installed).steps {
        match step {
            Step::Put { pod, addresses, acls } => {
                let endpoints = inventory.of_pod(&addresses, network.as_deref());
                if endpoints.is_empty() {
                    text += &format!("{}\n", inventory.absence_warning(&pod, &addresses));
                }
                for endpoint in endpoints {
                    if !has_desired_acls(endpoint, &acls, tracker) {
                        text += &format!("{pod}, endpoint {}\n", endpoint.id);
                        text += &difference(endpoint, &endpoint.desired(&acls));
                    }
                }
            }
            Step::Clear { endpoint: id } => {
                text += &format!("no selected pod, endpoint {id}\n");
                let endpoints = inventory.endpoints.iter().filter(|endpoint| endpoint.id == id);
                endpoints.for_each(|endpoint| text += &difference(endpoint, &[]));
            }
        }
    }
    text
}

/// One line for each ACL to remove from an endpoint and for each to add.
fn difference(endpoint: &HnsEndpoint, desired: &[Acl]) -> String {
    let mut missing = desired.to_vec();
    let mut lines = Vec::new();
    for acl in endpoint.ours() {
        match missing.iter().position(|wanted| *wanted == acl) {
            Some(same) => _ = missing.remove(same),
            None => lines.push(format!("  - {acl}\n")),
        }
    }
    lines.extend(missing.iter().map(|acl| format!("  + {acl}\n")));
    lines.concat()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use weir_engine::Locality;
    use weir_model::World;

    use super::*;
    use crate::{HnsNetwork, Inventory, Tracker};

    const WORLD: &str = "
nodes: [{name: n1, ips: [192.168.0.1]}]
pods: [{namespace: shop, name: web, labels: {app: web}, ips: [10.7.0.1], node: n1}]
policies:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: web, namespace: shop}
  spec: {podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 80}]}]}
probes: [{from: {ip: 10.9.9.9}, to: {ip: 10.9.9.9}, port: 1, expect: allow}]
";

    fn program() -> Program {
        let mut cases = weir_api::cases("case.yaml".into(), WORLD.as_bytes());
        let world: World = cases.pop().unwrap().objects.into_iter().collect();
        weir_engine::compile(&world, Locality::Node("n1".into()))
    }

    /// A machine with these endpoints.
    fn installed(endpoints: &[(&str, &str, &[Acl])]) -> Installed {
        let one = |(id, address, acls): &(&str, &str, &[Acl])| {
            let policies: Vec<serde_json::Value> = acls.iter().map(Acl::policy).collect();
            let document = serde_json::json!({
                "ID": id, "HostComputeNetwork": "n1", "HostComputeNamespace": "s1",
                "IpConfigurations": [{"IpAddress": address}], "Policies": policies,
            });
            HnsEndpoint::parse(&document.to_string()).unwrap()
        };
        let network = HnsNetwork { name: "Calico".into(), kind: "L2Bridge".into() };
        let networks = [("n1".to_owned(), network)].into();
        let endpoints = endpoints.iter().map(one).collect();
        let inventory = Inventory { endpoints, networks, ..Inventory::default() };
        Installed { inventory, tracker: Tracker::default(), network: None }
    }

    #[test]
    fn every_difference_names_the_pod_the_endpoint_and_the_acl() {
        let acls: Vec<Acl> = {
            let program = program();
            let (id, endpoint) = program.endpoints.iter().next().unwrap();
            crate::render(id, endpoint, &program, &std::collections::BTreeSet::new()).acls
        };
        let check = |endpoints: &[(&str, &str, &[Acl])], expected: expect_test::Expect| {
            expected.assert_eq(&compare(&program(), &installed(endpoints)));
        };
        check(&[("web", "10.7.0.1", &acls), ("other", "10.7.0.9", &[])], expect![""]);
        let mut changed = acls.clone();
        changed.remove(0);
        changed[0].local_ports = "81".into();
        check(
            &[("web", "10.7.0.1", &changed), ("gone", "10.7.0.9", &acls[..1])],
            expect![[r#"
                no selected pod, endpoint gone
                  -   300 In  Allow remote 10.7.0.1,192.168.0.1  weir:own-in
                shop/web, endpoint web
                  -  2000 In  Allow protocol 6 local-ports 81  weir:NetworkPolicy/shop/web#in.0
                  +   300 In  Allow remote 10.7.0.1,192.168.0.1  weir:own-in
                  +  2000 In  Allow protocol 6 local-ports 80  weir:NetworkPolicy/shop/web#in.0
            "#]],
        );
        let twice = [acls.clone(), acls[..1].to_vec()].concat();
        check(
            &[("web", "10.7.0.1", &twice)],
            expect![[r#"
                shop/web, endpoint web
                  -   300 In  Allow remote 10.7.0.1,192.168.0.1  weir:own-in
            "#]],
        );
        check(
            &[],
            expect![[r#"
                shop/web (10.7.0.1) has no endpoint yet: its rules take effect when HNS creates one
            "#]],
        );
    }

    #[test]
    fn the_form_in_which_hns_returns_an_acl_is_no_difference() {
        let program = program();
        let (id, endpoint) = program.endpoints.iter().next().unwrap();
        let desired =
            crate::render(id, endpoint, &program, &std::collections::BTreeSet::new()).acls;
        let mut odd = desired.clone();
        odd[0].protocols = "0-255".into();
        let mut installed = installed(&[("web", "10.7.0.1", &odd)]);
        assert_ne!(compare(&program, &installed), "");
        let returned = installed.inventory.endpoints[0].ours();
        let written = installed.inventory.endpoints[0].desired(&desired);
        installed.tracker.put("web", "shop/web", &written, &returned);
        assert_eq!(compare(&program, &installed), "");
    }
}
