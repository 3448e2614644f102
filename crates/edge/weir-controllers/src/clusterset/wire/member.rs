//! ClusterSetMembers.

use ipnet::IpNet;
use serde_json::{Value, json};
use weir_clusterset::{Interest, NetworkLimits, Reach, RemoteCluster};
use weir_kube::KubeObject;
use weir_model::{Labels, Name};

use super::{
    MEMBERS, array, cluster_of, object,
    selector::{read_selector, selector},
    text,
};

/// The most interests of a cluster that count.
pub(crate) const MAX_INTERESTS: usize = 4096;
/// The most fields and values of an interest.
const MAX_INTEREST_PARTS: usize = 256;

/// The ClusterSetMember of a cluster.
pub fn member<'a>(
    cluster: &Name,
    uid: &str,
    networks: &[IpNet],
    interests: impl IntoIterator<Item = &'a Interest>,
    namespace: &str,
) -> KubeObject {
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

/// A cluster of the set, as its ClusterSetMember describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterMember {
    /// The id of the cluster.
    pub(crate) cluster: Name,
    /// Distinguishes the cluster from others with the same id.
    pub(crate) uid: Name,
    /// The networks of its pods.
    pub(crate) member: RemoteCluster,
    /// The pods that its policies select. Invalid interests are ignored.
    pub(crate) interests: Vec<Interest>,
    /// The number of interests that are too many or too large. They are ignored, too.
    pub(crate) ignored_interests: usize,
}

/// Reads a ClusterSetMember.
pub(crate) fn read_member(object: &KubeObject) -> Result<ClusterMember, String> {
    let (cluster, spec) = (cluster_of(object)?, &object.data["spec"]);
    if object.metadata.name.as_deref() != Some(&*cluster) {
        return Err(format!("its name differs from its spec.clusterID {cluster}"));
    }
    let networks = array(spec, "podCIDRs")?.iter().map(|network| {
        let text = network.as_str().unwrap_or_default();
        text.parse::<IpNet>().map_err(|_| format!("spec.podCIDRs: {network} is not a valid CIDR"))
    });
    let member = RemoteCluster { networks: networks.collect::<Result<_, String>>()? };
    let all = spec["interests"].as_array().map(Vec::as_slice).unwrap_or_default();
    let bounded = all.iter().take(MAX_INTERESTS).filter(|value| is_small(value));
    let ignored_interests = all.len() - bounded.clone().count();
    let interests = bounded.filter_map(|value| interest(value).ok()).collect();
    let uid = text(spec, "clusterUID")?.into();
    Ok(ClusterMember { cluster, uid, member, interests, ignored_interests })
}

impl ClusterMember {
    /// Checks the size of its networks. One that declares too much is not trusted at all.
    pub(crate) fn check(&self, limits: NetworkLimits) -> Result<(), String> {
        limits.check(&self.member.networks).map_err(|error| format!("spec.podCIDRs: {error}"))
    }
}

/// Whether an interest is cheap to evaluate for every pod.
fn is_small(interest: &Value) -> bool {
    fn parts(value: &Value) -> usize {
        match value {
            Value::Array(values) => 1 + values.iter().map(parts).sum::<usize>(),
            Value::Object(fields) => 1 + fields.values().map(parts).sum::<usize>(),
            _ => 1,
        }
    }
    parts(interest) <= MAX_INTEREST_PARTS
}

fn interest(value: &Value) -> Result<Interest, String> {
    let pods = read_selector(&value["podSelector"])?;
    let reach = match (value.get("namespace"), value.get("namespaceSelector")) {
        (Some(name), None) => {
            Reach::Named(name.as_str().ok_or("namespace is not a string")?.into())
        }
        (None, Some(namespaces)) => Reach::Matching(read_selector(namespaces)?),
        _ => return Err("neither namespace nor namespaceSelector".into()),
    };
    Ok(Interest { reach, pods })
}

#[cfg(test)]
mod tests {
    use weir_model::{Requirement, Selector};

    use super::*;

    #[test]
    fn interests_survive_a_round_trip() {
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
        let read =
            read_member(&member(&"east".into(), "uid", &networks, &interests, "set")).unwrap();
        assert_eq!(read.interests, interests);
        assert_eq!((&*read.uid, read.member.networks.as_slice()), ("uid", &networks[..]));
    }

    #[test]
    fn a_member_has_the_name_of_its_cluster_and_small_networks() {
        let written = |networks: &[&str]| {
            let networks: Vec<IpNet> = networks.iter().map(|one| one.parse().unwrap()).collect();
            member(&"east".into(), "uid", &networks, [], "set")
        };
        let check = |networks| read_member(&written(networks))?.check(NetworkLimits::default());
        assert_eq!(check(&["10.1.0.0/16", "fd01::/64"]), Ok(()));
        for all in [&["0.0.0.0/0"][..], &["::/0"], &["0.0.0.0/1", "128.0.0.0/1"]] {
            assert!(check(all).unwrap_err().contains("spec.podCIDRs: its networks have more IPv"));
        }
        let mut other = written(&["10.1.0.0/16"]);
        other.metadata.name = Some("east.other".into());
        assert!(read_member(&other).is_err(), "a second member for the same cluster");
    }

    #[test]
    fn interests_are_bounded_in_number_and_size() {
        let interest = |index: usize| Interest {
            reach: Reach::Named(format!("n{index}").into()),
            pods: Selector::everything(),
        };
        let many: Vec<Interest> = (0..MAX_INTERESTS + 7).map(interest).collect();
        let written = member(&"east".into(), "uid", &[], &many, "set");
        let read = read_member(&written).unwrap();
        assert_eq!((read.interests.len(), read.ignored_interests), (MAX_INTERESTS, 7));

        let values = (0..MAX_INTEREST_PARTS).map(|index| format!("v{index}").into()).collect();
        let large = Selector::from_iter([Requirement::In("key".into(), values)]);
        let large = Interest { reach: Reach::Named("shop".into()), pods: large };
        let written = member(&"east".into(), "uid", &[], &[large, interest(1)], "set");
        let read = read_member(&written).unwrap();
        assert_eq!((read.interests, read.ignored_interests), (vec![interest(1)], 1));
    }
}
