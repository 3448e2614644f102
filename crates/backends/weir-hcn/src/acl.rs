use std::fmt;

use serde_json::{Map, Value, json};

/// What every rule of ours is marked with. Nothing else is ever changed.
pub const PREFIX: &str = "weir:";

/// One ACL policy of an endpoint, as HNS reads and writes it. Empty texts are left out, and mean anything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acl {
    /// The lowest number is matched first; `None` on rules of the host's firewall.
    pub priority: Option<u16>,
    /// Towards the pod or away from it.
    pub direction: Way,
    /// What happens.
    pub action: Action,
    /// Who put it there, and for which policy.
    pub id: String,
    /// The number of the protocol.
    pub protocols: String,
    /// Networks and addresses of the pod; always empty in rules of ours.
    pub local_addresses: String,
    /// Networks and addresses of the peer, in both directions.
    pub remote_addresses: String,
    /// The ports of the pod.
    pub local_ports: String,
    /// The ports of the peer.
    pub remote_ports: String,
    /// Who executes it.
    pub rule_type: RuleType,
}

/// The direction of packets, seen from the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// Towards the pod.
    In,
    /// Away from it.
    Out,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// The packet passes.
    Allow,
    /// The packet is dropped.
    Block,
}

/// Who executes a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleType {
    /// The virtual switch.
    Switch,
    /// The firewall of the host.
    Host,
}

impl Acl {
    /// A rule of the switch about everything.
    pub(crate) fn new(id: String, direction: Way, action: Action, priority: u16) -> Self {
        Acl {
            priority: Some(priority),
            direction,
            action,
            id,
            protocols: String::new(),
            local_addresses: String::new(),
            remote_addresses: String::new(),
            local_ports: String::new(),
            remote_ports: String::new(),
            rule_type: RuleType::Switch,
        }
    }

    /// Whether it is one of ours.
    pub fn is_ours(&self) -> bool {
        self.id.starts_with(PREFIX)
    }

    /// The policy, as HNS takes it.
    pub fn policy(&self) -> Value {
        let mut settings = Map::new();
        for (name, text) in [
            ("Id", &self.id),
            ("Protocols", &self.protocols),
            ("Action", &self.action.to_string()),
            ("Direction", &self.direction.to_string()),
            ("LocalAddresses", &self.local_addresses),
            ("RemoteAddresses", &self.remote_addresses),
            ("LocalPorts", &self.local_ports),
            ("RemotePorts", &self.remote_ports),
            ("RuleType", &self.rule_type.to_string()),
        ] {
            if !text.is_empty() {
                settings.insert(name.into(), text.as_str().into());
            }
        }
        if let Some(priority) = self.priority {
            settings.insert("Priority".into(), priority.into());
        }
        json!({"Type": "ACL", "Settings": settings})
    }

    /// Reads a policy back; `None` if it is no ACL, or one that cannot be understood.
    ///
    /// HNS does not give back what it was given: there are members that nobody set, any protocol is 256, and lists may have
    /// another order.
    pub fn read(policy: &Value) -> Option<Acl> {
        if policy.get("Type")?.as_str()? != "ACL" {
            return None;
        }
        let settings = policy.get("Settings")?;
        let text = |name: &str| match settings.get(name) {
            Some(Value::String(text)) => text.trim().to_owned(),
            Some(Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        let list = |name: &str| match text(name) {
            zero if zero == "0" => String::new(),
            text => sorted(&text),
        };
        Some(Acl {
            priority: text("Priority").parse().ok().filter(|priority| *priority != 0),
            direction: match &*text("Direction") {
                "In" => Way::In,
                "Out" => Way::Out,
                _ => return None,
            },
            action: match &*text("Action") {
                "Allow" => Action::Allow,
                "Block" => Action::Block,
                _ => return None,
            },
            id: text("Id"),
            protocols: match list("Protocols") {
                any if any == "256" => String::new(),
                protocols => protocols,
            },
            local_addresses: list("LocalAddresses"),
            remote_addresses: list("RemoteAddresses"),
            local_ports: list("LocalPorts"),
            remote_ports: list("RemotePorts"),
            rule_type: match &*text("RuleType") {
                "Host" => RuleType::Host,
                _ => RuleType::Switch,
            },
        })
    }

    /// The same rule with its lists in one order, so that it can be compared with what was read.
    pub(crate) fn normal(mut self) -> Acl {
        let lists = [
            &mut self.protocols,
            &mut self.local_addresses,
            &mut self.remote_addresses,
            &mut self.local_ports,
            &mut self.remote_ports,
        ];
        lists.into_iter().for_each(|list| *list = sorted(list));
        self
    }
}

/// A list with its parts in the order of their letters.
fn sorted(list: &str) -> String {
    let mut parts: Vec<&str> =
        list.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    parts.sort_unstable();
    parts.join(",")
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Way::In => "In",
            Way::Out => "Out",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Allow => "Allow",
            Action::Block => "Block",
        })
    }
}

impl fmt::Display for RuleType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuleType::Switch => "Switch",
            RuleType::Host => "Host",
        })
    }
}

/// One line for people.
impl fmt::Display for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.priority {
            Some(priority) => write!(f, "{priority:>5}")?,
            None => write!(f, "    -")?,
        }
        write!(f, " {:<3} {}", self.direction, self.action)?;
        for (name, text) in [
            ("protocol", &self.protocols),
            ("local", &self.local_addresses),
            ("remote", &self.remote_addresses),
            ("local-ports", &self.local_ports),
            ("remote-ports", &self.remote_ports),
        ] {
            if !text.is_empty() {
                write!(f, " {name} {text}")?;
            }
        }
        if self.rule_type == RuleType::Host {
            f.write_str(" (host)")?;
        }
        write!(f, "  {}", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hns_gives_back_is_what_it_was_given() {
        let acl = Acl {
            protocols: "6".into(),
            remote_addresses: "10.9.0.0/16,10.10.0.7".into(),
            local_ports: "80".into(),
            ..Acl::new("weir:a".into(), Way::In, Action::Allow, 2000)
        };
        let back = json!({"Type": "ACL", "Settings": {
            "Id": "weir:a", "Protocols": "6", "Action": "Allow", "Direction": "In", "LocalAddresses": "",
            "RemoteAddresses": "10.10.0.7,10.9.0.0/16", "LocalPorts": "80", "RemotePorts": "", "RuleType": "Switch",
            "Priority": 2000, "Scope": 0, "InternalPort": 0, "LocalPort": 0, "ServiceName": "",
        }});
        assert_eq!(Acl::read(&back), Some(acl.clone().normal()));
        assert_eq!(Acl::read(&acl.policy()), Some(acl.normal()));
        let any = json!({"Type": "ACL", "Settings": {"Protocols": "256", "Action": "Block", "Direction": "Out", "Priority": 0}});
        let read = Acl::read(&any).unwrap();
        assert_eq!((&*read.protocols, read.priority), ("", None));
    }

    #[test]
    fn what_is_no_acl_is_nobodys_rule() {
        for policy in [
            json!({}),
            json!({"Type": "OutBoundNAT", "Settings": {}}),
            json!({"Type": "ACL", "Settings": {"Action": "Pass", "Direction": "In"}}),
            json!({"Type": "ACL", "Settings": 7}),
        ] {
            assert_eq!(Acl::read(&policy), None, "{policy}");
        }
    }
}
