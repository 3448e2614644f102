//! The cost of a packet with different rules.

use std::{fmt, thread, time::Duration};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use weir_model::{Program, Verdict};

use super::{
    backend::Backend,
    cluster::{Cluster, Ruled},
    linear::Linear,
    linear_iptables::LinearIptables,
    nft,
    probe::{Operation, Probe, Samples},
};
use crate::measure::Spread;

/// The installed rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// No rules.
    Nothing,
    /// One rule that accepts packets of known connections: the minimum cost of a stateful filter.
    Conntrack,
    /// Rules of weir.
    Weir(Backend, Cluster),
    /// Rules of weir for admin policies, by nftables.
    Ruled(Ruled),
    /// The same policies in sequence, in kube-router's layout.
    Linear(Backend, Cluster),
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut policies = |who: &str, backend: &Backend, cluster: &Cluster| {
            let plural = if cluster.policies == 1 { "policy" } else { "policies" };
            let Cluster { policies, members } = cluster;
            write!(f, "{who}, {backend}, {policies} {plural} of {members} peers")
        };
        match self {
            Rules::Nothing => f.write_str("no rules"),
            Rules::Conntrack => f.write_str("conntrack alone"),
            Rules::Weir(backend, cluster) => policies("weir", backend, cluster),
            Rules::Ruled(Ruled { rules, members }) => {
                let plural = if *rules == 1 { "admin rule" } else { "admin rules" };
                write!(f, "weir, nftables, {rules} {plural} of {members} peers")
            }
            Rules::Linear(backend, cluster) => policies("kube-router's shape", backend, cluster),
        }
    }
}

impl Rules {
    /// Prepares rules that can be loaded repeatedly.
    fn prepare(self) -> Prepared {
        match self {
            Rules::Nothing => Prepared::Text(String::new()),
            Rules::Conntrack => Prepared::Text(CONNTRACK.to_owned()),
            Rules::Weir(backend, cluster) => Prepared::Program(backend, cluster.program()),
            Rules::Ruled(ruled) => Prepared::Program(Backend::Nftables, ruled.program()),
            Rules::Linear(Backend::Nftables, cluster) => {
                Prepared::Text(Linear(cluster).to_string())
            }
            Rules::Linear(Backend::Iptables(variant), cluster) => {
                Prepared::Iptables(LinearIptables::new(cluster, variant))
            }
        }
    }

    /// The verdict on packets that no policy allows.
    fn rest(self) -> Verdict {
        match self {
            Rules::Nothing | Rules::Conntrack => Verdict::Allow,
            Rules::Weir(..) | Rules::Ruled(_) | Rules::Linear(..) => Verdict::Deny,
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
    Program(Backend, Program),
}

impl Prepared {
    /// Loads them in the namespace of this thread.
    fn load(&self) -> Result<()> {
        match self {
            Prepared::Text(text) => nft::load(text),
            Prepared::Iptables(rules) => rules.load(),
            Prepared::Program(backend, program) => backend.enforce(program),
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
}

/// The number of policies, and of peers of each policy.
const SIZES: [(usize, usize); 4] = [(1, 1000), (10, 1000), (100, 1000), (1000, 100)];
/// One policy with very many peers.
const LARGE: Cluster = Cluster { policies: 1, members: 100_000 };
/// A few admin rules, and many.
const RULED: [Ruled; 2] = [Ruled { rules: 1, members: 1000 }, Ruled { rules: 1000, members: 100 }];

impl Effort {
    pub(crate) fn new(rounds: usize, quick: bool) -> Effort {
        let (slices, sizes) = if quick { (5, 2) } else { (25, SIZES.len()) };
        Effort { rounds, slices, sizes }
    }

    /// The measured clusters. Each is compared with no rules and with conntrack alone.
    fn clusters(self) -> Vec<Vec<Rules>> {
        let of = |&(policies, members): &(usize, usize)| Cluster { policies, members };
        let weir = |cluster| Backend::ALL.map(|backend| Rules::Weir(backend, cluster));
        let linear = |cluster| Backend::ALL.map(|backend| Rules::Linear(backend, cluster));
        let both = |cluster| [weir(cluster), linear(cluster)].concat();
        let mut clusters: Vec<_> = SIZES.iter().take(self.sizes).map(of).map(both).collect();
        if self.sizes == SIZES.len() {
            clusters.push(weir(LARGE).to_vec());
        }
        clusters.push(RULED.map(Rules::Ruled).to_vec());
        clusters
    }
}

/// The cost of one operation with given rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) rules: Rules,
    pub(crate) operation: Operation,
    /// Microseconds of CPU.
    pub(crate) time: Spread,
    pub(crate) times_nothing: Spread,
    pub(crate) times_conntrack: Spread,
}

impl Figure {
    pub(crate) fn json(&self) -> Value {
        json!({
            "rules": self.rules.to_string(),
            "operation": self.operation.name(),
            "microseconds": self.time.json(),
            "times_no_rules": self.times_nothing.json(),
            "times_conntrack_alone": self.times_conntrack.json(),
        })
    }
}

/// Measures in rounds with new labs. Within a round, the probe visits the labs in turn many times, so that
/// noise of the machine affects all of them. Ratios compare consecutive visits.
pub(crate) fn measure(effort: Effort) -> Result<Vec<Figure>> {
    let mut medians: Vec<(Rules, Vec<Medians>)> = Vec::new();
    for rules in effort.clusters() {
        let anchors = [Rules::Nothing, Rules::Conntrack];
        let together: Vec<Rules> = anchors.into_iter().chain(rules).collect();
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
            let spread = |of: fn(&Medians) -> &[f64; 4]| {
                Spread::of(medians.iter().map(|medians| of(medians)[number]).collect())
            };
            Figure {
                rules: *rules,
                operation,
                time: spread(|medians| &medians.time),
                times_nothing: spread(|medians| &medians.times_nothing),
                times_conntrack: spread(|medians| &medians.times_conntrack),
            }
        })
    });
    Ok(figures.collect())
}

/// The medians of one round by operation, and the ratios to consecutive visits.
struct Medians {
    time: [f64; 4],
    times_nothing: [f64; 4],
    times_conntrack: [f64; 4],
}

fn round(together: &[Rules], ready: &[Prepared], effort: Effort) -> Result<Vec<Medians>> {
    let mut probes = Vec::with_capacity(together.len());
    for (rules, ready) in together.iter().zip(ready) {
        let probe = Probe::new(|| ready.load()).with_context(|| format!("cannot load {rules}"))?;
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
            slices.push(samples.map(|samples| Spread::of(samples).median));
        }
    }
    let slices: Vec<Vec<[f64; 4]>> = probes.into_iter().map(|(_, slices)| slices).collect();
    let compare = |own: &Vec<[f64; 4]>| Medians {
        time: std::array::from_fn(|at| median(own.iter().map(|slice| slice[at]))),
        times_nothing: ratio(own, &slices[0]),
        times_conntrack: ratio(own, &slices[1]),
    };
    Ok(slices.iter().map(compare).collect())
}

/// The median of the ratios of neighbouring slices, by operation.
fn ratio(own: &[[f64; 4]], to: &[[f64; 4]]) -> [f64; 4] {
    std::array::from_fn(|at| median(own.iter().zip(to).map(|(own, to)| own[at] / to[at])))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    Spread::of(values.collect()).median
}
