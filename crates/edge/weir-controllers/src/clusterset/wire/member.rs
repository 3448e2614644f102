//! What a cluster tells about itself.

use ipnet::IpNet;
use serde_json::{Value, json};
use weir_clusterset::{Interest, Member, Reach};
use weir_model::{Labels, Name};

use super::{
    MEMBERS, array, cluster_of, object,
    selector::{read_selector, selector},
    text,
};
use crate::Object;

/// A cluster as others read it.
pub fn member<'a>(
    cluster: &Name,
    uid: &str,
    networks: &[IpNet],
    interests: impl IntoIterator<Item = &'a Interest>,
    namespace: &str,
) -> Object {
    let interests = interests.into_iter().map(|interest| {
        let pods = selector(&interest.pods);
        match &interest.reach {
            Reach::Named(name) => json!({"namespace": &**name, "podSelector": pods}),
            Reach::Matching(namespaces) => {
                json!({"namespaceSelector": selector(namespaces), "podSelector": pods})
            }
        }
    });
    let spec = json!({
        "clusterID": &**cluster,
        "clusterUID": uid,
        "podCIDRs": networks.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "interests": interests.collect::<Vec<_>>(),
    });
    object(&MEMBERS, namespace, cluster, cluster, &Labels::default(), spec)
}

/// What a cluster tells about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its id.
    pub cluster: Name,
    /// What tells it from others of that id.
    pub uid: Name,
    /// Where its pods are.
    pub member: Member,
    /// What it asks for. What cannot be read it is not told about.
    pub interests: Vec<Interest>,
}

/// What a cluster tells about itself.
pub fn read_member(object: &Object) -> Result<Told, String> {
    let (cluster, spec) = (cluster_of(object)?, &object.data["spec"]);
    if object.metadata.name.as_deref() != Some(&*cluster) {
        return Err(format!("its name is not its spec.clusterID {cluster}"));
    }
    let networks = array(spec, "podCIDRs")?.iter().map(|network| {
        let text = network.as_str().unwrap_or_default();
        match text.parse::<IpNet>() {
            Ok(all) if all.prefix_len() == 0 => {
                Err(format!("spec.podCIDRs: {all} is everywhere; it must say where its pods are"))
            }
            Ok(network) => Ok(network),
            Err(_) => Err(format!("spec.podCIDRs: {network} is no network")),
        }
    });
    let member = Member { networks: networks.collect::<Result<_, String>>()? };
    let interests = spec["interests"].as_array().map(Vec::as_slice).unwrap_or_default();
    let interests = interests.iter().filter_map(|value| interest(value).ok()).collect();
    Ok(Told { cluster, uid: text(spec, "clusterUID")?.into(), member, interests })
}

fn interest(value: &Value) -> Result<Interest, String> {
    let pods = read_selector(&value["podSelector"])?;
    let reach = match (value.get("namespace"), value.get("namespaceSelector")) {
        (Some(name), None) => Reach::Named(name.as_str().ok_or("no name")?.into()),
        (None, Some(namespaces)) => Reach::Matching(read_selector(namespaces)?),
        _ => return Err("neither a namespace nor a selector of namespaces".into()),
    };
    Ok(Interest { reach, pods })
}

#[cfg(test)]
mod tests {
    use weir_model::{Requirement, Selector};

    use super::*;

    #[test]
    fn interests_of_every_kind_are_read_as_they_were_meant() {
        let values = || ["x".into(), "y".into()].into();
        let all: Selector = [
            Requirement::In("a".into(), values()),
            Requirement::NotIn("b".into(), values()),
            Requirement::Exists("c".into()),
            Requirement::Absent("d".into()),
        ]
        .into_iter()
        .collect();
        let interests = [
            Interest { reach: Reach::Named("shop".into()), pods: Selector::everything() },
            Interest { reach: Reach::Matching(Selector::everything()), pods: all.clone() },
            Interest { reach: Reach::Matching(all), pods: Selector::everything() },
        ];
        let networks = ["10.1.0.0/16".parse().unwrap()];
        let told =
            read_member(&member(&"east".into(), "uid", &networks, &interests, "set")).unwrap();
        assert_eq!(told.interests, interests);
        assert_eq!((&*told.uid, told.member.networks.as_slice()), ("uid", &networks[..]));
    }

    #[test]
    fn a_cluster_says_who_it_is_by_its_name_and_never_that_it_is_everywhere() {
        let told = |networks: &[&str]| {
            let networks: Vec<IpNet> = networks.iter().map(|one| one.parse().unwrap()).collect();
            member(&"east".into(), "uid", &networks, [], "set")
        };
        assert!(read_member(&told(&["10.1.0.0/16", "fd01::/64"])).is_ok());
        for all in ["0.0.0.0/0", "::/0"] {
            assert!(read_member(&told(&["10.1.0.0/16", all])).unwrap_err().contains("everywhere"));
        }
        let mut other = told(&["10.1.0.0/16"]);
        other.metadata.name = Some("east.other".into());
        assert!(read_member(&other).is_err(), "a second one of the same cluster");
    }
}
