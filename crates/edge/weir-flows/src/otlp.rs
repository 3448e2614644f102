//! Flow records as OpenTelemetry logs, in the JSON encoding of OTLP.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{FlowRecord, FlowVerdict, RecordEnd};

/// The severities of OpenTelemetry.
const INFO: u8 = 9;
const WARN: u8 = 13;

/// The body of a request to `/v1/logs`: one log record for each flow.
pub fn otlp_logs(node: &str, version: &str, flows: &[FlowRecord]) -> Value {
    let resource = [
        text("service.name", "weir-agent"),
        text("service.version", version),
        text("k8s.node.name", node),
    ];
    let records: Vec<Value> = flows.iter().map(log_record).collect();
    json!({"resourceLogs": [{
        "resource": {"attributes": resource},
        "scopeLogs": [{"scope": {"name": "weir.flows"}, "logRecords": records}],
    }]})
}

fn log_record(flow: &FlowRecord) -> Value {
    let (severity, name) = match flow.verdict {
        FlowVerdict::Allow => (INFO, "INFO"),
        FlowVerdict::Deny | FlowVerdict::Audit => (WARN, "WARN"),
    };
    let mut attributes = vec![
        text("weir.verdict", flow.verdict.as_str()),
        text("weir.first_seen", &flow.first_seen),
        text("network.transport", &flow.protocol.to_lowercase()),
        number("weir.connections", flow.connections),
        boolean("weir.sampling.complete", flow.sampling.complete),
    ];
    attributes.extend(flow.port.map(|port| number("destination.port", port.into())));
    attributes.extend(flow.packets.map(|packets| number("weir.packets", packets)));
    attributes.extend(flow.bytes.map(|bytes| number("weir.bytes", bytes)));
    attributes.extend(end("source", &flow.from));
    attributes.extend(end("destination", &flow.to));
    if !flow.policies.is_empty() {
        let policies = flow.policies.iter().map(|rule| json!({"stringValue": rule.to_string()}));
        let values: Vec<Value> = policies.collect();
        attributes
            .push(json!({"key": "weir.policies", "value": {"arrayValue": {"values": values}}}));
    }
    json!({
        "timeUnixNano": nanoseconds(&flow.last_seen),
        "severityNumber": severity,
        "severityText": name,
        "eventName": "weir.flow",
        "body": {"stringValue": format!("{} {} → {}", flow.verdict, flow.from, flow.to)},
        "attributes": attributes,
    })
}

fn end(side: &str, end: &RecordEnd) -> Vec<Value> {
    match end {
        RecordEnd::Workload { namespace, kind, name, pod } => vec![
            text(&format!("{side}.k8s.namespace.name"), namespace),
            text(&format!("{side}.k8s.workload.kind"), kind),
            text(&format!("{side}.k8s.workload.name"), name),
            text(&format!("{side}.k8s.pod.name"), pod),
        ],
        RecordEnd::Address { address } => vec![text(&format!("{side}.address"), address)],
        RecordEnd::Others { .. } => vec![boolean(&format!("{side}.others"), true)],
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// The JSON encoding of OTLP writes 64-bit integers as strings.
fn number(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

fn boolean(key: &str, value: bool) -> Value {
    json!({"key": key, "value": {"boolValue": value}})
}

fn nanoseconds(time: &str) -> String {
    time.parse::<Timestamp>().map_or(0, |time| time.as_nanosecond()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::record;

    #[test]
    fn a_flow_is_a_log_record_with_the_time_of_its_last_connection() {
        let flow = FlowRecord { bytes: Some(u64::MAX), ..record() };
        let body = otlp_logs("n1", "1.2.3", &[flow]);
        let resource = &body["resourceLogs"][0]["resource"]["attributes"];
        assert_eq!(resource[2], json!({"key": "k8s.node.name", "value": {"stringValue": "n1"}}));
        let record = &body["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
        assert_eq!(record["timeUnixNano"], "1767323105678000000");
        assert_eq!(
            (&record["severityNumber"], &record["severityText"]),
            (&json!(13), &json!("WARN"))
        );
        let attribute = |key: &str| {
            let all = record["attributes"].as_array().unwrap();
            all.iter().find(|one| one["key"] == key).unwrap()["value"].clone()
        };
        assert_eq!(attribute("weir.bytes"), json!({"intValue": u64::MAX.to_string()}));
        assert_eq!(attribute("source.k8s.workload.name"), json!({"stringValue": "web"}));
        assert_eq!(attribute("destination.address"), json!({"stringValue": "203.0.113.7"}));
        let policies = attribute("weir.policies");
        let text = &policies["arrayValue"]["values"][0]["stringValue"];
        assert_eq!(text, "NetworkPolicy shop/web egress isolates");
    }
}
