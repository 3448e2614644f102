//! The cost of changes by eBPF, beside nftables and bare bpf(2).

use anyhow::Result;

use super::{
    AdminRules, BARE_BPF, ChangeCost, SINGLES, Size, Task, Time, Times, by_ebpf, in_new_lab, mean,
    median, member, one_in_rules, same_bytes, timed, weir,
};
use crate::datapath::{bare_bpf::BareMap, cut, netlink::SetChange};

/// Measures the tasks that eBPF is meant for, by eBPF and by nftables, and the termination of many
/// connections and of few.
pub(in crate::datapath) fn measure_ebpf(rounds: usize, quick: bool) -> Result<Vec<ChangeCost>> {
    let size = Size::new(quick);
    let mut times = Times::default();
    let connections = [size.members / 100, size.members];
    let mut cuts = connections.map(|_| cut::Cuts::default());
    for round in 0..rounds {
        eprintln!("round {}: changes by eBPF, sets of {} members", round + 1, size.members);
        for work in [bare_bpf, one_in_rules, weir, same_bytes, by_ebpf] {
            times.0.extend(in_new_lab(|| work(size))?);
        }
        for (cuts, connections) in cuts.iter_mut().zip(connections) {
            cuts.round(connections)?;
        }
    }
    let mut rows = times.rows(size);
    for (cuts, connections) in cuts.iter().zip(connections) {
        rows.extend(cuts.rows(connections));
    }
    Ok(rows)
}

/// One element of a map that has as many as the cluster has peers.
fn bare_bpf(size: Size) -> Result<Vec<Time>> {
    let map = BareMap::create(size.members + 1)?;
    (0..size.members).try_for_each(|number| map.set(member(number)))?;
    let newcomer = member(size.members);
    let one = || {
        timed(SINGLES, |edit| match edit {
            SetChange::Add => map.set(newcomer),
            SetChange::Remove => map.delete(newcomer),
        })
    };
    let mut times = vec![(Task::One, BARE_BPF, median(one()?))];
    for rules in AdminRules::ALL {
        times.push((Task::OneOfRuled(rules), BARE_BPF, median(one()?)));
        times.push((Task::OneHere(rules), BARE_BPF, mean(&one()?)));
    }
    Ok(times)
}
