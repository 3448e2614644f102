//! Which flows and drops to show.

use clap::{Args, ValueEnum};
use weir_flows::{FlowRecord, FlowVerdict};

use crate::{drops::Dropped, failure::Failure};

/// Selects flows or drops.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ObserveFilter {
    /// Only flows from or to pods of this namespace
    #[arg(short, long, value_name = "NAME", value_parser = object_name)]
    namespace: Option<String>,
    /// Only flows from or to this pod or workload: NAME or NAMESPACE/NAME; twice for both ends
    #[arg(long, value_name = "POD", value_parser = name_in_namespace)]
    pod: Vec<String>,
    /// Only flows that this policy decided: NAME or NAMESPACE/NAME
    #[arg(long, value_name = "POLICY", value_parser = name_in_namespace)]
    policy: Option<String>,
}

/// A verdict to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerdictArg {
    /// Connections that passed
    Allow,
    /// Packets that were denied
    Deny,
    /// Connections that policies deny, and that passed because of audit mode
    Audit,
}

impl VerdictArg {
    pub(crate) fn is(self, verdict: FlowVerdict) -> bool {
        let own = match self {
            VerdictArg::Allow => FlowVerdict::Allow,
            VerdictArg::Deny => FlowVerdict::Deny,
            VerdictArg::Audit => FlowVerdict::Audit,
        };
        own == verdict
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            VerdictArg::Allow => "allow",
            VerdictArg::Deny => "deny",
            VerdictArg::Audit => "audit",
        }
    }
}

/// Checks a name of an object.
fn object_name(text: &str) -> Result<String, String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    if text.is_empty() || text.len() > 253 || !text.bytes().all(is_allowed) {
        return Err("expected a name: letters, digits, `-` and `.`".to_owned());
    }
    Ok(text.to_owned())
}

/// Checks `NAME` or `NAMESPACE/NAME`.
fn name_in_namespace(text: &str) -> Result<String, String> {
    let mut parts = text.splitn(3, '/');
    let is_name = |part: &str| object_name(part).is_ok();
    match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, None) if is_name(name) => Ok(text.to_owned()),
        (Some(namespace), Some(name), None) if is_name(namespace) && is_name(name) => {
            Ok(text.to_owned())
        }
        _ => Err("expected NAME or NAMESPACE/NAME".to_owned()),
    }
}

impl ObserveFilter {
    /// Selects the flows and drops from or to pods of a namespace, or all.
    pub(crate) fn in_namespace(namespace: Option<&str>) -> Self {
        ObserveFilter { namespace: namespace.map(str::to_owned), ..ObserveFilter::default() }
    }

    /// Checks what the arguments mean together, before an agent is asked.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.pod.len() > 2 {
            let what =
                format!("a connection has two ends, but --pod is given {} times", self.pod.len());
            return Err(Failure::new(what, "give --pod once or twice"));
        }
        Ok(())
    }

    /// Whether to show a flow.
    pub(crate) fn shows(&self, flow: &FlowRecord) -> bool {
        let FlowRecord { from, to, policies, .. } = flow;
        let ends = [from, to];
        let in_namespace =
            self.namespace.as_ref().is_none_or(|wanted| ends.iter().any(|end| end.is_in(wanted)));
        let has_pods = match &self.pod[..] {
            // Each end is one of the pods, so that `--pod a --pod b` shows what happens between them.
            [first, second, ..] => {
                (from.is_named(first) && to.is_named(second))
                    || (from.is_named(second) && to.is_named(first))
            }
            [only] => ends.iter().any(|end| end.is_named(only)),
            [] => true,
        };
        let has_policy = self.policy.as_ref().is_none_or(|wanted| {
            policies.iter().any(|rule| {
                let namespaced =
                    rule.namespace.as_ref().map(|space| format!("{space}/{}", rule.name));
                rule.name == *wanted || namespaced.as_ref() == Some(wanted)
            })
        });
        in_namespace && has_pods && has_policy
    }

    /// Whether to show a drop.
    pub(crate) fn shows_drop(&self, drop: &Dropped) -> bool {
        let pods = [drop.from_pod.as_deref(), drop.to_pod.as_deref()];
        let is_pod = |pod: Option<&str>, wanted: &str| {
            pod.is_some_and(|pod| {
                pod == wanted || pod.split_once('/').is_some_and(|(_, name)| name == wanted)
            })
        };
        let in_namespace = self.namespace.as_ref().is_none_or(|wanted| {
            let is_in = |pod: &Option<&str>| {
                pod.and_then(|pod| pod.split_once('/')).is_some_and(|(space, _)| space == wanted)
            };
            pods.iter().any(is_in)
        });
        let has_pods = match &self.pod[..] {
            [first, second, ..] => {
                (is_pod(pods[0], first) && is_pod(pods[1], second))
                    || (is_pod(pods[0], second) && is_pod(pods[1], first))
            }
            [only] => pods.into_iter().any(|pod| is_pod(pod, only)),
            [] => true,
        };
        let has_policy = self.policy.as_ref().is_none_or(|wanted| {
            drop.policies.iter().filter_map(|policy| policy.split_once(' ')).any(|(_, name)| {
                name == wanted || name.split_once('/').is_some_and(|(_, name)| name == wanted)
            })
        });
        in_namespace && has_pods && has_policy
    }

    /// The arguments that select the same.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let namespace = self.namespace.iter().map(|value| format!("--namespace={value}"));
        let pods = self.pod.iter().map(|value| format!("--pod={value}"));
        let policy = self.policy.iter().map(|value| format!("--policy={value}"));
        namespace.chain(pods).chain(policy).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked_before_agents_are_asked() {
        for text in ["web", "shop/web", "web-7d4.x"] {
            assert_eq!(name_in_namespace(text).as_deref(), Ok(text));
        }
        for text in ["", "/web", "shop/", "pod/shop/web", "a b", "web_1"] {
            assert!(name_in_namespace(text).is_err(), "{text}");
        }
        let pod = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert!(ObserveFilter { pod, ..ObserveFilter::default() }.check().is_err());
    }
}
