//! Change by change.

use weir_datapath::Datapath;
use weir_datapath::Plan as _;
use weir_engine::{Engine, Locality};
use weir_iptables::{Iptables, Variant};
use weir_lab::{Lab, LabNode, Layout};
use weir_model::{Change, Name, Program};

use crate::agreement::{draw, open, replan, sync, told};

pub(crate) fn all(variant: Variant) -> Result<(), String> {
    (0..4).try_for_each(|seed| steps(seed, variant).map_err(|why| format!("world {seed}: {why}")))
}

/// A node without pods.
pub(crate) fn bare() -> Result<(Lab, Name), String> {
    let name = Name::from("n1");
    let node = LabNode { name: name.clone(), addresses: Vec::new() };
    let layout = Layout { nodes: vec![node], ..Layout::default() };
    Ok((Lab::build(&layout).map_err(|error| error.to_string())?, name))
}

fn steps(seed: u64, variant: Variant) -> Result<(), String> {
    let (world, _) = draw(seed);
    let changes: Vec<Change> = world.changes().collect();
    let back = changes.iter().rev().map(|change| match change {
        Change::Put(object) => Change::Remove(object.key()),
        Change::Remove(key) => Change::Remove(key.clone()),
    });
    let there_and_back: Vec<Change> = changes.iter().cloned().chain(back).collect();
    let (lab, name) = bare()?;
    lab.on_node(&name, || walk(&there_and_back, variant)).map_err(|error| error.to_string())?
}

fn walk(changes: &[Change], variant: Variant) -> Result<(), String> {
    let mut engine = Engine::new(Locality::Everywhere);
    let mut program = Program::default();
    let mut kernel = open(variant)?;
    sync(&mut kernel, &program)?;
    for some in changes.chunks(3) {
        let delta = engine.apply(some);
        program.apply(delta.clone());
        let plan = kernel.plan(&program, &delta);
        kernel.apply(&plan).map_err(|error| format!("{}\n{plan}", told(&error)))?;
        let fresh = replan(&mut open(variant)?, &program)?;
        if !fresh.is_empty() {
            return Err(format!("after {some:?}\n{plan}\nthere is still to do\n{fresh}"));
        }
        if drifted(&mut kernel)? {
            return Err("our own change counts as somebody else's".to_owned());
        }
    }
    match replan(&mut open(variant)?, &Program::default())? {
        left if left.is_empty() => Ok(()),
        left => Err(format!("an emptied world leaves something behind:\n{left}")),
    }
}

pub(crate) fn drifted(iptables: &mut Iptables) -> Result<bool, String> {
    iptables.drifted().map_err(|error| told(&error))
}
