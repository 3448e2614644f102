//! The cost of changes in the kernel: by weir, by nft, and by a minimal netlink client.

mod by_ebpf;
mod task;

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use weir_datapath::Datapath;
use weir_lab::{Lab, LabNode, Layout};
use weir_model::Change;

pub(super) use self::{
    by_ebpf::measure_ebpf,
    task::{AdminRules, Task},
};
use super::{
    backend::{ebpf, nftables},
    churn,
    cluster::{AdminRuleLoad, PolicyLoad, TenantLoad},
    ipset,
    netlink::{Netlink, SetChange, TABLE},
    nft,
    node::{ApplyResult, BenchAgent},
    replay::Replay,
};
use crate::{
    measure::{Spread, cpu},
    workload::NODE,
};

/// Members in each transaction of a split load. In a longer one, the kernel's hash table fills faster
/// than it grows.
const MEMBERS_PER_TRANSACTION: usize = 4000;
/// The number of additions and removals of a member in each round.
const SINGLES: usize = 400;
/// The same for pods of the node.
const SINGLES_HERE: usize = 25;
/// The same by a program, which takes a thousand times as long.
const SINGLES_BY_PROGRAM: usize = 5;

/// The baseline of the comparison.
pub(super) const BARE: &str = "bare netlink";
/// The baseline of changes for which weir writes more than one element: exactly the same bytes.
const SAME_BYTES: &str = "bare netlink, weir's bytes";
/// The baseline for eBPF.
const BARE_BPF: &str = "bare bpf(2)";
/// weir with eBPF. Without more words, weir is measured with nftables, or with iptables for ipset.
pub(super) const EBPF: &str = "weir, ebpf";

/// One measured figure.
pub(crate) struct ChangeCost {
    /// The task, if it is one of those that are measured in rounds.
    pub(super) task: Option<Task>,
    pub(crate) what: String,
    pub(crate) how: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) spread: Spread,
    /// The same as a multiple of the baseline in the same round: bare netlink, with the same bytes if
    /// those were measured, or bare bpf(2) for eBPF.
    pub(crate) times_bare: Option<Spread>,
}

impl ChangeCost {
    pub(crate) fn json(&self) -> Value {
        json!({
            "what": self.what, "how": self.how, "unit": self.unit, "value": self.spread.json(),
            "times_bare": self.times_bare.as_ref().map(Spread::json),
        })
    }
}

/// The size of the measurements.
#[derive(Clone, Copy)]
struct Size {
    /// Members of the one large set.
    members: usize,
    /// The installed sets when an agent restarts.
    tenants: TenantLoad,
    /// The duration of continuous changes.
    churn: Duration,
}

impl Size {
    fn new(quick: bool) -> Size {
        let scale = if quick { 10 } else { 1 };
        Size {
            members: 100_000 / scale,
            tenants: TenantLoad { sets: 2_000 / scale, members: 100 },
            churn: Duration::from_secs(if quick { 6 } else { 60 }),
        }
    }

    fn cluster(self) -> PolicyLoad {
        PolicyLoad { policies: 1, members: self.members }
    }

    /// The same number of peers in many admin rules.
    fn ruled(self, rules: AdminRules) -> AdminRuleLoad {
        let rules = rules.count();
        AdminRuleLoad { rules, members: self.members / rules }
    }
}

/// Measures all tasks in rounds, and continuous changes once.
pub(crate) fn measure(rounds: usize, quick: bool) -> Result<Vec<ChangeCost>> {
    let size = Size::new(quick);
    let mut times = Times::default();
    for round in 0..rounds {
        eprintln!("round {}: changes to sets of {} members", round + 1, size.members);
        for work in
            [first_load_and_members, one_in_rules, read_back, weir, same_bytes, one_in_ipset]
        {
            times.0.extend(in_new_lab(|| work(size))?);
        }
    }
    eprintln!("continuous pod changes for {} s", size.churn.as_secs());
    let mut rows = times.rows(size);
    rows.extend(rows_of(&in_new_lab(|| churn::run(size.cluster(), size.churn))?, size));
    Ok(rows)
}

/// One measurement: the task, the method and the CPU time.
type Time = (Task, &'static str, Duration);

/// The measurements of all rounds in order.
#[derive(Default)]
struct Times(Vec<Time>);

impl Times {
    fn values_of(&self, task: Task, how: &str) -> Vec<f64> {
        let ours = self.0.iter().filter(|(other, by, _)| *other == task && *by == how);
        ours.map(|(.., time)| time.as_secs_f64()).collect()
    }

    fn rows(&self, size: Size) -> Vec<ChangeCost> {
        let row = |(task, how): (Task, &'static str)| {
            let (unit, per_second) = task.unit();
            // Each backend is compared with the system call that it uses.
            let same_bytes = self.values_of(task, SAME_BYTES);
            let bare = match how {
                EBPF => self.values_of(task, BARE_BPF),
                _ if same_bytes.is_empty() => self.values_of(task, BARE),
                _ => same_bytes,
            };
            let times = self.values_of(task, how);
            let ratios = times.iter().zip(&bare).map(|(time, bare)| time / bare).collect();
            ChangeCost {
                task: Some(task),
                what: task.what(size),
                how,
                unit,
                spread: Spread::from_values(times.iter().map(|time| time * per_second).collect()),
                times_bare: (![BARE, SAME_BYTES, BARE_BPF].contains(&how) && !bare.is_empty())
                    .then(|| Spread::from_values(ratios)),
            }
        };
        let hows = [
            "weir",
            EBPF,
            BARE_BPF,
            SAME_BYTES,
            BARE,
            "bare netlink, one transaction",
            "nft -f",
            "ipset",
        ];
        let all = Task::ALL.into_iter().flat_map(|task| hows.map(|how| (task, how)));
        all.filter(|(task, how)| !self.values_of(*task, how).is_empty()).map(row).collect()
    }
}

/// Runs a function on a node of a new lab.
pub(crate) fn in_new_lab<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let nodes = vec![LabNode { name: NODE.into(), addresses: Vec::new() }];
    Lab::build(&Layout { nodes, ..Layout::default() })?.on_node(NODE, work)?
}

/// A first load and single members, by nft and by bare netlink.
fn first_load_and_members(size: Size) -> Result<Vec<Time>> {
    let members: Vec<Ipv4Addr> = (0..size.members).map(member).collect();
    let empty = set("one-transaction", &[]) + &set("split", &[]);
    nft::load(&format!("table inet {TABLE} {{ {empty} }}"))?;
    let mut netlink = Netlink::open()?;
    let (one_transaction, done) = cpu(|| netlink.edit(SetChange::Add, "one-transaction", &members));
    done?;
    let mut transactions = members.chunks(MEMBERS_PER_TRANSACTION);
    let (split, done) =
        cpu(|| transactions.try_for_each(|members| netlink.edit(SetChange::Add, "split", members)));
    done?;
    let text = format!("table inet {TABLE} {{ {} }}", set("by-nft", &members));
    let by_nft = nft::load_timed(&text)?;

    let newcomer = member(size.members);
    let singles = timed(SINGLES, |edit| netlink.edit(edit, "split", &[newcomer]))?;
    let mut singles_by_nft = Vec::with_capacity(2 * SINGLES_BY_PROGRAM);
    for _ in 0..SINGLES_BY_PROGRAM {
        for verb in ["add", "delete"] {
            let text = format!("{verb} element inet {TABLE} by-nft {{ {newcomer} }}");
            singles_by_nft.push(nft::load_timed(&text)?);
        }
    }
    Ok(vec![
        (Task::Load, BARE, split),
        (Task::Load, "bare netlink, one transaction", one_transaction),
        (Task::Load, "nft -f", by_nft),
        (Task::One, BARE, median(singles)),
        (Task::One, "nft -f", median(singles_by_nft)),
    ])
}

/// A peer of admin rules, and a pod of the node, by bare netlink: one element, for any number of rules.
fn one_in_rules(size: Size) -> Result<Vec<Time>> {
    let peers: Vec<Ipv4Addr> = (0..size.members).map(member).collect();
    nft::load(&format!(
        "table inet {TABLE} {{ {} \
             map pods {{ type ipv4_addr : verdict; }}; \
             chain denied {{ drop; }}; \
             chain pod {{ ip saddr @peers goto denied; }}; \
             chain forward {{ type filter hook forward priority filter; ip daddr vmap @pods; }}; }}",
        set("peers", &peers)
    ))?;
    let mut netlink = Netlink::open()?;
    let newcomer = member(size.members);
    let peers = timed(SINGLES, |edit| netlink.edit(edit, "peers", &[newcomer]))?;
    let pods = timed(SINGLES_HERE, |edit| netlink.lead(edit, "pods", newcomer, "pod"))?;
    let (peers, pods) = (median(peers), mean(&pods));
    let of = |rules| [(Task::OneOfRuled(rules), BARE, peers), (Task::OneHere(rules), BARE, pods)];
    Ok(AdminRules::ALL.into_iter().flat_map(of).collect())
}

/// The same with the bytes that weir writes.
fn same_bytes(size: Size) -> Result<Vec<Time>> {
    let mut times = Vec::new();
    for rules in AdminRules::ALL {
        let ruled = size.ruled(rules);
        let [peers, pods] = in_new_lab(|| {
            let mut replay = Replay::open(ruled.changes())?;
            let peers = (0..2 * SINGLES).map(|number| replay.send([ruled.event(number)]));
            let peers = peers.collect::<Result<_>>()?;
            let pods = (0..2 * SINGLES_HERE).map(|number| replay.send([ruled.event_here(number)]));
            Ok([peers, pods.collect::<Result<_>>()?])
        })?;
        times.push((Task::OneOfRuled(rules), SAME_BYTES, median(peers)));
        times.push((Task::OneHere(rules), SAME_BYTES, mean(&pods)));
    }
    Ok(times)
}

/// The times of repeated additions and removals of a member.
fn timed(times: usize, mut work: impl FnMut(SetChange) -> Result<()>) -> Result<Vec<Duration>> {
    let edits = [SetChange::Add, SetChange::Remove].into_iter().cycle().take(2 * times);
    let one = |edit| {
        let (time, done) = cpu(|| work(edit));
        done.map(|()| time)
    };
    edits.map(one).collect()
}

/// Reads every member of many sets.
fn read_back(size: Size) -> Result<Vec<Time>> {
    let TenantLoad { sets, members: each } = size.tenants;
    let names: Vec<String> = (0..sets).map(|number| format!("set-{number}")).collect();
    let text = names.iter().enumerate().map(|(number, name)| {
        let members: Vec<Ipv4Addr> = (number * each..(number + 1) * each).map(member).collect();
        set(name, &members)
    });
    nft::load(&format!("table inet {TABLE} {{ {} }}", text.collect::<String>()))?;
    let mut netlink = Netlink::open()?;
    let (time, bytes) =
        cpu(|| names.iter().map(|name| netlink.list_members(name)).sum::<Result<usize>>());
    // A member has at least four bytes.
    ensure!(bytes? > sets * each * 4, "the kernel did not list all members");
    Ok(vec![(Task::Restart, BARE, time)])
}

/// The same by weir, from the compiled rules or from the event to the kernel's response.
fn weir(size: Size) -> Result<Vec<Time>> {
    by_weir(size, "weir", nftables)
}

/// The same by eBPF.
fn by_ebpf(size: Size) -> Result<Vec<Time>> {
    by_weir(size, EBPF, ebpf)
}

fn by_weir<D: Datapath>(
    size: Size,
    how: &'static str,
    open: impl Fn() -> Result<D> + Sync,
) -> Result<Vec<Time>> {
    let cluster = size.cluster();
    let mut node = BenchAgent::open(open()?);
    node.compile(cluster.changes());
    let (load, applied) = cpu(|| node.apply());
    ensure!(applied? == ApplyResult::Applied, "a first load wrote nothing");
    let singles = events(&mut node, SINGLES, |number| cluster.event(number))?;
    let mut times = Vec::new();
    for rules in AdminRules::ALL {
        let ruled = size.ruled(rules);
        let [peers, pods] = in_new_lab(|| {
            let mut node = BenchAgent::open(open()?);
            node.compile(ruled.changes());
            ensure!(node.apply()? == ApplyResult::Applied, "a first load wrote nothing");
            let peers = events(&mut node, SINGLES, |number| ruled.event(number))?;
            Ok([peers, events(&mut node, SINGLES_HERE, |number| ruled.event_here(number))?])
        })?;
        times.push((Task::OneOfRuled(rules), how, median(peers)));
        times.push((Task::OneHere(rules), how, mean(&pods)));
    }
    let restart = in_new_lab(|| {
        let start = || -> Result<_> {
            let mut node = BenchAgent::open(open()?);
            node.compile(size.tenants.changes());
            Ok(node)
        };
        start()?.apply()?;
        let mut again = start()?;
        let (time, applied) = cpu(|| again.apply());
        ensure!(applied? == ApplyResult::Unchanged, "a restart wrote something");
        Ok(time)
    })?;
    times.extend([
        (Task::Load, how, load),
        (Task::One, how, median(singles)),
        (Task::Restart, how, restart),
    ]);
    Ok(times)
}

/// The times from events to the kernel's response: repeated additions and removals of a pod.
fn events<D: Datapath>(
    node: &mut BenchAgent<D>,
    times: usize,
    event: impl Fn(usize) -> Change,
) -> Result<Vec<Duration>> {
    let one = |number| {
        let event = [event(number)];
        let (time, applied) = cpu(|| {
            node.compile(event);
            node.apply()
        });
        ensure!(applied? == ApplyResult::Applied, "an event wrote nothing");
        Ok(time)
    };
    (0..2 * times).map(one).collect()
}

/// Single members in ipset, each method in its own namespace.
fn one_in_ipset(size: Size) -> Result<Vec<Time>> {
    let members: Vec<Ipv4Addr> = (0..size.members).map(member).collect();
    let newcomer = member(size.members);
    let bare = ipset::bare(&members, newcomer, SINGLES)?;
    let by_program = ipset::by_program(newcomer, SINGLES_BY_PROGRAM)?;
    let weir = in_new_lab(|| ipset::weir(size.cluster(), SINGLES))?;
    Ok(vec![
        (Task::OneInIpset, BARE, median(bare)),
        (Task::OneInIpset, "ipset", median(by_program)),
        (Task::OneInIpset, "weir", median(weir)),
    ])
}

fn rows_of(churn: &churn::Churn, size: Size) -> [ChangeCost; 3] {
    let what = format!("1000 pod events a second for {} s", size.churn.as_secs());
    let row = |what: String, unit, value: f64| ChangeCost {
        task: None,
        what,
        how: "weir",
        unit,
        spread: Spread::from_values(vec![value]),
        times_bare: None,
    };
    [
        row(format!("{what}: busy"), "% of a core", churn.busy),
        row(format!("{what}: event to kernel, median"), "ms", churn.percentile(0.5)),
        row(format!("{what}: event to kernel, 99 of 100"), "ms", churn.percentile(0.99)),
    ]
}

/// An addition costs much more than a removal, so a median would represent neither.
fn mean(times: &[Duration]) -> Duration {
    times.iter().sum::<Duration>() / u32::try_from(times.len()).unwrap_or(u32::MAX).max(1)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn set(name: &str, members: &[Ipv4Addr]) -> String {
    let members: Vec<String> = members.iter().map(Ipv4Addr::to_string).collect();
    let elements = match &*members {
        [] => String::new(),
        members => format!("elements = {{ {} }}", members.join(",")),
    };
    format!("set {name} {{ type ipv4_addr; {elements}; }}; ")
}

fn member(number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number as u32)
}
