//! The JSON documents that HNS returns for endpoints and networks, and the update request.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use weir_model::PodId;

use crate::{Acl, PREFIX, RuleType};

/// The kinds of networks whose endpoints the switch filters.
const FILTERED_KINDS: [&str; 3] = ["L2Bridge", "L2Tunnel", "Overlay"];
/// The id of a namespace that does not exist.
const NO_NAMESPACE: &str = "00000000-0000-0000-0000-000000000000";

/// All endpoints and networks of a machine, and its addresses.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// The endpoints.
    pub endpoints: Vec<HnsEndpoint>,
    /// The networks, by id.
    pub networks: BTreeMap<String, HnsNetwork>,
    /// The addresses of the machine.
    pub addresses: BTreeSet<IpAddr>,
}

/// An endpoint. Ids are in lower case.
#[derive(Clone, Debug)]
pub struct HnsEndpoint {
    /// The id.
    pub id: String,
    /// The id of its network.
    pub network: String,
    /// The addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether it is attached to a namespace. Endpoints of dead pods are not.
    pub is_attached: bool,
    /// Whether it represents a pod of another node.
    pub is_remote: bool,
    /// All policies of the endpoint, byte for byte.
    policies: Vec<Box<RawValue>>,
}

/// A network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HnsNetwork {
    /// The name.
    pub name: String,
    /// The kind.
    pub kind: String,
}

impl Inventory {
    /// The endpoints of a pod: local ones with one of its addresses, on a network that the switch
    /// filters or on the named network. Attached endpoints take precedence.
    pub fn of_pod(&self, addresses: &[IpAddr], network: Option<&str>) -> Vec<&HnsEndpoint> {
        let is_filtered = |endpoint: &&HnsEndpoint| {
            let network_of = self.networks.get(&endpoint.network);
            network_of.is_some_and(|one| {
                FILTERED_KINDS.contains(&&*one.kind)
                    || network.is_some_and(|name| one.name.eq_ignore_ascii_case(name))
            })
        };
        let has = |endpoint: &&HnsEndpoint| {
            !endpoint.is_remote && endpoint.addresses.iter().any(|own| addresses.contains(own))
        };
        let all: Vec<&HnsEndpoint> =
            self.endpoints.iter().filter(has).filter(is_filtered).collect();
        if all.iter().any(|endpoint| endpoint.is_attached) {
            all.into_iter().filter(|endpoint| endpoint.is_attached).collect()
        } else {
            all
        }
    }

    /// The warning about a pod with these addresses that has no endpoint to filter at.
    pub(crate) fn absence_warning(&self, pod: &PodId, addresses: &[IpAddr]) -> String {
        let list: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        let list = list.join(", ");
        match self.unfiltered(addresses) {
            Some(network) => format!(
                "{pod} ({list}) is on {network}, whose endpoints the switch does not filter: its rules are not in effect"
            ),
            None => format!(
                "{pod} ({list}) has no endpoint yet: its rules take effect when HNS creates one"
            ),
        }
    }

    /// Describes the unfiltered network that an endpoint with these addresses is on.
    pub(crate) fn unfiltered(&self, addresses: &[IpAddr]) -> Option<String> {
        let has = |endpoint: &&HnsEndpoint| {
            !endpoint.is_remote && endpoint.addresses.iter().any(|own| addresses.contains(own))
        };
        let endpoint = self.endpoints.iter().find(has)?;
        Some(match self.networks.get(&endpoint.network) {
            Some(HnsNetwork { name, kind }) => format!("network {name} of kind {kind}"),
            None => format!("network {}, which HNS does not list", endpoint.network),
        })
    }
}

impl HnsEndpoint {
    /// Parses the document of an endpoint.
    pub fn parse(text: &str) -> Result<HnsEndpoint, serde_json::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Document {
            #[serde(rename = "ID", alias = "Id")]
            id: String,
            host_compute_network: Option<String>,
            host_compute_namespace: Option<String>,
            ip_configurations: Option<Vec<IpConfiguration>>,
            policies: Option<Vec<Box<RawValue>>>,
            flags: Option<u64>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct IpConfiguration {
            ip_address: Option<String>,
        }
        let document: Document = serde_json::from_str(text)?;
        let namespace = document.host_compute_namespace.unwrap_or_default();
        let configurations = document.ip_configurations.into_iter().flatten();
        let addresses = configurations.filter_map(|one| one.ip_address?.parse().ok());
        Ok(HnsEndpoint {
            id: document.id.to_ascii_lowercase(),
            network: document.host_compute_network.unwrap_or_default().to_ascii_lowercase(),
            addresses: addresses.collect(),
            is_attached: !namespace.is_empty() && namespace != NO_NAMESPACE,
            is_remote: document.flags.unwrap_or(0) & 1 == 1,
            policies: document.policies.unwrap_or_default(),
        })
    }

    /// Our ACLs on this endpoint, sorted.
    pub fn ours(&self) -> Vec<Acl> {
        let mut ours: Vec<Acl> = self.acls().filter(Acl::is_ours).collect();
        ours.sort();
        ours
    }

    /// Whether the endpoint has any of our ACLs.
    pub fn has_ours(&self) -> bool {
        self.policies.iter().any(|policy| is_ours(policy))
    }

    /// The ACLs that the endpoint should have for these ACLs of its pod. If another program has set
    /// rules for the host firewall on the endpoint, those of weir are left out.
    pub fn desired(&self, acls: &[Acl]) -> Vec<Acl> {
        let is_host = |acl: &Acl| acl.rule_type == RuleType::Host;
        let has_foreign_host_rules = self.acls().any(|acl| is_host(&acl) && !acl.is_ours());
        let acls = acls.iter().filter(|acl| !has_foreign_host_rules || !is_host(acl));
        let mut desired: Vec<Acl> = acls.cloned().map(Acl::sorted_lists).collect();
        desired.sort();
        desired
    }

    /// The request that replaces our ACLs and keeps all other policies.
    pub fn update(&self, desired: &[Acl]) -> Result<String, serde_json::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Request<'a> {
            resource_type: &'a str,
            request_type: &'a str,
            settings: HcnSettings<'a>,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct HcnSettings<'a> {
            policies: Vec<&'a RawValue>,
        }
        let ours: Vec<Box<RawValue>> = desired
            .iter()
            .map(|acl| serde_json::value::to_raw_value(&acl.policy()))
            .collect::<Result<_, _>>()?;
        let foreign = self.policies.iter().filter(|policy| !is_ours(policy));
        let policies = foreign.chain(&ours).map(|policy| &**policy).collect();
        serde_json::to_string(&Request {
            resource_type: "Policy",
            request_type: "Update",
            settings: HcnSettings { policies },
        })
    }

    fn acls(&self) -> impl Iterator<Item = Acl> {
        self.policies.iter().filter_map(|policy| Acl::parse(&value(policy)))
    }
}

impl HnsNetwork {
    /// Parses the document of a network to its id and properties. HNS omits the kind of a NAT
    /// network.
    pub fn parse(text: &str) -> Result<(String, HnsNetwork), serde_json::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Document {
            #[serde(rename = "ID", alias = "Id")]
            id: String,
            name: Option<String>,
            r#type: Option<String>,
        }
        let Document { id, name, r#type } = serde_json::from_str(text)?;
        let kind = r#type.filter(|kind| !kind.is_empty()).unwrap_or_else(|| "NAT".into());
        Ok((id.to_ascii_lowercase(), HnsNetwork { name: name.unwrap_or_default(), kind }))
    }
}

/// Whether a policy is an ACL with one of our ids, even if it is invalid.
fn is_ours(policy: &RawValue) -> bool {
    let policy = value(policy);
    let id = policy.get("Settings").and_then(|settings| settings.get("Id"));
    policy["Type"] == "ACL" && id.and_then(Value::as_str).is_some_and(|id| id.starts_with(PREFIX))
}

fn value(policy: &RawValue) -> Value {
    serde_json::from_str(policy.get()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AclAction, AclDirection};

    const ENDPOINT: &str = r#"{"ID":"AAAA","HostComputeNetwork":"N1","HostComputeNamespace":"S1","IpConfigurations":[{"IpAddress":"10.0.0.1","PrefixLength":24},{"IpAddress":"fd00::1"}],
        "Policies":[{"Type":"OutBoundNAT","Settings":{"Exceptions":["10.96.0.0/12"],"Odd":1.50}},{"Type":"ACL","Settings":{"Id":"azure-acl","Action":"Block","Direction":"Out","Priority":200}},
        {"Type":"ACL","Settings":{"Id":"weir:tail-in","Action":"Block","Direction":"In","RuleType":"Switch","Priority":3000,"Scope":0}}],"Flags":0}"#;

    fn inventory(endpoints: &[(&str, &str, u64, &str)]) -> Inventory {
        let one = |(id, address, flags, namespace): &(&str, &str, u64, &str)| {
            let text = format!(
                r#"{{"ID":"{id}","HostComputeNetwork":"n1","HostComputeNamespace":"{namespace}","Flags":{flags},"IpConfigurations":[{{"IpAddress":"{address}"}}]}}"#
            );
            HnsEndpoint::parse(&text).unwrap()
        };
        let network = HnsNetwork { name: "Calico".into(), kind: "L2Bridge".into() };
        let networks = [("n1".to_owned(), network)].into();
        Inventory {
            endpoints: endpoints.iter().map(one).collect(),
            networks,
            ..Inventory::default()
        }
    }

    fn found(inventory: &Inventory, network: Option<&str>) -> Vec<String> {
        let found = inventory.of_pod(&[IpAddr::from([10, 0, 0, 1])], network);
        found.iter().map(|endpoint| endpoint.id.clone()).collect()
    }

    #[test]
    fn foreign_policies_stay_byte_identical() {
        let endpoint = HnsEndpoint::parse(ENDPOINT).unwrap();
        let acl = Acl::new("weir:tail-out".into(), AclDirection::Out, AclAction::Block, 3000);
        let update = endpoint.update(&[acl]).unwrap();
        assert_eq!(
            update,
            r#"{"ResourceType":"Policy","RequestType":"Update","Settings":{"Policies":[{"Type":"OutBoundNAT","Settings":{"Exceptions":["10.96.0.0/12"],"Odd":1.50}},{"Type":"ACL","Settings":{"Id":"azure-acl","Action":"Block","Direction":"Out","Priority":200}},{"Type":"ACL","Settings":{"Id":"weir:tail-out","Action":"Block","Direction":"Out","RuleType":"Switch","Priority":3000}}]}}"#
        );
        assert_eq!(endpoint.ours().len(), 1);
        assert_eq!(endpoint.addresses.len(), 2, "both addresses are read");
    }

    #[test]
    fn rules_for_the_host_firewall_are_left_out_beside_foreign_ones() {
        let endpoint = HnsEndpoint::parse(ENDPOINT).unwrap();
        let tail = Acl::new("weir:tail-out".into(), AclDirection::Out, AclAction::Block, 3000);
        let acls = [tail, Acl::host(AclDirection::In), Acl::host(AclDirection::Out)];
        assert_eq!(endpoint.desired(&acls).len(), 3);
        let foreign =
            ENDPOINT.replace(r#""Direction":"Out","#, r#""Direction":"Out","RuleType":"Host","#);
        assert_eq!(HnsEndpoint::parse(&foreign).unwrap().desired(&acls), [acls[0].clone()]);
    }

    #[test]
    fn a_pods_endpoint_is_local_attached_and_on_a_filtered_network() {
        let all = [
            ("remote", "10.0.0.1", 1, "s"),
            ("stale", "10.0.0.1", 0, ""),
            ("mine", "10.0.0.1", 0, "s"),
            ("other", "10.0.0.2", 0, "s"),
        ];
        assert_eq!(found(&inventory(&all), None), ["mine"]);
        assert_eq!(
            found(&inventory(&all[..2]), None),
            ["stale"],
            "no other endpoint has the address"
        );
        let mut nat = inventory(&all);
        nat.networks.get_mut("n1").unwrap().kind = "NAT".into();
        assert_eq!(found(&nat, None), [""; 0]);
        assert_eq!(nat.unfiltered(&[[10, 0, 0, 1].into()]).unwrap(), "network Calico of kind NAT");
        assert_eq!(found(&nat, Some("calico")), ["mine"], "a network named in the settings counts");
    }

    #[test]
    fn a_network_without_a_kind_is_nat() {
        let (id, network) = HnsNetwork::parse(r#"{"ID":"ABC","Name":"nat"}"#).unwrap();
        assert_eq!((&*id, &*network.name, &*network.kind), ("abc", "nat", "NAT"));
        assert!(HnsEndpoint::parse("[]").is_err() && HnsNetwork::parse("{}").is_err());
    }
}
