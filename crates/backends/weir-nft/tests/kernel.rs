//! The kernel as third reader: random clusters, whose nodes load what was rendered, and real connections in them.

#[path = "datapath/random.rs"]
mod random;

use std::{
    io::Write,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use libtest_mimic::{Arguments, Failed, Trial};
use weir_datapath::{ApplyError, Datapath, Plan};
use weir_engine::{Engine, Locality, compile};
use weir_lab::{Lab, LabNode, Layout};
use weir_model::{Change, Name, Program};
use weir_nft::{Mode, Nft, Transaction};

use random::draw;

/// How many clusters are drawn. `WEIR_CLUSTERS=1000 cargo test -p weir-nft --test kernel` draws more.
const CLUSTERS: u64 = 60;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if let Err(error) = weir_lab::enter() {
        eprintln!("error: {error}\nhint: {}", error.hint().unwrap_or("run the tests as root"));
        return ExitCode::FAILURE;
    }
    let clusters =
        std::env::var("WEIR_CLUSTERS").ok().and_then(|n| n.parse().ok()).unwrap_or(CLUSTERS);
    let agree = Trial::test("engine_oracle_and_kernel_agree_on_random_clusters", move || {
        (0..clusters)
            .try_for_each(|seed| agree(seed).map_err(|why| format!("cluster {seed}: {why}").into()))
    });
    let merged = Trial::test("crowded_clusters_have_merged_rules", || {
        let merged = (0..CLUSTERS).filter(|seed| {
            let program = compile(&draw(*seed).0, Locality::Everywhere);
            weir_nft::render(&program).sets.keys().any(|name| name.starts_with("peers"))
        });
        match merged.count() {
            0..5 => Err("hardly any cluster needed a merged map".into()),
            _ => Ok(()),
        }
    });
    let text = Trial::test("the_kernel_lists_what_was_rendered", listed);
    let walks =
        Trial::test("change_by_change_the_kernel_has_what_a_fresh_start_would_put_there", || {
            (0..10).try_for_each(|seed| {
                steps(seed).map_err(|why| format!("world {seed}: {why}").into())
            })
        });
    libtest_mimic::run(&arguments, vec![agree, merged, text, walks]).exit_code()
}

fn agree(seed: u64) -> Result<(), String> {
    let (world, flows) = draw(seed);
    let layout = Layout::of(&world, &flows);
    let lab = Lab::build(&layout).map_err(|error| format!("{error}"))?;
    for node in &layout.nodes {
        let program = compile(&world, Locality::Node(node.name.clone()));
        lab.on_node(&node.name, || install(&program)).map_err(|error| format!("{error}"))??;
    }
    let program = compile(&world, Locality::Everywhere);
    let real = lab.probe(&flows, Duration::from_millis(150)).map_err(|error| format!("{error}"))?;
    for (flow, kernel) in flows.iter().zip(real) {
        let (oracle, rules) = (weir_oracle::verdict(&world, flow), program.verdict(flow));
        if kernel != oracle || rules != oracle {
            return Err(format!(
                "{flow}: the oracle says {oracle}, the rules {rules}, the kernel {kernel}"
            ));
        }
    }
    Ok(())
}

/// Puts a program into force, and makes sure that doing it again writes nothing.
fn install(program: &Program) -> Result<(), String> {
    let mut nft = open()?;
    sync(&mut nft, program)?;
    let again = replan(&mut open()?, program)?;
    if !again.is_empty() {
        return Err(format!("what was written is not what is read: {again}"));
    }
    Ok(())
}

fn open() -> Result<Nft, String> {
    Nft::open(Mode::Enforce).map_err(told)
}

fn replan(nft: &mut Nft, program: &Program) -> Result<Transaction, String> {
    let installed = nft.installed().map_err(told)?;
    Ok(nft.replan(program, &installed))
}

fn sync(nft: &mut Nft, program: &Program) -> Result<(), String> {
    let plan = replan(nft, program)?;
    nft.apply(&plan).map_err(told)
}

fn told(error: ApplyError) -> String {
    let mut told = error.to_string();
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(&error);
    while let Some(error) = cause {
        told = format!("{told}: {error}");
        cause = error.source();
    }
    told
}

/// Change by change, what is in the kernel is what a fresh start would put there, and its listing is that of the text.
fn steps(seed: u64) -> Result<(), String> {
    let (world, _) = draw(seed);
    let changes: Vec<Change> = world.changes().collect();
    let back = changes.iter().rev().map(|change| match change {
        Change::Put(object) => Change::Remove(object.key()),
        Change::Remove(key) => Change::Remove(key.clone()),
    });
    let there_and_back: Vec<Change> = changes.iter().cloned().chain(back).collect();
    let name = Name::from("n1");
    let node = LabNode { name: name.clone(), addresses: Vec::new() };
    let lab = Lab::build(&Layout { nodes: vec![node], ..Layout::default() })
        .map_err(|error| error.to_string())?;
    lab.on_node(&name, || walk(&there_and_back)).map_err(|error| error.to_string())?
}

fn walk(changes: &[Change]) -> Result<(), String> {
    let mut engine = Engine::new(Locality::Everywhere);
    let mut program = Program::default();
    let mut kernel = open()?;
    sync(&mut kernel, &program)?;
    let empty = nft(&["list", "table", "inet", "weir"], "")?;
    for some in changes.chunks(3) {
        let delta = engine.apply(some);
        program.apply(delta.clone());
        let plan = kernel.plan(&program, &delta);
        kernel.apply(&plan).map_err(|error| format!("{}\n{plan}", told(error)))?;
        let fresh = replan(&mut open()?, &program)?;
        if !fresh.is_empty() {
            return Err(format!("after {some:?}\n{plan}\nthere is still to do\n{fresh}"));
        }
        if kernel.drifted().map_err(told)? {
            return Err("our own change counts as somebody else's".to_owned());
        }
    }
    match nft(&["list", "table", "inet", "weir"], "")? {
        last if last == empty => Ok(()),
        last => Err(format!("an emptied world leaves something behind:\n{last}")),
    }
}

/// What the kernel lists is what was rendered, apart from white space, counters and the order within sets.
fn listed() -> Result<(), Failed> {
    for seed in 0..20 {
        let (world, _) = draw(seed);
        let layout = Layout::of(&world, &[]);
        let lab = Lab::build(&layout).map_err(|error| format!("{error}"))?;
        for node in &layout.nodes {
            let rendered = weir_nft::render(&compile(&world, Locality::Node(node.name.clone())));
            let program = compile(&world, Locality::Node(node.name.clone()));
            let listed = lab
                .on_node(&node.name, || {
                    nft(&["--check", "-f", "-"], &rendered.to_string())?;
                    nft(&["-f", "-"], &rendered.to_string())?;
                    let by_text = nft(&LIST, "")?;
                    nft(&["delete", "table", "inet", "weir"], "")?;
                    sync(&mut open()?, &program)?;
                    let by_netlink = nft(&LIST, "")?;
                    match sorted(&by_text) == sorted(&by_netlink) {
                        true => Ok(by_netlink),
                        false => Err(format!("nft wrote\n{by_text}\nand we\n{by_netlink}")),
                    }
                })
                .map_err(|error| format!("{error}"))??;
            for (name, chain) in &rendered.chains {
                let rules = chain.rules.len();
                let there = section(&listed, &format!("chain {name} {{"))
                    .ok_or(format!("no chain {name}"))?;
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
    }
    Ok(())
}

const LIST: [&str; 6] = ["--stateless", "--numeric-priority", "list", "table", "inet", "weir"];

/// The words of a listing, sorted: in the kernel, sets have no order.
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
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{}\n{input}", String::from_utf8_lossy(&output.stderr))),
    }
}
