//! What it costs to change what the kernel has: with nft, and with nothing but the bytes that must be sent.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use weir_lab::{Lab, LabNode, Layout};

use super::{
    netlink::{Edit, Netlink, TABLE},
    nft,
};
use crate::bench::{
    measure::{Spread, cpu},
    workload::NODE,
};

/// Members in each transaction of a load that is split: in a longer one the kernel's hash table fills faster than it grows.
const SPLIT: usize = 4000;
/// Transactions of one member, in each round.
const SINGLES: usize = 400;
/// The same with nft, which takes a thousand times as long.
const SINGLES_BY_NFT: usize = 5;

/// One measured figure.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) how: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) spread: Spread,
}

impl Row {
    pub(crate) fn json(&self) -> Value {
        json!({"what": self.what, "how": self.how, "unit": self.unit, "value": self.spread.json()})
    }
}

/// How large the sets are.
#[derive(Clone, Copy)]
struct Size {
    /// Members of the one large set.
    members: u32,
    /// Sets in a table that is read back.
    sets: u32,
    /// Members of each of them.
    members_each: u32,
}

/// The medians of all rounds: one member, a first load, and reading everything back.
pub(crate) fn measure(rounds: usize, quick: bool) -> Result<Vec<Row>> {
    let scale = if quick { 10 } else { 1 };
    let size = Size { members: 100_000 / scale, sets: 2_000 / scale, members_each: 100 };
    let mut times: [Vec<f64>; 6] = Default::default();
    for round in 0..rounds {
        eprintln!("round {}: sets of {} members", round + 1, size.members);
        let found = apart(|| one_and_all(size))?.into_iter().chain([apart(|| read_back(size))?]);
        times.iter_mut().zip(found).for_each(|(times, found)| times.push(found));
    }
    let Size { members, sets, members_each } = size;
    let load = format!("first load of {members} members");
    let one = format!("one member more or less among {members}");
    let read = format!("reading {sets} sets of {members_each} members");
    let names = [
        (&load, "nft -f", "ms"),
        (&load, "bare netlink, one transaction", "ms"),
        (&load, "bare netlink, transactions of 4000", "ms"),
        (&one, "nft -f", "ms"),
        (&one, "bare netlink", "µs"),
        (&read, "bare netlink", "ms"),
    ];
    let row = |((what, how, unit), times): ((&String, _, _), _)| Row {
        what: what.clone(),
        how,
        unit,
        spread: Spread::of(times),
    };
    Ok(names.into_iter().zip(times).map(row).collect())
}

/// Runs something on a node of a lab of its own.
fn apart<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let nodes = vec![LabNode { name: NODE.into(), addresses: Vec::new() }];
    Lab::build(&Layout { nodes, ..Layout::default() })?.on_node(NODE, work)?
}

/// A first load and single members, each by nft and by bare netlink.
fn one_and_all(size: Size) -> Result<[f64; 5]> {
    let members: Vec<Ipv4Addr> = (0..size.members).map(member).collect();
    let empty = set("at-once", &[]) + &set("split", &[]);
    nft::load(&format!("table inet {TABLE} {{ {empty} }}"))?;
    let mut netlink = Netlink::open()?;
    let (at_once, done) = cpu(|| netlink.edit(Edit::Add, "at-once", &members));
    done?;
    let mut transactions = members.chunks(SPLIT);
    let (split, done) =
        cpu(|| transactions.try_for_each(|members| netlink.edit(Edit::Add, "split", members)));
    done?;
    let text = format!("table inet {TABLE} {{ {} }}", set("by-nft", &members));
    let nft_load = nft::load_timed(&text)?;

    let newcomer = [member(size.members)];
    let mut bare = Vec::with_capacity(2 * SINGLES);
    for _ in 0..SINGLES {
        for edit in [Edit::Add, Edit::Remove] {
            let (time, done) = cpu(|| netlink.edit(edit, "split", &newcomer));
            done?;
            bare.push(time.as_secs_f64() * 1e6);
        }
    }
    let mut by_nft = Vec::with_capacity(2 * SINGLES_BY_NFT);
    for _ in 0..SINGLES_BY_NFT {
        for verb in ["add", "delete"] {
            let text = format!("{verb} element inet {TABLE} by-nft {{ {} }}", newcomer[0]);
            by_nft.push(nft::load_timed(&text)?.as_secs_f64() * 1e3);
        }
    }
    Ok([
        nft_load.as_secs_f64() * 1e3,
        at_once.as_secs_f64() * 1e3,
        split.as_secs_f64() * 1e3,
        Spread::of(by_nft).median,
        Spread::of(bare).median,
    ])
}

/// Reads every member of many sets.
fn read_back(size: Size) -> Result<f64> {
    let sets = (0..size.sets).map(|number| {
        let first = number * size.members_each;
        let members: Vec<Ipv4Addr> = (first..first + size.members_each).map(member).collect();
        set(&format!("set-{number}"), &members)
    });
    nft::load(&format!("table inet {TABLE} {{ {} }}", sets.collect::<String>()))?;
    let names: Vec<String> = (0..size.sets).map(|number| format!("set-{number}")).collect();
    let mut netlink = Netlink::open()?;
    let (time, bytes) = cpu(|| names.iter().map(|name| netlink.read(name)).sum::<Result<usize>>());
    // A member takes four bytes at least.
    ensure!(bytes? > (size.sets * size.members_each * 4) as usize, "the kernel did not list all");
    Ok(time.as_secs_f64() * 1e3)
}

fn set(name: &str, members: &[Ipv4Addr]) -> String {
    let members: Vec<String> = members.iter().map(Ipv4Addr::to_string).collect();
    let elements = match &*members {
        [] => String::new(),
        members => format!("elements = {{ {} }}", members.join(",")),
    };
    format!("set {name} {{ type ipv4_addr; {elements}; }}; ")
}

fn member(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number)
}
