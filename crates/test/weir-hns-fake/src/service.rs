use std::{net::IpAddr, time::Duration};

use ipnet::IpNet;
use serde_json::{Map, Value, json};

/// An error of HNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The result code of the call.
    pub code: u32,
    /// The text of the error record.
    pub text: &'static str,
}

const NO_NETWORK: Fault = Fault { code: 0x803B_0001, text: "The network was not found." };
const NO_ENDPOINT: Fault = Fault { code: 0x803B_0002, text: "The endpoint was not found." };
const BAD_POLICY: Fault = Fault { code: 0x803B_000D, text: "The policy is not valid." };
const REMOTE: Fault = Fault { code: 0x803B_000F, text: "Not possible on a remote endpoint." };
const UNSUPPORTED: Fault = Fault { code: 0x803B_0015, text: "The request is not supported." };
const BAD_JSON: Fault = Fault { code: 0x803B_001B, text: "The JSON is not valid." };
const INJECTED: &str = "A fault that the test injected.";

/// The service. Its state is `{version, networks, endpoints, faults, calls}`.
///
/// A fault is `{call, id?, times?, code?, hang?, vanish?}`. It affects the next `times` calls of that
/// name (for that endpoint): they take `hang` milliseconds longer, fail with `code`, or find that the
/// endpoint has vanished.
#[derive(Clone, Debug)]
pub struct HnsService {
    /// The state.
    pub state: Value,
}

impl HnsService {
    /// A service with one pod network and no endpoints.
    pub fn new() -> Self {
        let network = json!({"ID": "11111111-0000-0000-0000-000000000000", "Name": "Calico", "Type": "L2Bridge"});
        HnsService {
            state: json!({"version": {"Major": 13, "Minor": 3}, "networks": [network], "endpoints": [], "faults": [], "calls": []}),
        }
    }

    /// Adds the endpoint of a pod, with a policy of another program.
    pub fn add(&mut self, id: &str, address: IpAddr) {
        let endpoint = json!({
            "ID": id.to_ascii_uppercase(), "Name": format!("{id}_Calico"),
            "HostComputeNetwork": "11111111-0000-0000-0000-000000000000",
            "HostComputeNamespace": "22222222-0000-0000-0000-000000000000",
            "IpConfigurations": [{"IpAddress": address.to_string(), "PrefixLength": 24}],
            "Policies": [{"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.96.0.0/12"]}}],
            "Flags": 0, "SchemaVersion": {"Major": 2, "Minor": 16},
        });
        self.list("endpoints").push(endpoint);
    }

    /// Records a call. Returns its delay and its injected fault.
    pub fn begin(&mut self, call: &str, id: &str) -> (Duration, Option<Fault>) {
        self.list("calls").push(json!({"call": call, "id": id}));
        let fits = |fault: &Value| {
            let for_it = fault["id"].as_str().is_none_or(|one| one.eq_ignore_ascii_case(id));
            fault["call"] == call && for_it && fault["times"].as_u64() != Some(0)
        };
        let Some(fault) = self.list("faults").iter_mut().find(|fault| fits(fault)) else {
            return (Duration::ZERO, None);
        };
        if let Some(times) = fault["times"].as_u64() {
            fault["times"] = (times - 1).into();
        }
        let hang = Duration::from_millis(fault["hang"].as_u64().unwrap_or(0));
        let code = fault["code"].as_u64().and_then(|code| u32::try_from(code).ok());
        let vanishes = fault["vanish"] == true;
        if vanishes {
            self.list("endpoints").retain(|endpoint| !is(endpoint, id));
        }
        let failure = code.map(|code| Fault { code, text: INJECTED });
        (hang, failure.or(vanishes.then_some(NO_ENDPOINT)))
    }

    /// The ids of the endpoints or networks that match the filter of a query.
    pub fn enumerate(&mut self, kind: &str, query: &str) -> Result<String, Fault> {
        let query: Value = match query {
            "" => json!({}),
            text => serde_json::from_str(text).map_err(|_| BAD_JSON)?,
        };
        let filter: Map<String, Value> = match query["Filter"].as_str() {
            None | Some("") => Map::new(),
            Some(text) => serde_json::from_str(text).map_err(|_| BAD_JSON)?,
        };
        let fits = |object: &&Value| {
            filter.iter().all(|(key, wanted)| match key.as_str() {
                "ID" | "Name" => same(&object[key], wanted),
                "VirtualNetwork" => same(&object["HostComputeNetwork"], wanted),
                _ => true,
            })
        };
        let ids = self.list(kind).iter().filter(fits).map(|object| object["ID"].clone());
        Ok(Value::Array(ids.collect()).to_string())
    }

    /// The properties of an endpoint or a network.
    pub fn query(&mut self, kind: &str, id: &str) -> Result<String, Fault> {
        let found = self.list(kind).iter().find(|object| is(object, id)).map(Value::to_string);
        found.ok_or(if kind == "networks" { NO_NETWORK } else { NO_ENDPOINT })
    }

    /// Changes the policies of an endpoint.
    pub fn modify(&mut self, id: &str, request: &str) -> Result<(), Fault> {
        let request: Value = serde_json::from_str(request).map_err(|_| BAD_JSON)?;
        let endpoint = self.list("endpoints").iter_mut().find(|endpoint| is(endpoint, id));
        let endpoint = endpoint.ok_or(NO_ENDPOINT)?;
        if endpoint["Flags"].as_u64().unwrap_or(0) & 1 == 1 {
            return Err(REMOTE);
        }
        let policies = request["Settings"]["Policies"].as_array().ok_or(BAD_JSON)?;
        let read_back: Vec<Value> = policies.iter().map(accepted).collect::<Result<_, _>>()?;
        match (request["ResourceType"].as_str(), request["RequestType"].as_str()) {
            (Some("Policy"), Some("Update")) => endpoint["Policies"] = read_back.into(),
            (Some("Policy"), Some("Add")) => match endpoint["Policies"].as_array_mut() {
                Some(all) => all.extend(read_back),
                None => endpoint["Policies"] = read_back.into(),
            },
            _ => return Err(UNSUPPORTED),
        }
        Ok(())
    }

    /// The version in the format of `HNSCall`.
    pub fn version(&self) -> String {
        json!({"Success": true, "Output": self.state["version"]}).to_string()
    }

    /// The list with this name in the state.
    pub fn list(&mut self, name: &str) -> &mut Vec<Value> {
        if !self.state[name].is_array() {
            self.state[name] = json!([]);
        }
        match &mut self.state[name] {
            Value::Array(list) => list,
            _ => unreachable!("the value is a list"),
        }
    }
}

impl Default for HnsService {
    fn default() -> Self {
        Self::new()
    }
}

fn is(object: &Value, id: &str) -> bool {
    object["ID"].as_str().is_some_and(|own| own.eq_ignore_ascii_case(id))
}

fn same(own: &Value, wanted: &Value) -> bool {
    matches!((own.as_str(), wanted.as_str()), (Some(own), Some(wanted)) if own.eq_ignore_ascii_case(wanted))
}

/// Validates a policy and returns it as HNS would return it.
fn accepted(policy: &Value) -> Result<Value, Fault> {
    if policy["Type"] != "ACL" {
        return if policy["Type"].is_string() { Ok(policy.clone()) } else { Err(BAD_POLICY) };
    }
    let mut policy = policy.clone();
    let settings = policy["Settings"].as_object_mut().ok_or(BAD_POLICY)?;
    let text = |settings: &Map<String, Value>, name: &str| {
        settings.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let one_of = |name: &str, values: &[&str]| values.contains(&&*text(settings, name));
    let is_sound = !settings.contains_key("ID")
        && one_of("Action", &["Allow", "Block"])
        && one_of("Direction", &["In", "Out"])
        && one_of("RuleType", &["Switch", "Host"])
        && settings
            .get("Priority")
            .is_none_or(|number| number.as_u64().is_some_and(|n| n <= 65_535))
        && list(&text(settings, "LocalAddresses")).all(is_network)
        && list(&text(settings, "RemoteAddresses")).all(is_network)
        && list(&text(settings, "LocalPorts")).all(is_range)
        && list(&text(settings, "RemotePorts")).all(is_range)
        && list(&text(settings, "Protocols"))
            .all(|number| number.parse::<u16>().is_ok_and(|n| n <= 256));
    if !is_sound {
        return Err(BAD_POLICY);
    }
    if text(settings, "Protocols").is_empty() {
        settings.insert("Protocols".into(), "256".into());
    }
    for name in ["LocalAddresses", "RemoteAddresses", "LocalPorts", "RemotePorts", "ServiceName"] {
        settings.entry(name).or_insert_with(|| "".into());
    }
    for name in ["Priority", "Scope", "InternalPort", "LocalPort"] {
        settings.entry(name).or_insert_with(|| 0.into());
    }
    Ok(policy)
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|part| !part.is_empty())
}

fn is_network(text: &str) -> bool {
    text.parse::<IpNet>().is_ok() || text.parse::<IpAddr>().is_ok()
}

fn is_range(text: &str) -> bool {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    matches!((first.parse::<u16>(), last.parse::<u16>()), (Ok(first), Ok(last)) if first <= last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "33333333-0000-0000-0000-000000000000";

    fn service() -> HnsService {
        let mut service = HnsService::new();
        service.add(ID, [10, 0, 0, 1].into());
        service
    }

    fn request(kind: &str, settings: Value) -> String {
        let policies = json!([{"Type": "ACL", "Settings": settings}]);
        json!({"ResourceType": "Policy", "RequestType": kind, "Settings": {"Policies": policies}})
            .to_string()
    }

    #[test]
    fn update_replaces_policies_add_appends_and_reading_normalizes() {
        let mut service = service();
        let acl = json!({"Id": "x", "Action": "Allow", "Direction": "In", "RuleType": "Switch", "Priority": 100});
        service.modify(ID, &request("Add", acl.clone())).unwrap();
        let read = |service: &mut HnsService| -> Value {
            serde_json::from_str(&service.query("endpoints", ID).unwrap()).unwrap()
        };
        assert_eq!(read(&mut service)["Policies"].as_array().unwrap().len(), 2);
        service.modify(ID, &request("Update", acl)).unwrap();
        let policies = read(&mut service)["Policies"].as_array().unwrap().clone();
        assert_eq!(
            policies.len(),
            1,
            "an update without the policies of other programs removes them"
        );
        assert_eq!(policies[0]["Settings"]["Protocols"], "256");
        assert_eq!(policies[0]["Settings"]["Scope"], 0);
    }

    #[test]
    fn invalid_policies_are_rejected() {
        let good = json!({"Id": "x", "Action": "Allow", "Direction": "In", "RuleType": "Switch", "Priority": 1});
        let with = |name: &str, value: Value| {
            let mut settings = good.clone();
            settings[name] = value;
            service().modify(ID, &request("Update", settings)).map_err(|fault| fault.code)
        };
        assert_eq!(with("RemoteAddresses", "10.0.0.0/8,10.1.1.1".into()), Ok(()));
        for (name, value) in [
            ("RemoteAddresses", json!("Any")),
            ("RemoteAddresses", json!("10.0.0.0/33")),
            ("ID", json!("x")),
            ("LocalPorts", json!("80-70")),
            ("Action", json!("Pass")),
            ("Priority", json!(70_000)),
        ] {
            assert_eq!(with(name, value), Err(0x803B_000D), "{name}");
        }
        assert_eq!(service().modify("other", "{}"), Err(NO_ENDPOINT));
        assert_eq!(service().modify(ID, "{"), Err(BAD_JSON));
        let mut remote = service();
        remote.list("endpoints")[0]["Flags"] = 1.into();
        assert_eq!(remote.modify(ID, &request("Update", good)), Err(REMOTE));
    }

    #[test]
    fn injected_faults_occur_the_given_number_of_times() {
        let mut service = service();
        service.list("faults").push(json!({"call": "Modify", "id": ID, "times": 1, "code": 7}));
        service.list("faults").push(json!({"call": "Open", "vanish": true, "times": 1}));
        assert_eq!(service.begin("Query", ID), (Duration::ZERO, None));
        assert_eq!(service.begin("Modify", ID).1.unwrap().code, 7);
        assert_eq!(service.begin("Modify", ID).1, None);
        assert_eq!(service.begin("Open", ID).1, Some(NO_ENDPOINT));
        assert_eq!(service.query("endpoints", ID), Err(NO_ENDPOINT));
        assert_eq!(service.list("calls").len(), 4);
    }

    #[test]
    fn enumerate_applies_the_filter() {
        let mut service = service();
        service.add("44444444-0000-0000-0000-000000000000", [10, 0, 0, 2].into());
        let query = json!({"Filter": json!({"ID": ID}).to_string()}).to_string();
        let ids = service.enumerate("endpoints", &query).unwrap();
        assert_eq!(ids, json!([ID.to_ascii_uppercase()]).to_string());
        assert_eq!(service.enumerate("endpoints", "no"), Err(BAD_JSON));
    }
}
