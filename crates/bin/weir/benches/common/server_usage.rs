//! What clients cost the API server.

use std::time::Duration;

use serde_json::{Value, json};
use weir_cluster::Cluster;

use crate::usage::metric;

/// The work of the API server and of its store since their start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerUsage {
    server: Duration,
    store: Duration,
    ranges: f64,
}

impl ServerUsage {
    pub(crate) fn now(cluster: &Cluster) -> Self {
        let server = cluster.get("/metrics").unwrap();
        let store = cluster.store_metrics().unwrap();
        let cpu =
            |text: &str| Duration::from_secs_f64(metric(text, "process_cpu_seconds_total", ""));
        ServerUsage {
            server: cpu(server.as_str().unwrap()),
            store: cpu(&store),
            ranges: metric(&store, "etcd_mvcc_range_total", ""),
        }
    }

    /// Adds the work since an earlier time to a report.
    pub(crate) fn add_since(self, before: ServerUsage, report: &mut Value) {
        report["server_cpu_seconds"] = json!((self.server - before.server).as_secs_f64());
        report["store_cpu_seconds"] = json!((self.store - before.store).as_secs_f64());
        report["store_ranges"] = json!(self.ranges - before.ranges);
    }
}
