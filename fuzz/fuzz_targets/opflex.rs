//! Whatever host protection objects the API server sends, every file that the opflex agent writes is
//! valid and stays in its directory. Reading any bytes as such a file does not panic.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use weir_aci::{AciSettings, Evaluator, Files, HostprotKind, HostprotObject};
use weir_model::{Direction, Protocol};

fuzz_target!(|bytes: &[u8]| {
    _ = Evaluator::default().add(&String::from_utf8_lossy(bytes));
    let settings = AciSettings { prefix: "fuzz".into() };
    let mut files = Files::new(&settings, "common", "n1", weir_aci::GroupNames::Policy);
    for document in bytes.split(|byte| *byte == 0) {
        let Ok(spec) = serde_json::from_slice::<Value>(document) else { continue };
        for kind in HostprotKind::BOTH {
            let name = spec["name"].as_str().unwrap_or_default().replace('_', "-");
            let value = json!({"metadata": {"name": name}, "spec": spec});
            match HostprotObject::parse(kind, &value) {
                Ok(object) => files.put(object),
                Err(error) => error.fallback.into_iter().for_each(|object| files.put(*object)),
            }
        }
    }
    for (name, netpol) in files.drain_dirty() {
        let Some(netpol) = netpol else { continue };
        let mut evaluator = Evaluator::default();
        evaluator.add(&netpol.text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let peer = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        evaluator.allows(&[name], Direction::Ingress, peer, (Protocol::Tcp, 80));
    }
});
