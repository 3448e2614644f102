//! Checks that the installed CustomResourceDefinitions keep all fields.

use kube::api::PostParams;
use weir_aci::{
    ContainerSpec, EpLabel, Filter, FilterContainer, HostprotObject, HostprotRule, Pol, PolSpec,
    RemoteIp, Subj,
};
use weir_kube::{ApiClient, ApiError};

use super::resource_of;
use crate::crds;

/// Creates an object with every field in a dry run, and compares the result. Nothing is written.
pub(super) async fn check(client: &ApiClient, namespace: &str) -> Result<(), String> {
    for sample in samples() {
        let kind = sample.id().kind;
        let resource = resource_of(kind);
        let object = serde_json::from_value(sample.manifest(namespace));
        let object: weir_kube::KubeObject = object.map_err(|error| error.to_string())?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let resource_name = resource.name();
        let stored = client.request("create", &resource_name, async |client| {
            resource.api(client, "v1", namespace).create(&params, &object).await
        });
        let incompatible = |why: &str| {
            let hint = crds::hint(resource);
            format!("the definition of {} is incompatible: {why}; {hint}", resource.name())
        };
        let stored = match stored.await {
            Ok(stored) => serde_json::to_value(stored).map_err(|error| error.to_string())?,
            Err(ApiError::Missing { .. }) => {
                return Err(format!(
                    "there is no namespace {namespace}; create it with `kubectl create namespace \
                     {namespace}`"
                ));
            }
            Err(ApiError::Refused { message, .. }) => return Err(incompatible(&message)),
            Err(error) => return Err(format!("{error}; {}", error.hint())),
        };
        if HostprotObject::parse(kind, &stored).ok().as_ref() != Some(&sample) {
            return Err(incompatible("it lacks some fields"));
        }
    }
    Ok(())
}

/// One object of each kind with every field.
fn samples() -> [HostprotObject; 2] {
    let text = |text: &str| text.to_owned();
    let label = EpLabel { key: text("app"), value: text("web") };
    let address = RemoteIp { addr: text("192.0.2.1"), hpp_ep_label: vec![label] };
    let filter = Filter { key: text("app"), operator: text("In"), values: vec![text("web")] };
    let rule = HostprotRule {
        name: text("0-ipv4"),
        direction: text("ingress"),
        ethertype: text("ipv4"),
        conn_track: text("reflexive"),
        protocol: text("tcp"),
        to_port: text("2"),
        from_port: text("1"),
        rs_remote_ip_container: vec![text("weir-sample")],
        hostprot_filter_container: FilterContainer { hostprot_filter: vec![filter] },
        hostprot_service_remote_ips: vec![text("192.0.2.1")],
    };
    let name = text("weir_sample");
    let subject = Subj { name: text("sample"), hostprot_rule: vec![rule] };
    let spec = PolSpec { name, hostprot_subj: vec![subject], network_policies: vec![text("a/b")] };
    let remotes = vec![address].into();
    let container = ContainerSpec { name: text("weir-sample"), hostprot_remote_ip: remotes };
    [
        HostprotObject::Container(container),
        HostprotObject::Pol(Pol { spec, selects: Some(Vec::new()) }),
    ]
}

#[cfg(test)]
mod tests {
    use weir_aci::HostprotKind;

    use super::*;

    #[test]
    fn the_samples_survive_a_round_trip_and_the_definitions_have_all_their_fields() {
        for sample in samples() {
            let manifest = sample.manifest("x");
            assert_eq!(HostprotObject::parse(sample.id().kind, &manifest).unwrap(), sample);
            let text = HostprotKind::definition(sample.id().kind);
            fn keys(value: &serde_json::Value, all: &mut Vec<String>) {
                match value {
                    serde_json::Value::Object(map) => map.iter().for_each(|(key, value)| {
                        all.push(key.clone());
                        keys(value, all);
                    }),
                    serde_json::Value::Array(list) => list.iter().for_each(|one| keys(one, all)),
                    _ => (),
                }
            }
            let mut all = Vec::new();
            keys(&manifest["spec"], &mut all);
            assert!(all.len() >= 5);
            for key in all {
                assert!(text.contains(&format!(" {key}:\n")), "{key}");
            }
        }
    }
}
