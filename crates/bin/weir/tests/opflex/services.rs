//! Egress through a Service, from the objects in the API to the files.

use serde_json::{Value, json};

use crate::site::{Site, eventually};

const SERVICES: &str = "/api/v1/namespaces/prod/services";
/// The first minor version of Kubernetes with discovery.k8s.io/v1. 1.25 is the first without v1beta1.
const WITH_SLICES_V1: u32 = 21;

/// The path of EndpointSlices.
fn slices(site: &Site) -> String {
    let version = if site.cluster.is_at_least(WITH_SLICES_V1) { "v1" } else { "v1beta1" };
    format!("/apis/discovery.k8s.io/{version}/namespaces/prod/endpointslices")
}

fn slice(addresses: &[&str]) -> Value {
    json!({
        "metadata": {"name": "db-1", "labels": {"kubernetes.io/service-name": "db"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": addresses}],
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
    })
}

/// The addresses and ports of the rules for Services in the only object of a policy.
fn service_rules(site: &Site) -> Vec<(Value, Value)> {
    let names = site.pols();
    let name = names.iter().find(|name| name.contains("-np-") && !name.contains("static"));
    let Some(spec) = name.and_then(|name| site.pol(name)) else { return Vec::new() };
    let rules = spec["hostprotSubj"][0]["hostprotRule"].as_array().cloned().unwrap_or_default();
    let services = rules.into_iter().filter(|rule| rule.get("hostprotServiceRemoteIps").is_some());
    services
        .map(|rule| (rule["hostprotServiceRemoteIps"].clone(), rule["toPort"].clone()))
        .collect()
}

/// The status of the condition of the only object of a policy.
fn complete(site: &Site) -> Option<String> {
    let names = site.pols();
    let name = names.iter().find(|name| name.contains("-np-") && !name.contains("static"))?;
    let object = site.cluster.get(&format!("{}/{name}", site.path("hostprotpols"))).ok()?;
    let condition = &object["status"]["conditions"][0];
    assert!(condition.is_null() || condition["type"] == "Complete", "{condition}");
    condition["status"].as_str().map(Into::into)
}

fn events(site: &Site) -> Vec<String> {
    let list = site.cluster.get("/api/v1/namespaces/default/events").unwrap();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|event| format!("{} {}", event["reason"], event["message"])).collect()
}

#[test]
fn a_policy_opens_the_services_whose_backends_it_allows() {
    let mut site = Site::new();
    site.pod("default", "web", "n1", &["10.2.0.10"], json!({"app": "web"}));
    let namespace = json!({"metadata": {"name": "prod", "labels": {"purpose": "production"}}});
    site.cluster.create("/api/v1/namespaces", &namespace).unwrap();
    site.pod("prod", "db", "n2", &["10.2.64.1"], json!({"app": "db"}));
    site.pod("default", "other", "n2", &["10.2.64.2"], json!({"app": "other"}));
    let policy = json!({
        "metadata": {"name": "web-out"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "policyTypes": ["Egress"],
            "egress": [{
                "to": [{"namespaceSelector": {"matchLabels": {"purpose": "production"}}}],
                "ports": [{"port": 8080}],
            }],
        },
    });
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    site.cluster.create(policies, &policy).unwrap();
    site.start();
    let of_policy = |name: &&String| name.contains("-np-") && !name.contains("static");
    eventually("an object for the policy", || site.pols().iter().any(|name| of_policy(&name)));
    assert_eq!(service_rules(&site), []);

    let service = json!({
        "metadata": {"name": "db"},
        "spec": {"clusterIP": "10.96.0.77", "ports": [{"port": 80, "targetPort": 8080}]},
    });
    site.cluster.create(SERVICES, &service).unwrap();
    let slices = slices(&site);
    site.cluster.create(&slices, &slice(&["10.2.64.1"])).unwrap();
    let open = vec![(json!(["10.96.0.77"]), json!("80"))];
    eventually("a rule for the Service", || service_rules(&site) == open);
    eventually("the files that are rendered", || site.rendered("n1") == site.on_disk("n1"));
    assert!(format!("{:?}", site.on_disk("n1")).contains("10.96.0.77"));

    // A backend that the policy does not allow closes the Service, with an Event.
    site.cluster.patch(&format!("{slices}/db-1"), &slice(&["10.2.64.1", "10.2.64.2"])).unwrap();
    eventually("no rule for the Service", || service_rules(&site).is_empty());
    eventually("an Event", || {
        events(&site)
            .iter()
            .any(|event| event.contains("NotEnforced") && event.contains("prod/db:80/TCP"))
    });
    eventually("a condition", || complete(&site) == Some("False".into()));
    site.cluster.patch(&format!("{slices}/db-1"), &slice(&["10.2.64.1"])).unwrap();
    eventually("a condition", || complete(&site) == Some("True".into()));
    eventually("the rule again", || service_rules(&site) == open);
    site.cluster.delete(&format!("{SERVICES}/db")).unwrap();
    eventually("no Service, no rule", || service_rules(&site).is_empty());
}
