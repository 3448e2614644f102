//! Which NetworkPolicies are ours.

use kube::{Api, api::ListParams};
use weir_clusterset::ShardKey;
use weir_kube::ReadError;

use super::wire::{MANAGED, POLICIES, POLICY_UID};
use crate::{Id, NETWORK_POLICIES, Object, Server, controller_of, follow::tidy, is_controlled_by};

/// The length of a uid.
const UID: usize = 36;

/// The uid of the policy that a NetworkPolicy is part of, by its name.
pub(super) fn uid_in(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("csnp-")?;
    let (uid, shard) = rest.split_at_checked(UID)?;
    let is_shard = || shard.strip_prefix('-').is_some_and(|key| key.parse::<ShardKey>().is_ok());
    (shard.is_empty() || is_shard()).then_some(uid)
}

/// The shard that a NetworkPolicy is, by its name; `None` for a base.
pub(super) fn shard_of(name: &str) -> Option<ShardKey> {
    name.strip_prefix("csnp-")?.get(UID + 1..)?.parse().ok()
}

/// Whether a NetworkPolicy is one of those that we make: its name says of which policy, and so does its controller. Others may have taken
/// its labels, or its controller, but not both.
pub(super) fn is_ours(object: &Object) -> bool {
    let Some(uid) = object.metadata.name.as_deref().and_then(uid_in) else { return false };
    match controller_of(object) {
        Some(owner) => POLICIES.is_kind_of(owner) && owner.uid == uid,
        None => is_labelled(object, uid),
    }
}

/// Whether a NetworkPolicy of ours has all that it is known by.
pub(super) fn is_whole(object: &Object, uid: &str) -> bool {
    is_labelled(object, uid) && is_controlled_by(object, uid)
}

fn is_labelled(object: &Object, uid: &str) -> bool {
    let labels = object.metadata.labels.as_ref();
    let has = |key, value| labels.and_then(|labels| labels.get(key)).is_some_and(|is| is == value);
    has(MANAGED.0, MANAGED.1) && has(POLICY_UID, uid)
}

/// The NetworkPolicy of a name, whatever its labels are. Asked as a list of one, which needs no other right.
pub(super) async fn find(server: &Server, id: &Id) -> Result<Option<Object>, ReadError> {
    let params = ListParams::default().fields(&format!("metadata.name={}", id.name));
    let (resource, name) = (NETWORK_POLICIES.at("v1"), NETWORK_POLICIES.name());
    let found = server.ask("list", &name, async |client| {
        Api::<Object>::namespaced_with(client, &id.namespace, &resource).list(&params).await
    });
    let found = found.await?.items.into_iter().next();
    Ok(found.map(|object| tidy(object, &NETWORK_POLICIES, "v1")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const UID: &str = "00000000-0000-0000-0000-000000000001";

    fn object(name: &str, labels: Value, owners: Value) -> Object {
        let metadata =
            json!({"namespace": "shop", "name": name, "labels": labels, "ownerReferences": owners});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn ours_are_known_by_their_name_and_their_controller_or_their_labels() {
        let labels = |uid: &str| json!({"app.kubernetes.io/managed-by": "weir-clusterset", "clusterset.weir.dev/policy-uid": uid});
        let owner = |kind: &str, uid: &str| json!([{"apiVersion": "submariner.io/v1alpha1", "kind": kind, "name": "db", "uid": uid, "controller": true}]);
        let ours = owner("ClusterSetNetworkPolicy", UID);
        let (base, shard) = (format!("csnp-{UID}"), format!("csnp-{UID}-i4-0a020000-16"));
        for name in [&base, &shard] {
            assert!(is_ours(&object(name, labels(UID), ours.clone())));
            assert!(is_ours(&object(name, json!({}), ours.clone())), "without its labels");
            assert!(is_ours(&object(name, labels(UID), json!([]))), "without its controller");
            assert!(!is_ours(&object(name, json!({}), json!([]))));
            assert!(!is_ours(&object(name, labels("other"), json!([]))));
            assert!(!is_ours(&object(name, labels(UID), owner("Deployment", UID))));
            assert!(!is_ours(&object(
                name,
                labels(UID),
                owner("ClusterSetNetworkPolicy", "other")
            )));
        }
        for name in ["mine", &format!("{base}-x"), &format!("{base}x"), "csnp-", "csnp-é"] {
            assert!(!is_ours(&object(name, labels(UID), ours.clone())), "{name}");
        }
    }
}
