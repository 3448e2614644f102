//! The fast lane: the shared trials once more, and trials of its own.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    thread,
    time::Duration,
};

use libtest_mimic::Trial;
use weir_datapath::{ApplyError, Datapath, Guard, Guarded, Mode};
use weir_ebpf::{Dump, Ebpf};
use weir_engine::{Locality, compile};
use weir_lab::{Lab, Layout, Wiring};
use weir_model::{Program, Protocol, Verdict, World};
use weir_nft::Nft;
use weir_trials::{
    Backend, ReportReader,
    cluster::{ARRIVAL_TIMEOUT, DROP_TIMEOUT, PODS, address, flow, policy, world},
    node::{self, Driver},
    trial,
};

use crate::backend::EbpfPrograms;

/// The eBPF backend with the fast lane, for the shared trials.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastLane;

impl Backend for FastLane {
    type Datapath = Guarded<Ebpf, Nft>;

    fn open(self, mode: Mode) -> Result<Self::Datapath, ApplyError> {
        Ok(Guarded { policies: Ebpf::open(mode)?.with_fast_lane()?, guard: Nft::open(mode)? })
    }

    fn disturbances(self) -> Vec<String> {
        EbpfPrograms.disturbances()
    }

    fn guard_disturbances(self) -> Vec<String> {
        EbpfPrograms.guard_disturbances()
    }

    fn counts_terminated(self) -> bool {
        false
    }

    fn reports(self) -> Box<dyn ReportReader> {
        EbpfPrograms.reports()
    }
}

/// Trials about parts of the node that packets of the lane skip: other rules in FORWARD, and the
/// helpers of conntrack.
const SKIPPED: [&str; 4] = [
    "invalid_packets_are_dropped_by_kube_proxy",
    "services_without_endpoints_are_rejected_by_kube_proxy",
    "source_ranges_are_enforced_by_kube_proxy",
    "an_expected_connection_ends_with_its_master",
];

pub(crate) fn trials() -> Vec<Trial> {
    let all = weir_trials::trials("fast_lane", FastLane).into_iter();
    let is_skipped = |trial: &Trial| SKIPPED.iter().any(|name| trial.name().ends_with(name));
    let own = vec![
        trial("lane::packets_between_pods_skip_the_node", skips_the_node),
        trial("lane::pods_on_a_bridge_are_not_in_the_lane", on_a_bridge),
        trial("lane::it_outlives_the_agent_and_follows_its_options", outlives_the_agent),
        trial("lane::it_follows_pods_and_links", follows_links),
        trial("lane::it_respects_the_guard", respects_guard),
        trial("lane::other_programs_cannot_break_it", is_repaired),
        trial("lane::its_programs_use_its_maps", uses_own_maps),
        trial("lane::it_ends_when_nftables_translates_services", || {
            translated(&format!(
                "nft add table ip nat; nft add chain ip nat pre {{type nat hook prerouting priority -100;}}; nft add rule ip nat pre ip daddr 10.96.0.1 tcp dport 80 dnat to {DB}:8080"
            ));
        }),
        trial("lane::it_ends_when_iptables_translates_services", || {
            translated(&format!("iptables-nft {SERVICE}"));
        }),
        trial("lane::it_ends_when_legacy_iptables_translates_services", || {
            translated(&format!("iptables-legacy {SERVICE}"));
        }),
    ];
    all.filter(|trial| !is_skipped(trial)).chain(own).collect()
}

/// A rule for a Service.
const SERVICE: &str =
    "-t nat -A PREROUTING -d 10.96.0.1 -p tcp --dport 80 -j DNAT --to-destination 10.0.0.3:8080";

const API: &str = "10.0.0.1";
const WEB: &str = "10.0.0.2";
const DB: &str = "10.0.0.3";
const FAR: &str = "10.0.0.4";

/// `db` allows `api` only.
const ONLY_API: &str = "podSelector: {matchLabels: {app: db}}, ingress: [
    {from: [{podSelector: {matchLabels: {app: api}}}]}]";

fn shop() -> World {
    world(&format!("{PODS}policies:\n{}", policy("db", ONLY_API)))
}

fn rules(world: &World) -> Program {
    compile(world, Locality::Node("n1".into()))
}

/// A node with the lane.
struct LaneTrial {
    lab: Lab,
    rules: Program,
    driver: Driver<Guarded<Ebpf, Nft>>,
}

impl LaneTrial {
    fn new(wiring: Wiring) -> Self {
        let layout = Layout { wiring, ..Layout::from_world(&shop(), &[]) };
        let (lab, rules) = (Lab::build(&layout).unwrap(), rules(&shop()));
        let mut driver = node::open(FastLane, &lab, "n1", Mode::Enforce);
        node::sync(&mut driver, &rules);
        LaneTrial { lab, rules, driver }
    }

    /// The number of packets that the node forwarded, at a rule of nftables.
    fn count_forwarded(&self) -> u64 {
        let text = node::does(&self.lab, "nft list counter inet count forwarded");
        let packets = text.split("packets ").nth(1).unwrap();
        packets.split(' ').next().unwrap().parse().unwrap()
    }

    /// The programs at links.
    fn links(&self) -> Vec<String> {
        let mut links = self.names();
        links.retain(|name| name.starts_with("link"));
        links.sort();
        links
    }

    fn start_counting(&self) {
        let rules = "table inet count { counter forwarded { }; chain forward { type filter hook forward priority 0; counter name forwarded; }; }";
        node::run(&self.lab, "nft", &["-f", "-"], rules);
    }

    #[track_caller]
    fn check_verdicts(&self, what: &str) {
        let flows = [API, WEB, FAR].map(|from| flow(from, DB, Protocol::Tcp, 80));
        let met = self.lab.probe(&flows, DROP_TIMEOUT).unwrap();
        assert_eq!(met, [Verdict::Allow, Verdict::Deny, Verdict::Deny], "{what}");
    }

    /// Why packets do not take the lane.
    fn warnings(&self) -> Vec<String> {
        let Driver { datapath, planner } = &self.driver;
        datapath.diagnostics().unwrap().warnings(planner)
    }

    /// The paths of the lane.
    fn paths(&self) -> Vec<PathBuf> {
        let inode = || fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        let inode = self.lab.on_node("n1", inode).unwrap();
        let list = |folder: PathBuf| {
            fs::read_dir(folder).into_iter().flatten().map(|one| one.unwrap().path())
        };
        let is_ours = |path: &PathBuf| path.to_string_lossy().contains(&format!("weir-{inode}-"));
        let root = list("/sys/fs/bpf".into()).find(is_ours);
        root.into_iter().flat_map(|root| list(root.join("lane"))).collect()
    }

    /// The names of the lane.
    fn names(&self) -> Vec<String> {
        let paths = self.paths().into_iter();
        paths.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    }

    /// Whether an allowed packet skips the node.
    fn is_in_lane(&self) -> bool {
        let before = self.count_forwarded();
        let flows = [flow(API, DB, Protocol::Udp, 80)];
        assert_eq!(self.lab.probe(&flows, ARRIVAL_TIMEOUT).unwrap(), [Verdict::Allow]);
        self.count_forwarded() == before
    }
}

/// Packets between pods of the node do not pass its forward hook; others do.
fn skips_the_node() {
    let trial = LaneTrial::new(Wiring::Routed);
    assert_eq!(trial.warnings(), [""; 0]);
    trial.start_counting();
    trial.check_verdicts("in the lane");
    let before = trial.count_forwarded();
    for to in [WEB, DB] {
        let flows = [Protocol::Tcp, Protocol::Udp].map(|protocol| flow(API, to, protocol, 80));
        assert_eq!(trial.lab.probe(&flows, ARRIVAL_TIMEOUT).unwrap(), [Verdict::Allow; 2]);
    }
    assert_eq!(trial.count_forwarded(), before, "none of them was forwarded");
    let far = [flow(API, FAR, Protocol::Udp, 80)];
    assert_eq!(trial.lab.probe(&far, ARRIVAL_TIMEOUT).unwrap(), [Verdict::Allow]);
    assert!(trial.count_forwarded() > before);
}

/// Pods on a bridge have no link of their own for their address.
fn on_a_bridge() {
    let mut trial = LaneTrial::new(Wiring::Bridged);
    assert!(!trial.driver.drifted().unwrap());
    let [warning] = &trial.warnings()[..] else { panic!("{:?}", trial.warnings()) };
    assert!(warning.contains("no pod of this node has a routed veth link"), "{warning}");
    assert_eq!(trial.links(), [""; 0]);
}

/// The lane stays while no agent runs. The next agent takes it over or removes it.
fn outlives_the_agent() {
    let LaneTrial { lab, rules, driver } = LaneTrial::new(Wiring::Routed);
    drop(driver);
    let driver = node::open(FastLane, &lab, "n1", Mode::Enforce);
    let mut trial = LaneTrial { lab, rules, driver };
    let before = trial.links();
    assert_eq!(before.len(), 6, "{before:?}");
    trial.start_counting();
    trial.check_verdicts("while no agent runs");
    let flows = [flow(API, DB, Protocol::Tcp, 80)];
    let forwarded = trial.count_forwarded();
    assert_eq!(trial.lab.probe(&flows, ARRIVAL_TIMEOUT).unwrap(), [Verdict::Allow]);
    assert_eq!(trial.count_forwarded(), forwarded, "it is still in the lane");
    node::sync(&mut trial.driver, &trial.rules);
    assert!(!trial.driver.drifted().unwrap());
    assert_eq!((trial.links(), trial.warnings()), (before, Vec::new()));

    let mut without = node::open(EbpfPrograms, &trial.lab, "n1", Mode::Enforce);
    node::sync(&mut without, &trial.rules);
    assert!(!without.drifted().unwrap());
    assert_eq!(trial.names(), [""; 0], "an agent without the option");
    trial.check_verdicts("on the normal way");
    let mut again = node::open(FastLane, &trial.lab, "n1", Mode::Enforce);
    node::sync(&mut again, &trial.rules);
    assert!(!again.drifted().unwrap());
    assert_eq!(trial.links().len(), 6);
    again.remove().unwrap();
    assert_eq!(trial.names(), [""; 0]);
    let all = ["10.0.0.1", "10.0.0.2"].map(|from| flow(from, DB, Protocol::Tcp, 80));
    assert_eq!(trial.lab.probe(&all, ARRIVAL_TIMEOUT).unwrap(), [Verdict::Allow; 2]);
}

/// Links of new pods join the lane, and those of gone pods leave it.
fn follows_links() {
    let mut trial = LaneTrial::new(Wiring::Routed);
    let all = trial.rules.clone();
    let without_web = world(&format!(
        "{}policies:\n{}",
        PODS.lines().filter(|line| !line.contains("name: web")).collect::<Vec<_>>().join("\n")
            + "\n",
        policy("db", ONLY_API)
    ));
    trial.rules = rules(&without_web);
    node::sync(&mut trial.driver, &trial.rules);
    assert!(!trial.driver.drifted().unwrap());
    assert_eq!(trial.links().len(), 4);
    node::sync(&mut trial.driver, &all);
    assert!(!trial.driver.drifted().unwrap());
    assert_eq!(trial.links().len(), 6);
    trial.check_verdicts("after a pod joined");
    // A route that leads elsewhere, and then a link that is gone.
    let link = trial.lab.link_to(address(API)).unwrap();
    let other = trial.lab.link_to(address(WEB)).unwrap();
    node::does(&trial.lab, &format!("ip route replace {API}/32 dev {other}"));
    assert!(!trial.driver.drifted().unwrap());
    assert_eq!(trial.links().len(), 6, "an IPv6 address still has the link");
    node::does(&trial.lab, &format!("ip route replace {API}/32 dev {link}"));
    node::does(&trial.lab, &format!("ip link delete {link}"));
    assert!(!trial.driver.drifted().unwrap());
    assert_eq!(trial.links().len(), 4);
    assert_eq!(trial.warnings(), [""; 0]);
}

/// Another program detaches a program, and changes the maps.
fn is_repaired() {
    let mut trial = LaneTrial::new(Wiring::Routed);
    let name = trial.links().remove(0);
    for disturbance in [format!("detach ../lane/{name}"), "delete ../lane/lane4".to_owned()] {
        node::does(&trial.lab, &crate::disturb::command(&disturbance));
        trial.check_verdicts(&disturbance);
        assert!(!trial.driver.drifted().unwrap());
        trial.start_counting();
        let forwarded = trial.count_forwarded();
        let flows = [API, WEB].map(|from| flow(from, DB, Protocol::Udp, 80));
        assert_eq!(
            trial.lab.probe(&flows, DROP_TIMEOUT).unwrap(),
            [Verdict::Allow, Verdict::Deny],
            "{disturbance}"
        );
        assert_eq!(trial.count_forwarded(), forwarded, "{disturbance}");
    }
}

/// Programs of an earlier lane are not used again, because they have its maps.
fn uses_own_maps() {
    let mut trial = LaneTrial::new(Wiring::Routed);
    trial.start_counting();
    let check = |trial: &mut LaneTrial, what: &str| {
        assert!(!trial.driver.drifted().unwrap());
        assert_eq!((trial.links().len(), trial.warnings()), (6, Vec::new()), "{what}");
        assert!(trial.is_in_lane(), "{what}");
        // Without addresses in the named map, the lane is empty.
        for _ in [API, WEB, DB] {
            node::does(&trial.lab, &crate::disturb::command("delete ../lane/lane4"));
        }
        assert!(!trial.is_in_lane(), "{what}: the programs use the named map");
        trial.check_verdicts(what);
        assert!(!trial.driver.drifted().unwrap());
        assert!(trial.is_in_lane(), "{what}: the addresses are back");
    };
    check(&mut trial, "the first lane");
    let mut without = node::open(EbpfPrograms, &trial.lab, "n1", Mode::Enforce);
    node::sync(&mut without, &trial.rules);
    assert!(!without.drifted().unwrap());
    assert_eq!(trial.names(), [""; 0]);
    check(&mut trial, "the same agent after a removal");
    node::sync(&mut without, &trial.rules);
    assert!(!without.drifted().unwrap());
    trial.driver = node::open(FastLane, &trial.lab, "n1", Mode::Enforce);
    node::sync(&mut trial.driver, &trial.rules);
    check(&mut trial, "another agent after a removal");
    let map = trial.paths().into_iter().find(|path| path.ends_with("lane/lane4")).unwrap();
    fs::remove_file(&map).unwrap();
    check(&mut trial, "the same agent after the loss of a map");
    fs::remove_file(&map).unwrap();
    trial.driver = node::open(FastLane, &trial.lab, "n1", Mode::Enforce);
    node::sync(&mut trial.driver, &trial.rules);
    check(&mut trial, "another agent after the loss of a map");
}

/// Whether a pod can connect to a Service, whose backend is `db`.
fn reaches_service(lab: &Lab) -> bool {
    let backend: SocketAddr = format!("{DB}:8080").parse().unwrap();
    let listener = lab.at(backend.ip(), || TcpListener::bind(backend).unwrap()).unwrap();
    let service: SocketAddr = "10.96.0.1:80".parse().unwrap();
    let connect = || TcpStream::connect_timeout(&service, Duration::from_secs(2)).is_ok();
    let connected = lab.at(address(API), connect).unwrap();
    drop(listener);
    connected
}

/// Rules that translate addresses of Services end the lane, also of an agent that starts later.
fn translated(commands: &str) {
    let mut trial = LaneTrial::new(Wiring::Routed);
    assert_eq!(trial.warnings(), [""; 0]);
    // Rules of iptables-legacy are listed from time to time only.
    commands.split("; ").for_each(|command| _ = node::does(&trial.lab, command));
    for _ in 0..200 {
        assert!(!trial.driver.drifted().unwrap());
        if !trial.warnings().is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    let expected = |warnings: &[String]| matches!(warnings, [one] if one.contains("the fast lane is off") && one.contains("Services"));
    assert!(expected(&trial.warnings()), "{:?}", trial.warnings());
    assert_eq!(trial.names(), [""; 0]);
    trial.check_verdicts("after the end of the lane");
    assert!(reaches_service(&trial.lab));
    let mut later = node::open(FastLane, &trial.lab, "n1", Mode::Enforce);
    node::sync(&mut later, &trial.rules);
    assert!(!later.drifted().unwrap());
    assert!(expected(&later.datapath.diagnostics().unwrap().warnings(&later.planner)));
    assert_eq!(trial.names(), [""; 0]);
}

/// An address that the guard does not allow at a link is not in the lane, even if it is routed there.
fn respects_guard() {
    let mut trial = LaneTrial::new(Wiring::Routed);
    let link = trial.lab.link_to(address(API)).unwrap();
    node::does(&trial.lab, &format!("ip route replace {WEB}/32 dev {link}"));
    let has_web = |trial: &LaneTrial| {
        let dump = trial.lab.on_node("n1", Dump::read).unwrap().unwrap().unwrap();
        let lane = dump.lane.expect("there is a lane");
        assert!(lane.addresses.iter().any(|(one, _)| *one == address(API)));
        lane.addresses.iter().any(|(one, _)| *one == address(WEB))
    };
    assert!(!trial.driver.drifted().unwrap());
    assert!(has_web(&trial), "without a guard, the route decides");
    let own = [address(API), address("fd00::1")].into();
    let guard = Guard { links: [(link.into(), own)].into(), ..Guard::default() };
    trial.driver.datapath.guard().unwrap().enforce(&guard).unwrap();
    assert!(!has_web(&trial));
    trial.driver.datapath.guard().unwrap().enforce(&Guard::default()).unwrap();
    assert!(has_web(&trial));
}
