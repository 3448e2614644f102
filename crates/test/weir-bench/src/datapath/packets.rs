//! The cost of a packet with different rules.

use std::{fmt, thread, time::Duration};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use weir_model::{Program, Verdict};

use super::{
    backend::{self, MeasuredBackend, Ruleset},
    bare_hook,
    cluster::{AdminRuleLoad, PolicyLoad},
    linear::Linear,
    linear_iptables::LinearIptables,
    nft,
    probe::{OPERATIONS, Operation, PacketProbe, Samples},
};
use crate::measure::Spread;

/// The installed rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstalledRules {
    /// No rules.
    Nothing,
    /// One rule that accepts packets of known connections: the minimum cost of a stateful filter.
    Conntrack,
    /// An eBPF program that accepts every packet: the minimum cost of one.
    BareHook,
    /// Rules of weir.
    Weir(MeasuredBackend, PolicyLoad),
    /// Rules of weir by eBPF, and the rule of `Conntrack`.
    WeirBesideConntrack(PolicyLoad),
    /// Rules of weir by eBPF with the fast lane. The client is a pod of the node.
    FastLane(PolicyLoad),
    /// Rules of weir for admin policies.
    AdminRules(MeasuredBackend, AdminRuleLoad),
    /// The same policies in sequence, in kube-router's layout.
    Linear(Ruleset, PolicyLoad),
}

impl fmt::Display for InstalledRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut policies = |who: &str, backend: &dyn fmt::Display, cluster: &PolicyLoad| {
            let plural = if cluster.policies == 1 { "policy" } else { "policies" };
            let PolicyLoad { policies, members } = cluster;
            write!(f, "{who}, {backend}, {policies} {plural} of {members} peers")
        };
        match self {
            InstalledRules::Nothing => f.write_str("no rules"),
            InstalledRules::Conntrack => f.write_str("conntrack alone"),
            InstalledRules::BareHook => f.write_str("bare hook"),
            InstalledRules::Weir(backend, cluster) => policies("weir", backend, cluster),
            InstalledRules::WeirBesideConntrack(cluster) => {
                policies("conntrack and weir", &MeasuredBackend::Ebpf, cluster)
            }
            InstalledRules::FastLane(cluster) => policies("weir", &"fast lane", cluster),
            InstalledRules::AdminRules(backend, AdminRuleLoad { rules, members }) => {
                let plural = if *rules == 1 { "admin rule" } else { "admin rules" };
                write!(f, "weir, {backend}, {rules} {plural} of {members} peers")
            }
            InstalledRules::Linear(backend, cluster) => {
                policies("kube-router's shape", backend, cluster)
            }
        }
    }
}

impl InstalledRules {
    /// Prepares rules that can be loaded repeatedly.
    fn prepare(self) -> Prepared {
        match self {
            InstalledRules::Nothing => Prepared::Text(String::new()),
            InstalledRules::Conntrack => Prepared::Text(CONNTRACK.to_owned()),
            InstalledRules::BareHook => Prepared::BareHook,
            InstalledRules::Weir(backend, cluster) => Prepared::Program(backend, cluster.program()),
            InstalledRules::WeirBesideConntrack(cluster) => {
                Prepared::Both(CONNTRACK.to_owned(), cluster.program())
            }
            InstalledRules::FastLane(cluster) => {
                Prepared::FastLane(cluster.program_with_local_client())
            }
            InstalledRules::AdminRules(backend, ruled) => {
                Prepared::Program(backend, ruled.program())
            }
            InstalledRules::Linear(Ruleset::Nftables, cluster) => {
                Prepared::Text(Linear(cluster).to_string())
            }
            InstalledRules::Linear(Ruleset::Iptables(variant), cluster) => {
                Prepared::Iptables(LinearIptables::new(cluster, variant))
            }
        }
    }

    /// The verdict on packets that no policy allows.
    fn rest(self) -> Verdict {
        match self {
            InstalledRules::Nothing | InstalledRules::Conntrack | InstalledRules::BareHook => {
                Verdict::Allow
            }
            InstalledRules::Weir(..)
            | InstalledRules::WeirBesideConntrack(_)
            | InstalledRules::FastLane(_)
            | InstalledRules::AdminRules(..)
            | InstalledRules::Linear(..) => Verdict::Deny,
        }
    }
}

/// The rule of `Conntrack`.
const CONNTRACK: &str = "table inet conntrack { chain forward { \
     type filter hook forward priority filter; policy accept; \
     ct state established,related accept; }; }";

/// Rules that are ready to load.
enum Prepared {
    /// With the program nft.
    Text(String),
    /// With ipset and iptables-restore.
    Iptables(LinearIptables),
    /// As an agent does.
    Program(MeasuredBackend, Program),
    /// With the program nft, and by eBPF as an agent does.
    Both(String, Program),
    BareHook,
    /// As an agent with `--fast-lane` does.
    FastLane(Program),
}

impl Prepared {
    /// Loads them in the namespace of this thread.
    fn load(&self) -> Result<()> {
        match self {
            Prepared::Text(text) => nft::load(text),
            Prepared::Iptables(rules) => rules.load(),
            Prepared::Program(backend, program) => backend.enforce(program),
            Prepared::Both(text, program) => {
                nft::load(text)?;
                MeasuredBackend::Ebpf.enforce(program)
            }
            Prepared::BareHook => bare_hook::attach(),
            Prepared::FastLane(program) => backend::enforce_in_lane(program),
        }
    }
}

/// The amount of measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    rounds: usize,
    /// The number of slices per lab in each round.
    slices: usize,
    /// The number of cluster sizes.
    sizes: usize,
    measured: Measured,
}

/// The rules to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measured {
    /// Those of nftables and iptables, and linear ones.
    Rulesets,
    /// Those of eBPF, and for one size also those of the other backends.
    Ebpf,
}

/// The number of policies, and of peers of each policy.
const SIZES: [(usize, usize); 4] = [(1, 1000), (10, 1000), (100, 1000), (1000, 100)];
/// One policy with few peers, for eBPF.
const SMALL: PolicyLoad = PolicyLoad { policies: 1, members: 100 };
/// The size at which eBPF is compared with the other backends.
pub(crate) const COMPARED: PolicyLoad = PolicyLoad { policies: 100, members: 1000 };
/// One policy with very many peers.
const LARGE: PolicyLoad = PolicyLoad { policies: 1, members: 100_000 };
/// A few admin rules, and many.
const RULED: [AdminRuleLoad; 2] =
    [AdminRuleLoad { rules: 1, members: 1000 }, AdminRuleLoad { rules: 1000, members: 100 }];

impl Effort {
    pub(crate) fn new(rounds: usize, quick: bool, measured: Measured) -> Effort {
        let (slices, sizes) = if quick { (5, 2) } else { (25, SIZES.len()) };
        Effort { rounds, slices, sizes, measured }
    }

    /// The measured clusters. Each is compared with no rules and with conntrack alone.
    fn clusters(self) -> Vec<Vec<InstalledRules>> {
        match self.measured {
            Measured::Rulesets => self.by_rulesets(),
            Measured::Ebpf => self.by_ebpf(),
        }
    }

    fn by_rulesets(self) -> Vec<Vec<InstalledRules>> {
        let linear =
            |cluster| Ruleset::ALL.map(|ruleset| InstalledRules::Linear(ruleset, cluster)).to_vec();
        let both = |cluster| [rulesets(cluster), linear(cluster)].concat();
        let mut clusters: Vec<_> = SIZES.iter().take(self.sizes).map(load).map(both).collect();
        if self.sizes == SIZES.len() {
            clusters.push(rulesets(LARGE));
        }
        clusters.push(admin_rules(MeasuredBackend::Rules(Ruleset::Nftables)));
        clusters
    }

    fn by_ebpf(self) -> Vec<Vec<InstalledRules>> {
        let rows = |cluster| {
            vec![
                InstalledRules::BareHook,
                InstalledRules::Weir(MeasuredBackend::Ebpf, cluster),
                InstalledRules::WeirBesideConntrack(cluster),
                InstalledRules::FastLane(cluster),
            ]
        };
        let others = [rows(COMPARED), rulesets(COMPARED)].concat();
        if self.sizes < SIZES.len() {
            return vec![others];
        }
        let all = [SMALL].into_iter().chain(SIZES.iter().map(load)).chain([LARGE]);
        let mut clusters: Vec<_> = all.filter(|one| *one != COMPARED).map(rows).collect();
        clusters.insert(clusters.len() / 2, others);
        let admin = [vec![InstalledRules::BareHook], admin_rules(MeasuredBackend::Ebpf)];
        clusters.push(admin.concat());
        clusters
    }
}

fn load(&(policies, members): &(usize, usize)) -> PolicyLoad {
    PolicyLoad { policies, members }
}

/// The rows of nftables and iptables for a cluster.
fn rulesets(cluster: PolicyLoad) -> Vec<InstalledRules> {
    let rules = Ruleset::ALL.map(MeasuredBackend::Rules);
    rules.map(|backend| InstalledRules::Weir(backend, cluster)).to_vec()
}

fn admin_rules(backend: MeasuredBackend) -> Vec<InstalledRules> {
    RULED.map(|ruled| InstalledRules::AdminRules(backend, ruled)).to_vec()
}

/// The cost of one operation with given rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) rules: InstalledRules,
    pub(crate) operation: Operation,
    /// Microseconds of CPU.
    pub(crate) time: Spread,
    pub(crate) times_nothing: Spread,
    pub(crate) times_conntrack: Spread,
    /// If the same round has a bare hook.
    pub(crate) times_hook: Option<Spread>,
}

impl Figure {
    pub(crate) fn json(&self) -> Value {
        json!({
            "rules": self.rules.to_string(),
            "operation": self.operation.name(),
            "microseconds": self.time.json(),
            "times_no_rules": self.times_nothing.json(),
            "times_conntrack_alone": self.times_conntrack.json(),
            "times_bare_hook": self.times_hook.map(|spread| spread.json()),
        })
    }
}

/// Measures in rounds with new labs. Within a round, the probe visits the labs in turn many times, so that
/// noise of the machine affects all of them. Ratios compare consecutive visits.
pub(crate) fn measure(effort: Effort) -> Result<Vec<Figure>> {
    let mut medians: Vec<(InstalledRules, Vec<Medians>)> = Vec::new();
    for rules in effort.clusters() {
        let anchors = [InstalledRules::Nothing, InstalledRules::Conntrack];
        let together: Vec<InstalledRules> = anchors.into_iter().chain(rules).collect();
        let ready: Vec<Prepared> = together.iter().map(|rules| rules.prepare()).collect();
        for round in 0..effort.rounds {
            eprintln!("round {}: packets under {}", round + 1, together[anchors.len()]);
            for (rules, found) in together.iter().zip(self::round(&together, &ready, effort)?) {
                match medians.iter_mut().find(|(known, _)| known == rules) {
                    Some((_, medians)) => medians.push(found),
                    None => medians.push((*rules, vec![found])),
                }
            }
        }
    }
    let figures = medians.iter().flat_map(|(rules, medians)| {
        Operation::ALL.into_iter().enumerate().map(|(number, operation)| {
            let spread = |of: fn(&Medians) -> &[f64; OPERATIONS]| {
                Spread::from_values(medians.iter().map(|medians| of(medians)[number]).collect())
            };
            Figure {
                rules: *rules,
                operation,
                time: spread(|medians| &medians.time),
                times_nothing: spread(|medians| &medians.times_nothing),
                times_conntrack: spread(|medians| &medians.times_conntrack),
                times_hook: medians.iter().all(|medians| medians.times_hook.is_some()).then(|| {
                    let of = |medians: &Medians| medians.times_hook.map(|all| all[number]);
                    Spread::from_values(medians.iter().filter_map(of).collect())
                }),
            }
        })
    });
    Ok(figures.collect())
}

/// The medians of one round by operation, and the ratios to consecutive visits.
struct Medians {
    time: [f64; OPERATIONS],
    times_nothing: [f64; OPERATIONS],
    times_conntrack: [f64; OPERATIONS],
    times_hook: Option<[f64; OPERATIONS]>,
}

fn round(together: &[InstalledRules], ready: &[Prepared], effort: Effort) -> Result<Vec<Medians>> {
    let mut probes = Vec::with_capacity(together.len());
    for (rules, ready) in together.iter().zip(ready) {
        let probe =
            PacketProbe::new(|| ready.load()).with_context(|| format!("cannot load {rules}"))?;
        probe.check(rules.rest()).with_context(|| rules.to_string())?;
        probes.push((probe, Vec::new()));
    }
    // The kernel removes earlier namespaces in the background.
    thread::sleep(Duration::from_millis(300));
    for slice in 0..effort.slices {
        for turn in 0..probes.len() {
            // Vary the order, so that no lab always follows the same one.
            let at = (turn + slice) % together.len();
            let (probe, slices) = &mut probes[at];
            let mut samples = Samples::default();
            probe.slice(&mut samples).with_context(|| together[at].to_string())?;
            slices.push(samples.map(|samples| Spread::from_values(samples).median));
        }
    }
    let slices: Vec<Vec<[f64; OPERATIONS]>> =
        probes.into_iter().map(|(_, slices)| slices).collect();
    let hook = together.iter().position(|rules| *rules == InstalledRules::BareHook);
    let compare = |own: &Vec<[f64; OPERATIONS]>| Medians {
        time: std::array::from_fn(|at| median(own.iter().map(|slice| slice[at]))),
        times_nothing: ratio(own, &slices[0]),
        times_conntrack: ratio(own, &slices[1]),
        times_hook: hook.map(|hook| ratio(own, &slices[hook])),
    };
    Ok(slices.iter().map(compare).collect())
}

/// The median of the ratios of neighbouring slices, by operation.
fn ratio(own: &[[f64; OPERATIONS]], to: &[[f64; OPERATIONS]]) -> [f64; OPERATIONS] {
    std::array::from_fn(|at| median(own.iter().zip(to).map(|(own, to)| own[at] / to[at])))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    Spread::from_values(values.collect()).median
}
