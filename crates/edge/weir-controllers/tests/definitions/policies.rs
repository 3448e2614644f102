//! The CEL rules of the definitions of network-policy-api (v0.1 for AdminNetworkPolicies, v0.2 for
//! ClusterNetworkPolicies), in schemas with only the fields that the rules need. weir must reject
//! the same objects as the rules, for the same reasons, without an API server.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_api::ManifestReader;
use weir_model::Severity;

use crate::{rules, server::Server};

const GROUP: &str = "policy.networking.k8s.io";

/// A kind, and the differences that its rules depend on.
struct Kind {
    kind: &'static str,
    plural: &'static str,
    version: &'static str,
    /// The words of its rules.
    words: Words,
}

struct Words {
    allow: &'static str,
    ports: &'static str,
    named_port: &'static str,
    no_names: &'static str,
    no_network: &'static str,
}

const RANGE: &str = "Start port must be less than End port";

const CLUSTER: Kind = Kind {
    kind: "ClusterNetworkPolicy",
    plural: "clusternetworkpolicies",
    version: "v1alpha2",
    words: Words {
        allow: "Accept",
        ports: "protocols",
        named_port: "destinationNamedPort",
        no_names: "networks/nodes/domainNames peer cannot be set with namedPorts since there are no namedPorts for networks/nodes/domainNames",
        no_network: "Invalid CIDR format provided",
    },
};

const ADMIN: Kind = Kind {
    kind: "AdminNetworkPolicy",
    plural: "adminnetworkpolicies",
    version: "v1alpha1",
    words: Words {
        allow: "Allow",
        ports: "ports",
        named_port: "namedPort",
        no_network: "CIDR must be either an IPv4 or IPv6 address. IPv4 address embedded in IPv6 addresses are not supported",
        ..CLUSTER.words
    },
};

const BASELINE: Kind = Kind {
    kind: "BaselineAdminNetworkPolicy",
    plural: "baselineadminnetworkpolicies",
    words: Words {
        no_names: "networks/nodes peer cannot be set with namedPorts since there are no namedPorts for networks/nodes",
        ..ADMIN.words
    },
    ..ADMIN
};

const ONLY_DEFAULT: &str = "Only one baseline admin network policy with metadata.name=\"default\" can be created in the cluster";

fn rule(expression: &str, message: &str) -> Value {
    json!([{"rule": expression, "message": message}])
}

impl Kind {
    fn has_names(&self) -> bool {
        self.kind != BASELINE.kind
    }

    /// The schema of an object.
    fn schema(&self) -> Value {
        let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let port = json!({"type": "integer", "minimum": 1, "maximum": 65535});
        let mut range = json!({"type": "object", "required": ["start", "end"],
            "properties": {"start": port, "end": port, "protocol": {"type": "string"}}});
        let is_cluster = self.kind == CLUSTER.kind;
        let entry = if is_cluster {
            range["x-kubernetes-validations"] = rule("self.start < self.end", RANGE);
            let destination =
                json!({"type": "object", "properties": {"number": port, "range": range}});
            let protocol =
                json!({"type": "object", "properties": {"destinationPort": destination}});
            json!({"tcp": protocol, "destinationNamedPort": {"type": "string"}})
        } else {
            json!({"portRange": range, "portNumber": any, "namedPort": {"type": "string"}})
        };
        let is_network =
            if is_cluster { "isCIDR(self)" } else { "self.contains(':') != self.contains('.')" };
        let network = json!({"type": "string", "maxLength": 43,
            "x-kubernetes-validations": rule(is_network, self.words.no_network)});
        let list = |items: &Value| json!({"type": "array", "maxItems": 25, "items": items});
        let mut peer = json!({"namespaces": any, "nodes": any, "networks": list(&network)});
        let mut other = "has(peer.networks) || has(peer.nodes)".to_owned();
        if self.has_names() {
            peer["domainNames"] = list(&json!({"type": "string"}));
            other += " || has(peer.domainNames)";
        }
        let Words { ports, named_port, no_names, .. } = self.words;
        let names = format!(
            "!(self.to.exists(peer, {other}) && has(self.{ports}) && self.{ports}.exists(port, has(port.{named_port})))"
        );
        let entry = json!({"type": "object", "maxProperties": 1, "properties": entry});
        let peer = json!({"type": "object", "maxProperties": 1, "properties": peer});
        let egress = json!({
            "type": "object",
            "required": ["action", "to"],
            "properties": {"action": {"type": "string"}, "to": list(&peer), ports: list(&entry)},
            "x-kubernetes-validations": rule(&names, no_names),
        });
        let spec = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"egress": list(&egress)}});
        let mut schema = json!({"type": "object", "properties": {"spec": spec}});
        if !self.has_names() {
            schema["x-kubernetes-validations"] =
                rule("self.metadata.name == 'default'", ONLY_DEFAULT);
        }
        schema
    }

    fn definition(&self) -> Value {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("{}.{GROUP}", self.plural),
                "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
            },
            "spec": {
                "group": GROUP,
                "scope": "Cluster",
                "names": {"plural": self.plural, "singular": self.kind.to_lowercase(), "kind": self.kind},
                "versions": [{
                    "name": self.version, "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": self.schema()},
                }],
            },
        })
    }

    /// An object with one egress rule.
    fn object(&self, name: &str, peer: &Value, ports: &Value) -> Value {
        let mut spec = json!({"priority": 1, "tier": "Admin", "subject": {"namespaces": {}}});
        if self.kind != CLUSTER.kind {
            spec["tier"].take();
        }
        if !self.has_names() {
            spec["priority"].take();
        }
        let mut egress = json!({"action": self.words.allow, "to": [peer]});
        if !ports.is_null() {
            egress[self.words.ports] = json!([ports]);
        }
        spec["egress"] = json!([egress]);
        let spec = rules::without_nulls(&spec);
        json!({
            "apiVersion": format!("{GROUP}/{}", self.version), "kind": self.kind,
            "metadata": {"name": name}, "spec": spec,
        })
    }

    /// Objects, and why an API server rejects each. Other mistakes than those of CEL rules are
    /// absent.
    fn objects(&self) -> Vec<(Value, Option<&'static str>)> {
        let Words { named_port, no_names, no_network, .. } = self.words;
        let name = if self.has_names() { "a" } else { "default" };
        let object = |peer: Value, ports: Value| self.object(name, &peer, &ports);
        let networks = |net: &str| json!({"networks": [net]});
        let is_cluster = self.kind == CLUSTER.kind;
        let range = |start: u16, end: u16| match is_cluster {
            true => json!({"tcp": {"destinationPort": {"range": {"start": start, "end": end}}}}),
            false => json!({"portRange": {"protocol": "TCP", "start": start, "end": end}}),
        };
        let named = json!({ named_port: "http" });
        let mut all = vec![
            (object(json!({"namespaces": {}}), named.clone()), None),
            (object(json!({"namespaces": {}}), range(80, 90)), None),
            (object(networks("10.0.0.0/8"), range(80, 90)), None),
            (object(networks("10.0.0.1/8"), json!(null)), None),
            (object(networks("fd00::/8"), json!(null)), None),
            (object(json!({"nodes": {}}), json!(null)), None),
            (object(networks("10.0.0.0/8"), named.clone()), Some(no_names)),
            (object(json!({"nodes": {}}), named.clone()), Some(no_names)),
            (object(networks("::ffff:10.0.0.0/104"), json!(null)), Some(no_network)),
            (object(networks("10"), json!(null)), Some(no_network)),
        ];
        if self.has_names() {
            let domain = json!({"domainNames": ["example.com"]});
            all.push((object(domain.clone(), json!(null)), None));
            all.push((object(domain, named), Some(no_names)));
        } else {
            let peer = json!({"namespaces": {}});
            all.push((self.object("other", &peer, &json!(null)), Some(ONLY_DEFAULT)));
        }
        if is_cluster {
            for (start, end) in [(90, 80), (80, 80)] {
                all.push((object(json!({"namespaces": {}}), range(start, end)), Some(RANGE)));
            }
            for net in ["10.0.0.0", "010.0.0.0/8", "10.0.0.0/33", "10.0.0.0/08", "fd00::/129"] {
                all.push((object(networks(net), json!(null)), Some(no_network)));
            }
        } else {
            all.push((object(networks("::10.0.0.0/104"), json!(null)), Some(no_network)));
        }
        all
    }
}

const KINDS: [Kind; 3] = [CLUSTER, ADMIN, BASELINE];

/// The words of the errors that weir reports about an object.
fn rejected_by_weir(object: &Value) -> Vec<String> {
    let mut reader = ManifestReader::new();
    reader.read_file("object.json".into(), object.to_string().as_bytes());
    let findings = reader.finish().findings.into_iter();
    let errors = findings.filter(|finding| finding.severity == Severity::Error);
    errors.map(|finding| finding.message).collect()
}

/// weir, without an API server, rejects what the rules reject, and says why in the same words.
pub(crate) fn weir_agrees() {
    for (object, expected) in KINDS.iter().flat_map(Kind::objects) {
        let errors = rejected_by_weir(&object);
        let is_as_expected = match expected {
            None => errors.is_empty(),
            Some(words) => matches!(&errors[..], [error] if error.contains(words)),
        };
        assert!(is_as_expected, "{object}: expected {expected:?}, found {errors:?}");
    }
}

/// The rules reject the objects that the table says.
pub(crate) fn rules_agree() {
    for kind in &KINDS {
        let schema = kind.schema();
        for (object, expected) in kind.objects() {
            let found = rules::violations(&schema, &object, "");
            let words: BTreeSet<&str> = found.iter().map(|(_, words)| &**words).collect();
            assert_eq!(words, expected.into_iter().collect(), "{object}");
        }
    }
}

/// An API server rejects the same objects for the same reasons.
pub(crate) fn server_agrees() {
    let server = Server::start();
    for kind in &KINDS {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        server.create(path, &kind.definition()).unwrap();
        let path = format!("/apis/{GROUP}/{}/{}", kind.version, kind.plural);
        let start = Instant::now();
        while server.get(&path).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "{path} is not served");
            thread::sleep(Duration::from_millis(50));
        }
        for (number, (mut object, expected)) in kind.objects().into_iter().enumerate() {
            if kind.has_names() {
                object["metadata"]["name"] = format!("try-{number}").into();
            }
            let answer = server.create(&path, &object);
            match (answer, expected) {
                // There can be only one object with a fixed name.
                (Ok(_), None) => (),
                (Err(kube::Error::Api(status)), None) if status.code == 409 => (),
                (Err(kube::Error::Api(status)), Some(words)) if status.code == 422 => {
                    assert!(status.message.contains(words), "{object}: {}", status.message);
                }
                (answer, _) => panic!("{object}: expected {expected:?}, found {answer:?}"),
            }
        }
    }
}
