use std::net::IpAddr;

use serde_json::Value;

use crate::error::{CONFIGURATION, CniError};

/// The distinct addresses of the container in a result.
pub(crate) fn addresses(result: &Value) -> Result<Vec<IpAddr>, CniError> {
    let list = |key: &str| result.get(key).and_then(Value::as_array).map_or(&[][..], |all| all);
    let interfaces = list("interfaces");
    // An address can refer to an interface; an interface without a sandbox belongs to the host.
    let is_on_host = |address: &Value| {
        let at = address.get("interface").and_then(Value::as_u64);
        let interface = at.and_then(|at| interfaces.get(usize::try_from(at).ok()?));
        interface.is_some_and(|interface| {
            interface.get("sandbox").and_then(Value::as_str).is_none_or(str::is_empty)
        })
    };
    let mut addresses = Vec::new();
    for ip in list("ips").iter().filter(|ip| !is_on_host(ip)) {
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
