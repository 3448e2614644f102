//! The programs against the compiled rules and the oracle, without a kernel.
//!
//! An interpreter runs the instructions that the kernel would run, with the content of the maps that
//! the planner computes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

mod connections;
mod foreign;
mod kinds;
mod lane;
mod machine;
mod names;
mod packets;
mod size;

use proptest::{collection::vec, prelude::*};
use weir_datapath::{FormerAddresses, Mode, Planner};
use weir_ebpf::{
    EbpfPlanner, Installed, MapStep, Write,
    instruction::Instruction,
    layout::MapId,
    program::{Features, HookPoint, NF_ACCEPT, TickClock, program},
};
use weir_engine::{Engine, Locality, compile};
use weir_model::{Delta, Direction, Flow, IpFamily, Program, Verdict, World};
use weir_testkit::Midway;

use machine::{Maps, Packet, Run};
use packets::opening;

/// The cases of each law. The interpreter is slow without optimization.
const CASES: u32 = 60;

const FEATURES: Features = Features { conntrack: true, clock: CLOCK };
/// A kernel with 250 ticks in a second.
pub(crate) const CLOCK: TickClock = TickClock::with_rate(250);

pub(crate) fn programs() -> [Vec<Instruction<MapId>>; 2] {
    IpFamily::BOTH.map(|family| program(family, FEATURES))
}

pub(crate) fn planner() -> EbpfPlanner {
    EbpfPlanner::new(Mode::Enforce, [0; 16])
}

/// The maps of a program.
pub(crate) fn maps(program: &Program) -> Maps {
    let mut planner = planner();
    planner.plan(program, &Delta::from(program));
    Maps::from_tables(planner.tables())
}

pub(crate) fn run(
    programs: &[Vec<Instruction<MapId>>; 2],
    maps: &mut Maps,
    packet: &Packet,
    time: u64,
) -> Verdict {
    let code = &programs[usize::from(packet.bytes[0] >> 4 == 6)];
    to_verdict(Run::new(code, maps, time).verdict(packet))
}

fn to_verdict(number: u64) -> Verdict {
    if number == NF_ACCEPT as u64 { Verdict::Allow } else { Verdict::Deny }
}

/// The hook that a packet passes. `None` if a pod sends to itself, or a node to its pod.
fn hook(program: &Program, flow: &Flow) -> Option<HookPoint> {
    let is_judged = Direction::BOTH.into_iter().all(|direction| {
        let (here, _) = flow.ends(direction);
        program.owner(here).is_none() || program.judged(flow, direction).is_some()
    });
    let from_pod = program.owner(flow.from).filter(|_| program.owner(flow.to).is_none());
    let to_node = from_pod.is_some_and(|(_, pod)| program.is_own_node(pod, flow.to));
    is_judged.then_some(if to_node { HookPoint::Input } else { HookPoint::Forward })
}

fn locality() -> impl Strategy<Value = Locality> {
    prop_oneof![Just(Locality::Everywhere), Just(Locality::Node("n1".into()))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn the_program_agrees_with_the_oracle(
        world in weir_testkit::world(),
        flows in vec(weir_testkit::flow(), 1..30),
    ) {
        let rules = compile(&world, Locality::Everywhere);
        let (programs, maps) = (programs(), maps(&rules));
        for flow in &flows {
            let Some(hook) = hook(&rules, flow) else { continue };
            let packet = opening(flow, hook);
            let met = run(&programs, &mut maps.clone(), &packet, 1 << 40);
            let paged = Packet { paged: u32::MAX, ..packet };
            prop_assert_eq!(met, run(&programs, &mut maps.clone(), &paged, 1 << 40), "{}", flow);
            prop_assert_eq!(met, rules.verdict(flow), "{} and the compiled rules", flow);
            prop_assert_eq!(met, weir_oracle::verdict(&world, flow), "{} and the oracle", flow);
        }
    }

    /// Each lookup of a packet can meet the maps before or after a change.
    #[test]
    fn a_packet_meets_old_or_new_rules(
        (before, after) in weir_testkit::before_and_after(),
        locality in locality(),
        flows in vec(weir_testkit::flow(), 1..20),
    ) {
        let programs = programs();
        let mut engine = Engine::new(locality);
        let (mut rules, mut planner) = (Program::default(), planner());
        rules.apply(engine.apply(&before));
        planner.plan(&rules, &Delta::from(&rules));
        for change in &after {
            let delta = engine.apply(std::slice::from_ref(change));
            let midway = Midway::new(&rules, &delta);
            let mut maps = Maps::from_tables(planner.tables());
            rules.apply(delta.clone());
            let plan = planner.plan(&rules, &delta);
            for group in plan.steps.split(|step| *step == MapStep::Wait) {
                let writes = group.iter().filter_map(|step| match step {
                    MapStep::Write(write) => Some(write.clone()),
                    MapStep::Replace(..) | MapStep::Wait => None,
                });
                let writes: Vec<Write> = writes.collect();
                for flow in flows.iter().filter(|flow| midway.is_forwarded(flow)) {
                    let Some(hook) = hook(&rules, flow) else { continue };
                    meets_old_or_new(&programs, &maps, &writes, &midway, flow, hook)?;
                }
                for write in &writes {
                    maps.write(write);
                    for flow in flows.iter().filter(|flow| midway.is_forwarded(flow)) {
                        let Some(hook) = hook(&rules, flow) else { continue };
                        let packet = opening(flow, hook);
            let met = run(&programs, &mut maps.clone(), &packet, 1 << 40);
            let paged = Packet { paged: u32::MAX, ..packet };
            prop_assert_eq!(met, run(&programs, &mut maps.clone(), &paged, 1 << 40), "{}", flow);
                        prop_assert!(midway.may_be(flow, met), "{} {} after {}", flow, met, write);
                    }
                }
            }
            for flow in &flows {
                let Some(hook) = hook(&rules, flow) else { continue };
                let packet = opening(flow, hook);
            let met = run(&programs, &mut maps.clone(), &packet, 1 << 40);
            let paged = Packet { paged: u32::MAX, ..packet };
            prop_assert_eq!(met, run(&programs, &mut maps.clone(), &paged, 1 << 40), "{}", flow);
                prop_assert_eq!(met, rules.verdict(flow), "{} after {:?}", flow, change);
            }
        }
    }

    /// A restarted agent takes the maps over, whatever changes led to them.
    #[test]
    fn a_restart_without_changes_writes_nothing(
        changes in weir_testkit::crowded(),
        batch in 1_usize..5,
    ) {
        let mut engine = Engine::new(Locality::Node("n1".into()));
        let (mut rules, mut first) = (Program::default(), planner());
        let mut former = FormerAddresses::default();
        for some in changes.chunks(batch) {
            let delta = engine.apply(some);
            rules.apply(delta.clone());
            former.record(&delta);
            first.plan(&rules, &delta);
        }
        let installed = Installed {
            tables: Some(first.tables().clone()),
            is_intact: true,
            capacity: 1 << 16,
        };
        let mut second = planner();
        // The ledger has them in its journal.
        second.set_former(former);
        let plan = second.replan(&rules, &installed);
        prop_assert!(plan.steps.is_empty(), "{}", plan);
        for delta in [Delta::default(), Delta::from(&rules)] {
            let plan = second.plan(&rules, &delta);
            prop_assert!(plan.steps.is_empty(), "{}", plan);
        }
        prop_assert_eq!(second.tables(), first.tables());
    }
}

/// Sends a packet for every moment at which a lookup can meet the writes.
fn meets_old_or_new(
    programs: &[Vec<Instruction<MapId>>; 2],
    maps: &Maps,
    writes: &[Write],
    midway: &Midway,
    flow: &Flow,
    hook: HookPoint,
) -> Result<(), TestCaseError> {
    let packet = opening(flow, hook);
    let code = &programs[usize::from(flow.from.is_ipv6())];
    for early in 0.. {
        let mut maps = maps.clone();
        let mut run = Run::new(code, &mut maps, 1 << 40).with_later(early, writes);
        let met = to_verdict(run.verdict(&packet));
        prop_assert!(midway.may_be(flow, met), "{} {} after {} lookups", flow, met, early);
        if early >= run.lookups {
            break;
        }
    }
    Ok(())
}

/// The rules of a world in the YAML of a policy test.
pub(crate) fn rules(text: &str) -> Program {
    let world: World = weir_trials::cluster::world(text);
    compile(&world, Locality::Node("n1".into()))
}
