//! Ownership of NetworkPolicies.

use kube::api::ListParams;
use weir_clusterset::ShardKey;
use weir_kube::{ApiClient, ApiError, KubeObject, NETWORK_POLICIES, ObjectId, WireObject};

use super::wire::{MANAGED, POLICIES, POLICY_UID};
use crate::object::{controller_of, is_controlled_by};

/// The length of a uid in characters.
const UID_LENGTH: usize = 36;

/// The uid of the ClusterSetNetworkPolicy in the name of a NetworkPolicy.
pub(super) fn uid_in(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("csnp-")?;
    let (uid, shard) = rest.split_at_checked(UID_LENGTH)?;
    let is_shard = || shard.strip_prefix('-').is_some_and(|key| key.parse::<ShardKey>().is_ok());
    (shard.is_empty() || is_shard()).then_some(uid)
}

/// The shard in the name of a NetworkPolicy; `None` for a base.
pub(super) fn shard_of(name: &str) -> Option<ShardKey> {
    name.strip_prefix("csnp-")?.get(UID_LENGTH + 1..)?.parse().ok()
}

/// Whether this controller created the NetworkPolicy. Its name contains the uid of the policy, and
/// its controller reference has the same uid. Without a controller reference, its labels must have
/// the uid.
pub(super) fn is_ours(object: &KubeObject) -> bool {
    let Some(uid) = object.metadata.name.as_deref().and_then(uid_in) else { return false };
    match controller_of(object) {
        Some(owner) => POLICIES.is_kind_of(owner) && owner.uid == uid,
        None => is_labelled(object, uid),
    }
}

/// Whether a NetworkPolicy has both our labels and our controller reference.
pub(super) fn is_whole(object: &KubeObject, uid: &str) -> bool {
    is_labelled(object, uid) && is_controlled_by(object, uid)
}

fn is_labelled(object: &KubeObject, uid: &str) -> bool {
    let labels = object.metadata.labels.as_ref();
    let has =
        |key, value| labels.and_then(|labels| labels.get(key)).is_some_and(|found| found == value);
    has(MANAGED.0, MANAGED.1) && has(POLICY_UID, uid)
}

/// Gets a NetworkPolicy with any labels. A list with a field selector needs no permission to get.
pub(super) async fn find(
    client: &ApiClient,
    id: &ObjectId,
) -> Result<Option<KubeObject>, ApiError> {
    let params = ListParams::default().fields(&format!("metadata.name={}", id.name));
    let name = NETWORK_POLICIES.name();
    let found = client.request("list", &name, async |client| {
        NETWORK_POLICIES.api(client, "v1", &id.namespace).list(&params).await
    });
    let mut found = found.await?.items.into_iter().next();
    if let Some(object) = &mut found {
        object.complete(&NETWORK_POLICIES.type_meta("v1"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const UID: &str = "00000000-0000-0000-0000-000000000001";

    fn object(name: &str, labels: Value, owners: Value) -> KubeObject {
        let metadata =
            json!({"namespace": "shop", "name": name, "labels": labels, "ownerReferences": owners});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn our_policies_have_our_name_and_our_controller_or_our_labels() {
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
