//! One node, and commands of other programs on it.

use weir_datapath::Mode;
use weir_lab::Lab;
use weir_nft::Nft;

pub(crate) use weir_trials::node::{Driver, replan, sync, without_pods};

/// The nftables of a node. It may be used on any thread.
pub(crate) fn open(lab: &Lab, node: &str, mode: Mode) -> Driver<Nft> {
    Driver::new(lab.on_node(node, || Nft::open(mode)).unwrap().unwrap())
}

/// Runs commands of the nft program on the node `n1`.
#[track_caller]
pub(crate) fn run(lab: &Lab, commands: &str) {
    nft(lab, &["-f", "-"], commands);
}

/// The output of a list command of nft.
#[track_caller]
pub(crate) fn list(lab: &Lab, words: &[&str]) -> String {
    nft(lab, words, "")
}

#[track_caller]
fn nft(lab: &Lab, arguments: &[&str], input: &str) -> String {
    weir_trials::node::run(lab, "nft", arguments, input)
}

/// Our table without its counters. Sets and chains are sorted by name, because the kernel lists
/// them in order of creation.
#[track_caller]
pub(crate) fn ours(lab: &Lab) -> Vec<String> {
    let listed = list(lab, &["--stateless", "list", "ruleset"]);
    let mut tables = listed.split("\ntable ").map(|table| table.trim_start_matches("table "));
    let Some(table) = tables.find(|table| table.starts_with("inet weir {")) else {
        return Vec::new();
    };
    let mut blocks: Vec<String> =
        table.split("\n\n").map(|block| block.trim().to_owned()).collect();
    blocks[0] = blocks[0].trim_start_matches("inet weir {").trim().to_owned();
    let last = blocks.len() - 1;
    blocks[last] = blocks[last].trim_end_matches("\n}").to_owned();
    blocks.sort();
    blocks
}
