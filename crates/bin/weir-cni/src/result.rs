use std::net::IpAddr;

use serde_json::Value;

use crate::error::{CONFIGURATION, CniError};

/// The distinct names of the host's interfaces in a result.
pub(crate) fn host_interfaces(result: &Value) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for interface in list(result, "interfaces").iter().filter(|one| is_on_host(one)) {
        let name = interface.get("name").and_then(Value::as_str).unwrap_or_default();
        if !name.is_empty() && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// The distinct addresses of the container in a result.
pub(crate) fn addresses(result: &Value) -> Result<Vec<IpAddr>, CniError> {
    let interfaces = list(result, "interfaces");
    // An address can refer to an interface.
    let is_of_host = |address: &Value| {
        let at = address.get("interface").and_then(Value::as_u64);
        let interface = at.and_then(|at| interfaces.get(usize::try_from(at).ok()?));
        interface.is_some_and(is_on_host)
    };
    let mut addresses = Vec::new();
    for ip in list(result, "ips").iter().filter(|ip| !is_of_host(ip)) {
        let text = ip.get("address").and_then(Value::as_str).unwrap_or_default();
        let address = text.split('/').next().unwrap_or_default();
        let address: IpAddr = address.parse().map_err(|_| {
            let found = format!("expected an address, found {text:?}");
            CniError::new(CONFIGURATION, "invalid prevResult", found)
        })?;
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        let why = "weir identifies pods by their addresses";
        return Err(CniError::new(
            CONFIGURATION,
            "prevResult has no address of the container",
            why,
        ));
    }
    Ok(addresses)
}

fn list<'r>(result: &'r Value, key: &str) -> &'r [Value] {
    result.get(key).and_then(Value::as_array).map_or(&[], |all| all)
}

/// Whether an interface belongs to the host: it has no sandbox.
fn is_on_host(interface: &Value) -> bool {
    interface.get("sandbox").and_then(Value::as_str).is_none_or(str::is_empty)
}
