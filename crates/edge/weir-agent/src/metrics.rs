//! The metrics.

use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// The buckets for times since an object was written, in seconds. The API server records that time
/// in whole seconds.
const CHANGE_BUCKETS: [f64; 9] = [1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// A label and its value.
pub(crate) type MetricLabel = (&'static str, String);

/// All metrics. Clones share their values.
#[derive(Clone, Debug)]
pub(crate) struct AgentMetrics {
    pub(crate) policies: Gauge,
    pub(crate) endpoints: Gauge,
    pub(crate) rules: Gauge,
    pub(crate) sets: Gauge,
    pub(crate) members: Gauge,
    pub(crate) held: Gauge,
    pub(crate) contested: Gauge,
    pub(crate) locked_down: Gauge,
    pub(crate) in_sync: Gauge,
    pub(crate) unread: Gauge,
    pub(crate) warnings: Gauge,
    pub(crate) findings: Family<[MetricLabel; 1], Gauge>,
    pub(crate) compile: Histogram,
    pub(crate) apply: Histogram,
    pub(crate) latency: Histogram,
    pub(crate) change: Histogram,
    pub(crate) plugins: Histogram,
    pub(crate) applies: Family<[MetricLabel; 1], Counter>,
    pub(crate) repairs: Counter,
    pub(crate) cut: Counter,
    pub(crate) errors: Family<[MetricLabel; 1], Counter>,
    drops: Family<[MetricLabel; 2], Counter>,
    pub(crate) missed: Counter,
    pub(crate) flows: Gauge,
    pub(crate) flows_lost: Counter,
    pub(crate) flows_evicted: Counter,
    connections: Family<[MetricLabel; 1], Counter>,
    policy_connections: Family<[MetricLabel; 1], Counter>,
    pub(crate) names: Gauge,
    pub(crate) answers: Counter,
    /// The datapath's number of rules, in its own terms.
    pub(crate) backend_rules: Gauge,
    /// All errors, of every stage.
    failures: Counter,
}

/// The stages that errors are counted by.
pub(crate) const STAGES: [&str; 8] =
    ["source", "apply", "drift", "cut", "drops", "cni", "journal", "export"];

impl AgentMetrics {
    /// Creates and registers the metrics.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        // From 50 µs to 26 s.
        let seconds = || Histogram::new(exponential_buckets(0.000_05, 2.0, 20));
        let metrics = AgentMetrics {
            policies: Gauge::default(),
            endpoints: Gauge::default(),
            rules: Gauge::default(),
            sets: Gauge::default(),
            members: Gauge::default(),
            held: Gauge::default(),
            contested: Gauge::default(),
            locked_down: Gauge::default(),
            in_sync: Gauge::default(),
            unread: Gauge::default(),
            warnings: Gauge::default(),
            findings: Family::default(),
            compile: seconds(),
            apply: seconds(),
            latency: seconds(),
            change: Histogram::new(CHANGE_BUCKETS),
            plugins: seconds(),
            applies: Family::default(),
            repairs: Counter::default(),
            cut: Counter::default(),
            errors: Family::default(),
            drops: Family::default(),
            missed: Counter::default(),
            flows: Gauge::default(),
            flows_lost: Counter::default(),
            flows_evicted: Counter::default(),
            connections: Family::default(),
            policy_connections: Family::default(),
            names: Gauge::default(),
            answers: Counter::default(),
            backend_rules: Gauge::default(),
            failures: Counter::default(),
        };
        metrics.register(registry);
        metrics.register_flows(registry);
        // Export zero for everything that has not happened yet.
        STAGES.iter().for_each(|stage| drop(metrics.errors.get_or_create(&label("stage", stage))));
        ["error", "warning", "info"].iter().for_each(|severity| {
            drop(metrics.findings.get_or_create(&label("severity", severity)));
        });
        ["applied", "unchanged", "failed"].iter().for_each(|outcome| {
            drop(metrics.applies.get_or_create(&label("outcome", outcome)));
        });
        metrics
    }

    fn register(&self, registry: &mut Registry) {
        let mut gauge = |name, help, gauge: &Gauge| registry.register(name, help, gauge.clone());
        gauge("weir_policies", "Policies of the source", &self.policies);
        gauge("weir_endpoints", "Pods that rules are enforced for", &self.endpoints);
        gauge("weir_rules", "Rules of these pods, equal sets of rules counted once", &self.rules);
        gauge("weir_sets", "Sets of addresses that rules name", &self.sets);
        gauge("weir_set_members", "Members of these sets", &self.members);
        gauge("weir_held_endpoints", "Pods whose new rules the datapath rejects", &self.held);
        gauge("weir_contested_addresses", "Addresses that several pods claim", &self.contested);
        gauge(
            "weir_locked_down_policies",
            "Policies that isolate their pods and allow nothing, because they exceed a budget",
            &self.locked_down,
        );
        gauge("weir_source_in_sync", "Whether the source has been read completely", &self.in_sync);
        gauge("weir_source_unread", "Findings that keep input out of effect", &self.unread);
        gauge("weir_warnings", "Warnings about the node", &self.warnings);
        gauge("weir_name_addresses", "Addresses of domain names that rules allow", &self.names);
        let findings = self.findings.clone();
        registry.register("weir_findings", "Findings about the input, by severity", findings);
        let mut histogram =
            |name, help, histogram: &Histogram| registry.register(name, help, histogram.clone());
        histogram("weir_compile_seconds", "Time to compile a batch of changes", &self.compile);
        histogram("weir_apply_seconds", "Time to plan and apply a transaction", &self.apply);
        histogram(
            "weir_event_to_kernel_seconds",
            "Time from an event to its rules being in force",
            &self.latency,
        );
        histogram(
            "weir_change_to_kernel_seconds",
            "Time from an object being written to the API server to its rules being in force",
            &self.change,
        );
        histogram(
            "weir_cni_wait_seconds",
            "Time that the CNI plugin waited for a pod's rules to be in force",
            &self.plugins,
        );
        registry.register("weir_applies", "Attempts to apply, by outcome", self.applies.clone());
        let repairs = self.repairs.clone();
        registry.register("weir_repairs", "Repairs of rules that another program changed", repairs);
        let cut = self.cut.clone();
        registry.register(
            "weir_cut_connections",
            "Connections terminated because the rules forbid them now",
            cut,
        );
        registry.register("weir_errors", "Errors, by stage", self.errors.clone());
        let drops = self.drops.clone();
        registry.register("weir_drops", "Packets dropped, by direction and policies", drops);
        let answers = self.answers.clone();
        registry.register(
            "weir_dns_answers",
            "DNS answers that waited until their addresses were in force",
            answers,
        );
        let missed = self.missed.clone();
        registry.register(
            "weir_drops_missed",
            "Packets that policies or the guard denied and that were not reported",
            missed,
        );
    }

    fn register_flows(&self, registry: &mut Registry) {
        let flows = self.flows.clone();
        registry.register("weir_flows", "Flows between workloads that the agent stores", flows);
        let connections = self.connections.clone();
        registry.register(
            "weir_flow_connections",
            "Connections of pods of this node, and reported packets that were denied, by verdict",
            connections,
        );
        let lost = self.flows_lost.clone();
        registry.register(
            "weir_flow_connections_lost",
            "Least number of connections that were not observed",
            lost,
        );
        let evicted = self.flows_evicted.clone();
        registry.register("weir_flows_evicted", "Flows that made room for others", evicted);
        let policies = self.policy_connections.clone();
        registry.register(
            "weir_policy_connections",
            "Connections that a policy decided, for each policy that selects a pod of this node",
            policies,
        );
    }

    /// Sets the number of connections with a verdict.
    pub(crate) fn connected(&self, verdict: &'static str, total: u64) {
        let counter = self.connections.get_or_create(&label("verdict", verdict));
        counter.inc_by(total.saturating_sub(counter.get()));
    }

    /// Counts connections that a policy decided.
    pub(crate) fn policy_used(&self, policy: &str, connections: u64) {
        self.policy_connections.get_or_create(&label("policy", policy)).inc_by(connections);
    }

    /// Removes the counter of a policy.
    pub(crate) fn forget_policy(&self, policy: &str) {
        self.policy_connections.remove(&label("policy", policy));
    }

    /// Registers the metrics that monitoring of Windows nodes expects.
    pub(crate) fn register_backend(&self, registry: &mut Registry) {
        let policies = self.policies.clone();
        registry.register("networkpolicies_watched", "Policies of the source", policies);
        let rules = self.backend_rules.clone();
        registry.register("acl_rules_applied", "ACL rules of weir on endpoints", rules);
        let failures = self.failures.clone();
        registry.register("reconciliation_errors", "Errors of every stage", failures);
    }

    /// Counts an error.
    pub(crate) fn error(&self, stage: &'static str) {
        self.failures.inc();
        self.errors.get_or_create(&label("stage", stage)).inc();
    }

    /// Counts an attempt to apply.
    pub(crate) fn applied(&self, outcome: &'static str) {
        self.applies.get_or_create(&label("outcome", outcome)).inc();
    }

    /// Counts a dropped packet by direction and policies.
    pub(crate) fn dropped(&self, kind: &(String, String)) {
        self.drops.get_or_create(&drop_labels(kind)).inc();
    }

    /// Removes the counter of a direction and policies.
    pub(crate) fn forget_dropped(&self, kind: &(String, String)) {
        self.drops.remove(&drop_labels(kind));
    }
}

fn drop_labels((direction, policies): &(String, String)) -> [MetricLabel; 2] {
    [("direction", direction.clone()), ("policy", policies.clone())]
}

/// One label.
pub(crate) fn label(name: &'static str, value: &str) -> [MetricLabel; 1] {
    [(name, value.to_owned())]
}
