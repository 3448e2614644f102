//! A relay with an agent of weir, and clients that read the streams of other nodes and discard them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use serde_json::{Value, json};

use crate::{
    Site,
    relay_process::Relay,
    usage::{Usage, metric},
    usage_of,
    world::{NODE, node_name},
};

/// The nodes of the relay.
const NODES: usize = 200;
/// Versions that no relay is behind.
const NOTHING: &str = "0.0.0.0.0.0.0";

pub(crate) fn measure(site: &Site) -> Value {
    let before = site.watches();
    let start = Instant::now();
    let relay = Relay::start(&site.cluster, &site.scratch);
    let until_ready = start.elapsed();
    let token = site.cluster.token("weir-system", "weir-agent", &["weir-relay"]).unwrap();
    let place = (&site.cluster, &site.lab, &site.scratch);
    let (agent, to_relay) = relay.start_agent(place, NODE, &site.access, &token);
    let access = relay.access(&token);
    let received = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 1..NODES {
            let (access, received) = (&access, &received);
            scope.spawn(move || {
                let node = node_name(number);
                let path = format!("/v1/nodes/{node}/objects?reached={NOTHING}");
                let count = |bytes| _ = received.fetch_add(bytes as u64, Ordering::Relaxed);
                // It ends when the relay is killed.
                _ = access.discard(&path, "application/octet-stream", count);
            });
            // A relay accepts few connections at a time of one client.
            relay.until("one more agent is connected", |metrics| {
                metric(metrics, "weir_relay_agents", "") as usize == number + 1
            });
        }
        let usage = Usage::of_process(relay.child.id());
        let lists = metric(&relay.metrics(), "weir_relay_sent_bytes_total", "");
        let mut report = site.change(2, || {
            let metrics = relay.metrics();
            let mut figures = usage_of(&agent, to_relay.received_bytes());
            figures["relay_cpu_seconds"] =
                json!(Usage::of_process(relay.child.id()).cpu.as_secs_f64());
            for name in ["events", "transactions", "transaction_bytes", "sent_bytes"] {
                let value = metric(&metrics, &format!("weir_relay_{name}_total"), "");
                figures[format!("relay_{name}")] = json!(value);
            }
            figures["stream_bytes"] = json!(received.load(Ordering::Relaxed));
            figures
        });
        report["watches"] = json!(site.watches() - before);
        report["agents"] = json!(NODES);
        report["start_seconds"] = json!(until_ready.as_secs_f64());
        report["start_cpu_seconds"] = json!(usage.cpu.as_secs_f64());
        report["list_bytes"] = json!(lists / NODES as f64);
        report["resident_bytes"] = json!(Usage::of_process(relay.child.id()).resident);
        drop(relay);
        report
    })
}
