use serde_json::{Value, json};

use crate::{HostprotObject, Pol};

impl Pol {
    /// The entry of this object in `/hpp`: its key and its JSON.
    /// `None` for objects without policies.
    pub fn status(&self, namespace: &str) -> Option<(String, Value)> {
        self.selects.as_ref()?;
        let keys = &self.spec.network_policies;
        let name = HostprotObject::Pol(self.clone()).id().name;
        let metadata = json!({"name": name, "namespace": namespace, "creationTimestamp": null});
        let status = json!({
            "ref-count": keys.len(),
            "npkeys": keys,
            "hpp-cr": {"metadata": metadata, "spec": self.spec},
        });
        Some((self.spec.name.clone(), status))
    }
}

#[cfg(test)]
mod tests {
    use crate::{HostprotRule, PolSpec, Subj};

    use super::*;

    /// The example of the design, word for word.
    #[test]
    fn the_status_matches_the_design() {
        let name = "demo_xyz1_np_b30c63a38d0cfe317bc447ce03eca182";
        let rule = HostprotRule {
            name: "0_0-ipv4".into(),
            direction: "ingress".into(),
            ethertype: "ipv4".into(),
            conn_track: "reflexive".into(),
            protocol: "tcp".into(),
            to_port: "80".into(),
            from_port: "unspecified".into(),
            ..HostprotRule::default()
        };
        let subject = |name: &str, hostprot_rule| Subj { name: name.into(), hostprot_rule };
        let spec = PolSpec {
            name: name.into(),
            hostprot_subj: vec![
                subject("networkpolicy-ingress", vec![rule]),
                subject("networkpolicy-egress", Vec::new()),
            ],
            network_policies: vec!["frontend/frontend-policy".into()],
        };
        let pol = Pol { spec, selects: Some(Vec::new()) };
        let (key, status) = pol.status("aci-containers-system").unwrap();
        assert_eq!(key, name);
        assert_eq!(
            status.to_string(),
            r#"{"ref-count":1,"npkeys":["frontend/frontend-policy"],"hpp-cr":{"metadata":{"name":"demo-xyz1-np-b30c63a38d0cfe317bc447ce03eca182","namespace":"aci-containers-system","creationTimestamp":null},"spec":{"name":"demo_xyz1_np_b30c63a38d0cfe317bc447ce03eca182","hostprotSubj":[{"name":"networkpolicy-ingress","hostprotRule":[{"name":"0_0-ipv4","direction":"ingress","ethertype":"ipv4","connTrack":"reflexive","protocol":"tcp","toPort":"80","fromPort":"unspecified","hostprotFilterContainer":{}}]},{"name":"networkpolicy-egress"}],"networkPolicies":["frontend/frontend-policy"]}}}"#
        );
        assert_eq!(Pol { selects: None, ..pol }.status("x"), None);
    }
}
