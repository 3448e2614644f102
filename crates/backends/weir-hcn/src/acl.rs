use std::fmt;

use serde_json::{Map, Value, json};
use weir_model::Name;

/// The prefix of the ids of all our ACLs. The backend never changes other policies.
pub const PREFIX: &str = "weir:";

/// One ACL policy of an endpoint, as HNS reads and writes it. HNS omits empty fields; an empty
/// field matches anything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acl {
    /// The priority; the lowest number is evaluated first. `None` on rules of the host firewall.
    pub priority: Option<u16>,
    /// The direction of the packets, seen from the pod.
    pub direction: AclDirection,
    /// The action.
    pub action: AclAction,
    /// The id, which names the writer and the policy.
    pub id: Name,
    /// The protocol number.
    pub protocols: Name,
    /// Networks and addresses of the pod. Always empty in our ACLs.
    pub local_addresses: Name,
    /// Networks and addresses of the peer, in both directions.
    pub remote_addresses: Name,
    /// The ports of the pod.
    pub local_ports: Name,
    /// The ports of the peer.
    pub remote_ports: Name,
    /// The component that enforces the ACL.
    pub rule_type: RuleType,
}

/// The direction of packets, seen from the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AclDirection {
    /// Towards the pod.
    In,
    /// From the pod.
    Out,
}

/// The action of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AclAction {
    /// Forward the packet.
    Allow,
    /// Drop the packet.
    Block,
}

/// The component that enforces an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleType {
    /// The virtual switch.
    Switch,
    /// The host firewall.
    Host,
}

impl Acl {
    /// An ACL of the switch that matches all traffic.
    pub(crate) fn new(id: Name, direction: AclDirection, action: AclAction, priority: u16) -> Self {
        Acl {
            priority: Some(priority),
            direction,
            action,
            id,
            protocols: Name::default(),
            local_addresses: Name::default(),
            remote_addresses: Name::default(),
            local_ports: Name::default(),
            remote_ports: Name::default(),
            rule_type: RuleType::Switch,
        }
    }

    /// An ACL of the host firewall that allows all traffic. It has no priority.
    pub(crate) fn host(direction: AclDirection) -> Self {
        let id = format!("{PREFIX}host-{direction}").to_ascii_lowercase();
        let acl = Acl::new(id.into(), direction, AclAction::Allow, 0);
        Acl { rule_type: RuleType::Host, priority: None, ..acl }
    }

    /// Whether this is one of our ACLs.
    pub fn is_ours(&self) -> bool {
        self.id.starts_with(PREFIX)
    }

    /// The policy in the format of HNS.
    pub fn policy(&self) -> Value {
        let mut settings = Map::new();
        for (name, text) in [
            ("Id", &*self.id),
            ("Protocols", &*self.protocols),
            ("Action", &*self.action.to_string()),
            ("Direction", &*self.direction.to_string()),
            ("LocalAddresses", &*self.local_addresses),
            ("RemoteAddresses", &*self.remote_addresses),
            ("LocalPorts", &*self.local_ports),
            ("RemotePorts", &*self.remote_ports),
            ("RuleType", &*self.rule_type.to_string()),
        ] {
            if !text.is_empty() {
                settings.insert(name.into(), text.into());
            }
        }
        if let Some(priority) = self.priority {
            settings.insert("Priority".into(), priority.into());
        }
        json!({"Type": "ACL", "Settings": settings})
    }

    /// Parses a policy. Returns `None` if it is not an ACL, or has unknown values.
    ///
    /// HNS does not return a policy unchanged. It adds fields, uses 256 for any protocol, and
    /// reorders lists.
    pub fn parse(policy: &Value) -> Option<Acl> {
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
            zero if zero == "0" => Name::default(),
            text => sorted(&text),
        };
        Some(Acl {
            priority: text("Priority").parse().ok().filter(|priority| *priority != 0),
            direction: match &*text("Direction") {
                "In" => AclDirection::In,
                "Out" => AclDirection::Out,
                _ => return None,
            },
            action: match &*text("Action") {
                "Allow" => AclAction::Allow,
                "Block" => AclAction::Block,
                _ => return None,
            },
            id: text("Id").into(),
            protocols: match list("Protocols") {
                any if &*any == "256" => Name::default(),
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

    /// Sorts the lists, to compare the ACL with one that was read back.
    pub(crate) fn sorted_lists(mut self) -> Acl {
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

/// Sorts the parts of a comma-separated list.
fn sorted(list: &str) -> Name {
    let mut parts: Vec<&str> =
        list.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    parts.sort_unstable();
    parts.join(",").into()
}

impl fmt::Display for AclDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            AclDirection::In => "In",
            AclDirection::Out => "Out",
        })
    }
}

impl fmt::Display for AclAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AclAction::Allow => "Allow",
            AclAction::Block => "Block",
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

/// One readable line.
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
    fn an_acl_survives_a_round_trip_through_hns() {
        let acl = Acl {
            protocols: "6".into(),
            remote_addresses: "10.9.0.0/16,10.10.0.7".into(),
            local_ports: "80".into(),
            ..Acl::new("weir:a".into(), AclDirection::In, AclAction::Allow, 2000)
        };
        let back = json!({"Type": "ACL", "Settings": {
            "Id": "weir:a", "Protocols": "6", "Action": "Allow", "Direction": "In", "LocalAddresses": "",
            "RemoteAddresses": "10.10.0.7,10.9.0.0/16", "LocalPorts": "80", "RemotePorts": "", "RuleType": "Switch",
            "Priority": 2000, "Scope": 0, "InternalPort": 0, "LocalPort": 0, "ServiceName": "",
        }});
        assert_eq!(Acl::parse(&back), Some(acl.clone().sorted_lists()));
        assert_eq!(Acl::parse(&acl.policy()), Some(acl.sorted_lists()));
        let any = json!({"Type": "ACL", "Settings": {"Protocols": "256", "Action": "Block", "Direction": "Out", "Priority": 0}});
        let read = Acl::parse(&any).unwrap();
        assert_eq!((&*read.protocols, read.priority), ("", None));
    }

    #[test]
    fn policies_that_are_not_valid_acls_are_ignored() {
        for policy in [
            json!({}),
            json!({"Type": "OutBoundNAT", "Settings": {}}),
            json!({"Type": "ACL", "Settings": {"Action": "Pass", "Direction": "In"}}),
            json!({"Type": "ACL", "Settings": 7}),
        ] {
            assert_eq!(Acl::parse(&policy), None, "{policy}");
        }
    }
}
