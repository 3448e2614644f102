//! The objects of the eBPF datapath in the kernel, as text and JSON.

use std::{io::Write, time::Duration};

use serde_json::{Value, json};
use weir_ebpf::{
    Dump, LoadedLane, LoadedLaneLink, LoadedLink, LoadedMap, LoadedProgram, LoadedRules, Tables,
    layout::FlowEntry,
};

use crate::{
    dump::{DumpCommand, DumpFormat},
    exit::Exit,
    failure::Failure,
    present::{self, Schema, Structured},
};

/// Writes the loaded objects of this network namespace.
pub(crate) fn dump(command: &DumpCommand, out: &mut dyn Write) -> anyhow::Result<Exit> {
    let hint = "run it as root on a node whose agent has `--datapath ebpf`";
    let dump = Dump::read().map_err(|error| Failure::new(error, hint))?;
    let Some(dump) = dump else {
        let what = "weir has no eBPF programs in this network namespace";
        let hint = "if the agent uses nftables, `nft list table inet weir` shows its rules";
        return Err(Failure::new(what, hint).into());
    };
    match command.output {
        DumpFormat::Json => {
            let connections = command.connections.then_some(&dump.flows[..]);
            let value = to_json(&dump, connections);
            present::value(out, Structured::Json, Schema::DatapathDump, &value)?;
        }
        DumpFormat::Text => {
            write!(out, "{dump}")?;
            if command.connections {
                writeln!(out, "\nconnections")?;
                for (flow, idle) in &dump.flows {
                    writeln!(out, "  {flow}, idle {} s", idle.as_secs())?;
                }
            }
        }
    }
    Ok(Exit::Yes)
}

fn to_json(dump: &Dump, connections: Option<&[(FlowEntry, Duration)]>) -> Value {
    json!({
        "folder": dump.folder.display().to_string(),
        "readsConntrack": dump.reads_conntrack,
        "maps": dump.maps.iter().map(map_json).collect::<Vec<_>>(),
        "rules": dump.rules.iter().map(rules_json).collect::<Vec<_>>(),
        "fastLane": dump.lane.as_ref().map(lane_json),
        "connections": connections.map(|all| all.iter().map(flow_json).collect::<Vec<_>>()),
    })
}

fn lane_json(lane: &LoadedLane) -> Value {
    let link = |LoadedLaneLink { name, id, program, index }: &LoadedLaneLink| json!({"name": name, "id": id, "program": program, "interface": index});
    let address =
        |(address, link): &(std::net::IpAddr, u32)| json!({"address": address, "interface": link});
    json!({
        "links": lane.links.iter().map(link).collect::<Vec<_>>(),
        "addresses": lane.addresses.iter().map(address).collect::<Vec<_>>(),
        "tunnels": lane.tunnels,
    })
}

fn rules_json(rules: &LoadedRules) -> Value {
    let link = |LoadedLink { name, id, program, priority }: &LoadedLink| json!({"name": name, "id": id, "program": program, "priority": priority});
    let program = |LoadedProgram { name, id, instructions, memory }: &LoadedProgram| json!({"name": name, "id": id, "instructions": instructions, "memory": memory});
    let denied = |cause: usize| rules.denied.get(cause).copied().unwrap_or_default();
    json!({
        "number": rules.number,
        "links": rules.links.iter().map(link).collect::<Vec<_>>(),
        "programs": rules.programs.iter().map(program).collect::<Vec<_>>(),
        "maps": rules.maps.iter().map(map_json).collect::<Vec<_>>(),
        "denied": {"ingress": denied(0), "egress": denied(1), "replies": denied(2)},
        "cut": rules.cut,
        "elements": rules.tables.as_ref().map(elements_json),
    })
}

/// Each element with its map, in the words of `weir render`.
fn elements_json(tables: &Tables) -> Vec<Value> {
    let element = |write: weir_ebpf::Write| {
        let (map, ..) = write.encode();
        let text = write.to_string();
        let (key, value) = text.split_once(": ").unwrap_or((&text, ""));
        json!({"map": map.to_string(), "key": key, "value": value})
    };
    tables.writes().map(element).collect()
}

fn map_json(map: &LoadedMap) -> Value {
    json!({
        "name": map.name,
        "id": map.id,
        "type": map.map_type,
        "keySize": map.key_size,
        "valueSize": map.value_size,
        "capacity": map.capacity,
        "elements": map.elements,
        "memory": map.memory,
    })
}

fn flow_json((flow, idle): &(FlowEntry, Duration)) -> Value {
    let end = |(address, port)| json!({"address": address, "port": port});
    json!({
        "client": end(flow.client),
        "server": end(flow.server),
        "protocol": flow.protocol,
        "epoch": flow.epoch,
        "cut": flow.is_cut,
        "idleSeconds": idle.as_secs(),
    })
}
