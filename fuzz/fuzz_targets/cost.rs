//! The memory and the CPU time that a policy costs are proportional to its size, whatever its shape:
//! never to the product of its peers, exceptions, ports and rules.
#![no_main]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use libfuzzer_sys::fuzz_target;
use rustix::time::{ClockId, clock_gettime};
use weir_aci::{AciSettings, Files, GroupNames, Hpp};
use weir_engine::{Engine, Locality};
use weir_model::{Program, World};
use weir_testkit::HostileMixture;

/// What a step may cost: a part that does not depend on the policy, and one for each of its bytes.
struct Budget {
    /// The most memory in use at a time, in bytes.
    peak: (usize, usize),
    /// All memory that was ever allocated, in bytes: a count of the work that does not depend on the
    /// machine.
    total: (usize, usize),
    /// The CPU time, in microseconds. The instrumented code is slow.
    time: (usize, usize),
}

const READ: Budget = Budget { peak: (1 << 20, 60), total: (1 << 20, 300), time: (2_000_000, 100) };
const COMPILE: Budget = Budget { peak: (1 << 20, 60), total: (2 << 20, 300), time: (2_000_000, 100) };
/// A file lists each network with each port, up to a number that does not depend on the policy.
const FILES: Budget = Budget { peak: (128 << 20, 150), total: (1 << 30, 600), time: (8_000_000, 200) };
const RENDER: Budget = Budget { peak: (2 << 20, 150), total: (8 << 20, 600), time: (2_000_000, 200) };

fuzz_target!(|bytes: &[u8]| {
    let mixture = HostileMixture::from_bytes(bytes);
    let text = mixture.manifests();
    let size = text.len();
    let world: World = check("read", size, &READ, &mixture, || {
        let mut reader = weir_api::ManifestReader::new();
        reader.read_file("hostile".into(), text.as_bytes());
        reader.finish().objects.into_iter().collect()
    });
    let program = check("compile", size, &COMPILE, &mixture, || {
        let mut program = Program::default();
        program.apply(Engine::new(Locality::Node("here".into())).apply(world.changes()));
        program
    });
    check("nftables", size, &RENDER, &mixture, || weir_nft::render(&program));
    check("iptables", size, &RENDER, &mixture, || weir_iptables::render(&program));
    check("hcn", size, &RENDER, &mixture, || {
        let (pod, endpoint) = program.endpoints.first_key_value()?;
        Some(weir_hcn::render(pod, endpoint, &program, &BTreeSet::new()))
    });
    check("aci", size, &FILES, &mixture, || aci_files(&world));
});

/// Renders the files of the node that opflex-agent reads, and returns their number.
fn aci_files(world: &World) -> usize {
    let settings = AciSettings { prefix: "demo".into() };
    let mut hpp = Hpp::new(settings.clone());
    hpp.apply(&world.changes().collect::<Vec<_>>());
    let mut files = Files::new(&settings, "kube-system", "here", GroupNames::Policy);
    world.pods.values().for_each(|pod| files.put_pod(pod));
    hpp.objects().values().for_each(|object| files.put(object.clone()));
    files.drain_dirty().count()
}

/// Runs a step, and fails if it exceeds its budget.
fn check<T>(
    step: &str,
    size: usize,
    budget: &Budget,
    mixture: &HostileMixture,
    run: impl FnOnce() -> T,
) -> T {
    let (live, all) = (LIVE.load(Relaxed), TOTAL.load(Relaxed));
    PEAK.store(live, Relaxed);
    let start = cpu_time();
    let result = run();
    let time = (cpu_time() - start).as_micros() as usize;
    let (peak, total) = (PEAK.load(Relaxed) - live, TOTAL.load(Relaxed) - all);
    let costs =
        [("peak", peak, budget.peak), ("total", total, budget.total), ("time", time, budget.time)];
    for (what, cost, (fixed, per_byte)) in costs {
        let most = fixed + per_byte * size;
        assert!(cost <= most, "{step}, {what}: {cost}, at most {most} for {size} bytes: {mixture}");
    }
    result
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The memory in use, the most since `check` began, and the sum of all allocations, in bytes.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// The allocator of the system, with counters.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: usize) {
    TOTAL.fetch_add(bytes, Relaxed);
    PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: the system's allocator does everything; the counters are no part of the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.realloc(memory, layout, size) }
    }
}
