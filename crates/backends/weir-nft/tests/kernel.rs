//! Rendered tables, loaded by nft and by the kernel.

use std::{
    io::Write,
    process::{Command, ExitCode, Stdio},
};

use libtest_mimic::{Failed, Trial};
use weir_datapath::Mode;
use weir_engine::{Locality, compile};
use weir_lab::{Lab, Layout};
use weir_model::{Direction, World};
use weir_nft::{Nft, NftSet, NftTable, SetKind};
use weir_testkit::{HostileAdminShape, HostileShape};
use weir_trials::{node, random::draw};

fn main() -> ExitCode {
    let merged = Trial::test("crowded_clusters_have_merged_rules_of_every_tier", || {
        let tables: Vec<NftTable> = (0..60)
            .map(|seed| weir_nft::render(&compile(&draw(seed).0, Locality::Everywhere)))
            .collect();
        let has_set = |table: &NftTable, is_it: fn(&str, &NftSet) -> bool| {
            table.sets.iter().any(|(name, set)| is_it(name, set))
        };
        let has_chain =
            |table: &NftTable, end: &str| table.chains.keys().any(|name| name.ends_with(end));
        let cases: [(&str, Check<'_>); 7] = [
            ("merged peers of NetworkPolicies", &|table| {
                has_set(table, |_, set| set.comment.ends_with("sets together"))
            }),
            ("denied peers", &|table| has_set(table, |_, set| set.comment.starts_with("denied"))),
            ("allowed peers", &|table| has_set(table, |_, set| set.comment.starts_with("allowed"))),
            ("passed peers", &|table| has_set(table, |_, set| set.comment.starts_with("passed"))),
            ("chains by port", &|table| has_set(table, |name, _| name.starts_with("classes-"))),
            ("chains by ranges of ports", &|table| {
                has_set(table, |_, set| set.kind == SetKind::ServiceRangeChains)
            }),
            ("admin tiers", &|table| has_chain(table, "-admin")),
        ];
        for (what, has) in cases {
            let merged = tables.iter().filter(|table| has(table)).count();
            if merged < 5 {
                return Err(format!("hardly any cluster has {what}: {merged}").into());
            }
        }
        Ok(())
    });
    let text = Trial::test("the_kernel_lists_what_was_rendered", listed);
    let sequence = Trial::test("the_kernel_lists_rules_in_sequence", listed_in_sequence);
    let numbered = Trial::test("the_kernel_lists_numbered_sets", listed_numbered_sets);
    let admin = Trial::test("the_kernel_lists_admin_rules_in_sequence", listed_admin_sequence);
    weir_trials::main(|| vec![merged, text, sequence, numbered, admin])
}

/// A property of a table.
type Check<'a> = &'a dyn Fn(&NftTable) -> bool;

/// The rulesets of random clusters.
fn listed() -> Result<(), Failed> {
    (0..20).try_for_each(|seed| check_listing(&draw(seed).0))
}

/// The rulesets of policies whose merged rules would be too large.
fn listed_in_sequence() -> Result<(), Failed> {
    let shapes = [
        HostileShape::RulesByExceptions,
        HostileShape::RangesBySelectors,
        HostileShape::WideAndNarrow,
    ];
    for shape in shapes {
        for direction in Direction::BOTH {
            let world = world(&shape.manifests(direction, 40_000));
            let table = weir_nft::render(&compile(&world, Locality::Everywhere));
            if table.sets.keys().any(|name| name.starts_with("classes-")) {
                return Err(format!("the rules of {shape} are merged").into());
            }
            check_listing(&world)?;
        }
    }
    Ok(())
}

/// The rulesets of policies with many sets.
fn listed_numbered_sets() -> Result<(), Failed> {
    let shapes = [
        (HostileShape::SelectorsWithPorts, &["peers4"][..]),
        (HostileShape::BlocksWithRanges, &["ranges"]),
        (HostileShape::BlocksWithPairs, &["services"]),
        (HostileShape::SmallLists, &["services", "blocks4"]),
        (HostileShape::SeparateExceptions, &["services", "blocks4"]),
    ];
    for (shape, words) in shapes {
        for direction in Direction::BOTH {
            let world = world(&shape.manifests(direction, 40_000));
            let table = weir_nft::render(&compile(&world, Locality::Everywhere));
            let has = |word: &str| table.sets.keys().any(|name| name.starts_with(word));
            if !words.iter().all(|word| has(&format!("numbered-{word}-"))) {
                return Err(format!("{shape} has no numbered sets: {table}").into());
            }
            check_listing(&world)?;
        }
    }
    Ok(())
}

/// The rulesets of cluster-wide policies whose merged rules would be too large.
fn listed_admin_sequence() -> Result<(), Failed> {
    let shapes = [
        (
            HostileAdminShape::SelectorsByRanges,
            &["held4", "numbered-peers4", "numbered-ports4"][..],
        ),
        (HostileAdminShape::SharedSelectors, &["held4", "numbered-peers4"]),
        (HostileAdminShape::Baseline, &["held4", "numbered-ranges-0"]),
    ];
    for (shape, words) in shapes {
        let world = world(&shape.manifests(Direction::Egress, 100_000));
        let table = weir_nft::render(&compile(&world, Locality::Everywhere));
        let has = |word: &&str| table.sets.keys().any(|name| name.starts_with(*word));
        if !words.iter().all(has) {
            return Err(format!("the rules of {shape} are merged: {:?}", table.sets.keys()).into());
        }
        check_listing(&world)?;
    }
    Ok(())
}

fn world(manifests: &str) -> World {
    let mut reader = weir_api::ManifestReader::new();
    reader.read_file("hostile".into(), manifests.as_bytes());
    reader.finish().objects.into_iter().collect()
}

/// The kernel lists the rendered ruleset, apart from white space, counters and the order within
/// sets.
fn check_listing(world: &World) -> Result<(), Failed> {
    let layout = Layout::from_world(world, &[]);
    let lab = Lab::build(&layout).map_err(|error| format!("{error}"))?;
    for node in &layout.nodes {
        let program = compile(world, Locality::Node(node.name.clone()));
        let rendered = weir_nft::render(&program);
        let listed = lab
            .on_node(&node.name, || {
                nft(&["--check", "-f", "-"], &rendered.to_string())?;
                nft(&["-f", "-"], &rendered.to_string())?;
                let by_text = nft(&LIST, "")?;
                nft(&["delete", "table", "inet", "weir"], "")?;
                let ours = Nft::open(Mode::Enforce).map_err(|error| error.with_causes())?;
                node::sync(&mut node::Driver::new(ours), &program);
                let by_netlink = nft(&LIST, "")?;
                if sorted(&by_text) == sorted(&by_netlink) {
                    Ok(by_netlink)
                } else {
                    Err(format!("nft wrote\n{by_text}\nand weir\n{by_netlink}"))
                }
            })
            .map_err(|error| format!("{error}"))??;
        for (name, chain) in &rendered.chains {
            let rules = chain.rules.len();
            let there =
                section(&listed, &format!("chain {name} {{")).ok_or(format!("no chain {name}"))?;
            let there = there.iter().filter(|line| !line.starts_with("type ")).count();
            if there != rules {
                return Err(
                    format!("chain {name} has {there} rules, not {rules}:\n{listed}").into()
                );
            }
        }
        for (name, set) in &rendered.sets {
            let words = ["set", "map"]
                .iter()
                .find_map(|word| section(&listed, &format!("{word} {name} {{")));
            let text = words.ok_or(format!("no set {name}"))?.join(" ");
            for key in set.elements.keys() {
                if !text.contains(&key.to_string()) {
                    return Err(format!("{key} is not in {name}:\n{listed}").into());
                }
            }
        }
    }
    Ok(())
}

const LIST: [&str; 6] = ["--stateless", "--numeric-priority", "list", "table", "inet", "weir"];

/// The words of a listing, sorted, because the kernel's sets have no order.
fn sorted(listed: &str) -> Vec<&str> {
    let words = listed.split([' ', '\t', '\n', ',']).filter(|word| !word.is_empty());
    let mut words: Vec<&str> = words.collect();
    words.sort_unstable();
    words
}

/// The lines between a heading and its closing brace.
fn section<'a>(listed: &'a str, heading: &str) -> Option<Vec<&'a str>> {
    let lines = listed.lines().map(str::trim).skip_while(|line| *line != heading);
    let inside: Vec<&str> = lines.skip(1).take_while(|line| *line != "}").collect();
    listed.lines().any(|line| line.trim() == heading).then_some(inside)
}

fn nft(arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run `nft`: {error}; install nftables"))?;
    child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{}\n{input}", String::from_utf8_lossy(&output.stderr)))
    }
}
