//! A record for tests.

use crate::{
    DecidingRule, FlowRecord, FlowVerdict, RecordEnd, RuleDirection, RuleEffect, SCHEMA, Sampling,
    SamplingSource,
};

pub(crate) fn record() -> FlowRecord {
    FlowRecord {
        schema_version: SCHEMA.into(),
        node: "n1".into(),
        verdict: FlowVerdict::Deny,
        from: RecordEnd::Workload {
            namespace: "shop".into(),
            kind: "Deployment".into(),
            name: "web".into(),
            pod: "web-7d4-x".into(),
        },
        to: RecordEnd::Address { address: "203.0.113.7".into() },
        protocol: "TCP".into(),
        port: Some(443),
        policies: vec![DecidingRule {
            kind: "NetworkPolicy".into(),
            namespace: Some("shop".into()),
            name: "web".into(),
            direction: RuleDirection::Egress,
            rule: None,
            effect: RuleEffect::Isolate,
        }],
        more_policies: 0,
        first_seen: "2026-01-02T03:04:05.678Z".into(),
        last_seen: "2026-01-02T03:05:05.678Z".into(),
        connections: 3,
        packets: None,
        bytes: None,
        sampling: Sampling {
            source: SamplingSource::Reports,
            complete: false,
            limit_per_second: Some(20),
        },
    }
}
