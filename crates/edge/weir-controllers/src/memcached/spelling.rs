//! Fields of a Memcached that are not spelt as the one that was meant, which would count as not written.

use serde_json::Value;
use weir_model::closest;

/// A mapping that decides about the policy.
struct Place {
    path: &'static [&'static str],
    known: &'static [&'static str],
    others: Others,
}

/// Which other fields a mapping may have.
enum Others {
    /// None: the mapping is about nothing but the policy.
    Nobody,
    /// Those of the operator, but none that is nearly one of ours.
    Operator,
}

const PLACES: [Place; 5] = [
    Place { path: &[], known: &["monitoring", "security"], others: Others::Operator },
    Place { path: &["monitoring"], known: &["enabled"], others: Others::Operator },
    Place { path: &["security"], known: &["tls", "networkPolicy"], others: Others::Operator },
    Place { path: &["security", "tls"], known: &["enabled"], others: Others::Operator },
    Place {
        path: &["security", "networkPolicy"],
        known: &["enabled", "allowedSources"],
        others: Others::Nobody,
    },
];

/// Whether the fields of a spec are spelt well; if not, which are not, and what was probably meant.
pub(super) fn check(spec: &Value) -> Result<(), String> {
    let wrong: Vec<String> = PLACES.iter().flat_map(|place| place.wrong(spec)).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

impl Place {
    fn wrong(&self, spec: &Value) -> Vec<String> {
        let place = self.path.iter().try_fold(spec, |value, field| value.get(field));
        let fields = place.and_then(Value::as_object).into_iter().flatten();
        let unknown =
            fields.map(|(field, _)| field.as_str()).filter(|field| !self.known.contains(field));
        unknown.filter_map(|field| self.complaint(field)).collect()
    }

    fn complaint(&self, field: &str) -> Option<String> {
        let hint = match (closest(field, self.known.iter().copied()), &self.others) {
            (Some(meant), _) => format!("did you mean `{meant}`?"),
            (None, Others::Nobody) => "remove the field, or move it to where it belongs".into(),
            (None, Others::Operator) => return None,
        };
        let path: String = self.path.iter().map(|field| format!(".{field}")).collect();
        // Whoever writes an object chooses the name, also one that is long or that a terminal would obey.
        let shown: String = field.chars().take(64).flat_map(char::escape_debug).collect();
        let expected = match self.others {
            Others::Nobody => format!("; expected {}", self.known.join(", ")),
            Others::Operator => String::new(),
        };
        Some(format!("spec{path}.{shown}: there is no field {shown} here{expected} ({hint})"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_is_nearly_one_of_ours_is_named_with_the_one_that_was_meant() {
        for (spec, expected) in [
            (
                json!({"security": {"networkPolicy": {"enabled": true, "allowedSource": []}}}),
                "spec.security.networkPolicy.allowedSource: there is no field allowedSource here; expected enabled, allowedSources (did you mean `allowedSources`?)",
            ),
            (
                json!({"security": {"networkPolicy": {"enabled": true, "from": []}}}),
                "spec.security.networkPolicy.from: there is no field from here; expected enabled, allowedSources (remove the field, or move it to where it belongs)",
            ),
            (
                json!({"security": {"tls": {"enabeld": true}}}),
                "spec.security.tls.enabeld: there is no field enabeld here (did you mean `enabled`?)",
            ),
            (
                json!({"security": {"networkpolicy": {"enabled": true}}}),
                "spec.security.networkpolicy: there is no field networkpolicy here (did you mean `networkPolicy`?)",
            ),
            (
                json!({"Security": {}, "monitoring": {"enable": true}}),
                "spec.Security: there is no field Security here (did you mean `security`?); spec.monitoring.enable: there is no field enable here (did you mean `enabled`?)",
            ),
            (
                json!({"security": {"tsl": {}}}),
                "spec.security.tsl: there is no field tsl here (did you mean `tls`?)",
            ),
            (
                json!({"security": {"networkPolicy": {"\u{1b}[2J": 1}}}),
                "spec.security.networkPolicy.\\u{1b}[2J: there is no field \\u{1b}[2J here; expected enabled, allowedSources (remove the field, or move it to where it belongs)",
            ),
        ] {
            assert_eq!(check(&spec), Err(expected.into()), "{spec}");
        }
        let long = json!({"security": {"networkPolicy": {"x".repeat(100_000): 1}}});
        assert!(check(&long).unwrap_err().len() < 400);
    }

    #[test]
    fn other_fields_of_the_operator_are_its_own_business() {
        let spec = json!({
            "replicas": 3, "image": "memcached:1.6", "resources": {}, "memcached": {"maxMemoryMB": 64},
            "highAvailability": {"enabled": true}, "service": {"annotations": {}}, "autoscaling": {"enabled": true},
            "monitoring": {"enabled": true, "exporterImage": "x", "exporterResources": {}, "serviceMonitor": {"interval": "30s"}},
            "security": {
                "podSecurityContext": {}, "containerSecurityContext": {},
                "sasl": {"enabled": true, "credentialsSecretRef": {"name": "s"}},
                "tls": {"enabled": true, "certificateSecretRef": {"name": "t"}, "enableClientCert": true},
                "networkPolicy": {"enabled": true, "allowedSources": []},
            },
        });
        assert_eq!(check(&spec), Ok(()));
        for odd in [json!(null), json!("all"), json!({"security": [1], "monitoring": null})] {
            assert_eq!(check(&odd), Ok(()), "{odd}");
        }
    }
}
