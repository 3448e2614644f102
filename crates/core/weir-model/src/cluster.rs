use std::fmt;

use crate::Name;

/// The label with the cluster of a namespace or node, in a world that unites several clusters.
pub const CLUSTER_LABEL: &str = "submariner-io/clusterID";

/// A name together with its cluster.
///
/// In a world that unites several clusters, the names of namespaces, nodes and cluster-wide
/// policies are `cluster:name`; in a world of one cluster they are just `name`. No Kubernetes name
/// has a colon, so both are unambiguous. Only this type knows the notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QualifiedName<'a> {
    /// The cluster; `None` in a world of one cluster.
    pub cluster: Option<&'a str>,
    /// The name inside its cluster.
    pub name: &'a str,
}

impl<'a> QualifiedName<'a> {
    /// A name inside a cluster.
    pub fn new(cluster: &'a str, name: &'a str) -> Self {
        QualifiedName { cluster: Some(cluster), name }
    }

    /// The parts of a name of a world.
    pub fn parse(text: &'a str) -> Self {
        match text.split_once(':') {
            Some((cluster, name)) => QualifiedName::new(cluster, name),
            None => QualifiedName { cluster: None, name: text },
        }
    }

    /// The name in a world.
    pub fn to_name(self) -> Name {
        self.to_string().into()
    }
}

impl fmt::Display for QualifiedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cluster {
            Some(cluster) => write!(f, "{cluster}:{}", self.name),
            None => f.write_str(self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{PodId, PolicyId, PolicyKind};

    #[test]
    fn ids_know_their_cluster_only_in_a_world_of_several() {
        let local = PodId::new("shop", "web");
        let east = local.in_cluster("east");
        assert_eq!((local.cluster(), east.cluster()), (None, Some("east")));
        assert_eq!(east.to_string(), "east:shop/web");

        let policy = |kind, namespace: &str| PolicyId {
            kind,
            namespace: namespace.into(),
            name: "deny".into(),
        };
        for (local, expected) in [
            (policy(PolicyKind::NetworkPolicy, "shop"), "NetworkPolicy east:shop/deny"),
            (policy(PolicyKind::AdminNetworkPolicy, ""), "AdminNetworkPolicy east:deny"),
        ] {
            let east = local.in_cluster("east");
            assert_eq!((local.cluster(), east.cluster()), (None, Some("east")));
            assert_eq!(east.to_string(), expected);
            assert_eq!(east.in_own_cluster(), local);
        }
    }
}
