use std::net::IpAddr;

use serde_json::Value;

use crate::error::{CONFIGURATION, CniError};

/// The addresses of the container in a result, each once.
pub(crate) fn addresses(result: &Value) -> Result<Vec<IpAddr>, CniError> {
    let list = |key: &str| result.get(key).and_then(Value::as_array).map_or(&[][..], |all| all);
    let interfaces = list("interfaces");
    // An address may say which interface has it, and one without a sandbox is the host's.
    let is_hosts = |address: &Value| {
        let at = address.get("interface").and_then(Value::as_u64);
        let interface = at.and_then(|at| interfaces.get(usize::try_from(at).ok()?));
        interface.is_some_and(|interface| {
            interface.get("sandbox").and_then(Value::as_str).is_none_or(str::is_empty)
        })
    };
    let mut addresses = Vec::new();
    for ip in list("ips").iter().filter(|ip| !is_hosts(ip)) {
        let text = ip.get("address").and_then(Value::as_str).unwrap_or_default();
        let address = text.split('/').next().unwrap_or_default();
        let address: IpAddr = address.parse().map_err(|_| {
            let found = format!("expected an address, found {text:?}");
            CniError::new(CONFIGURATION, "prevResult makes no sense", found)
        })?;
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    match addresses.is_empty() {
        true => {
            let why = "policies know pods by their addresses";
            Err(CniError::new(CONFIGURATION, "prevResult has no address of the container", why))
        }
        false => Ok(addresses),
    }
}
