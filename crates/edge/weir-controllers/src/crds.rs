//! The CustomResourceDefinitions of the kinds that the controllers use.

use weir_kube::{OnMissing, Resource, WatchSpec};

/// A CustomResourceDefinition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crd {
    /// The controller that uses it.
    pub controller: &'static str,
    /// The name of the CustomResourceDefinition.
    pub name: &'static str,
    /// The manifest in YAML.
    pub yaml: &'static str,
}

/// All CustomResourceDefinitions.
pub const ALL: &[Crd] = &[
    Crd {
        controller: crate::clusterset::NAME,
        name: "clustersetnetworkpolicies.submariner.io",
        yaml: include_str!("clusterset/policy.yaml"),
    },
    Crd {
        controller: crate::clusterset::NAME,
        name: "clustersetmembers.submariner.io",
        yaml: include_str!("clusterset/member.yaml"),
    },
    Crd {
        controller: crate::clusterset::NAME,
        name: "remotenamespaces.submariner.io",
        yaml: include_str!("clusterset/remotenamespace.yaml"),
    },
    Crd {
        controller: crate::clusterset::NAME,
        name: "remotepods.submariner.io",
        yaml: include_str!("clusterset/remotepod.yaml"),
    },
    Crd {
        controller: crate::memcached::NAME,
        name: "memcacheds.memcached.c5c3.io",
        yaml: include_str!("memcached/crd.yaml"),
    },
    Crd {
        controller: crate::hpp::NAME,
        name: "hostprotpols.aci.hpp",
        yaml: weir_aci::HostprotKind::Pol.definition(),
    },
    Crd {
        controller: crate::hpp::NAME,
        name: "hostprotremoteipcontainers.aci.hpp",
        yaml: weir_aci::HostprotKind::Container.definition(),
    },
];

/// All objects of a kind. If the kind is missing, the follower reports how to install it.
pub(crate) fn watch(resource: Resource) -> WatchSpec {
    let on_missing = OnMissing::FailWithHint(hint(&resource));
    WatchSpec { on_missing, ..WatchSpec::all(resource) }
}

/// How to install a kind that the cluster does not serve.
pub(crate) fn hint(resource: &Resource) -> String {
    let name = resource.name();
    match ALL.iter().find(|crd| crd.name == name) {
        Some(crd) => {
            format!("install it with `weir crds --only {} | kubectl apply -f -`", crd.controller)
        }
        None => "install its CustomResourceDefinition".into(),
    }
}
