//! The guard of source addresses and tunnels, in the loop.

use tokio::sync::oneshot;
use weir_cni_protocol::{Attachment, Reply, Request, Waiting};
use weir_datapath::{Guard, Tunnel};
use weir_model::Name;

use super::*;
use crate::{agent::Plugins, cni::PluginRequest};

const TWO_PODS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, uid: u}, spec: {nodeName: n1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, uid: v}, spec: {nodeName: n1}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}}
";
const ONE_POD: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, uid: v}, spec: {nodeName: n1}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}}
";

struct Guarded {
    agent: Agent<Memory>,
    memory: Memory,
    now: Instant,
}

impl Guarded {
    /// An agent on a machine whose links are `veth-c`, `veth-d` and a bridge.
    fn new(change: impl FnOnce(&mut AgentOptions)) -> Self {
        let memory = Memory::default();
        memory.machine(|machine| {
            machine.links.pairs = [("veth-c".into(), 3), ("veth-d".into(), 4)].into();
        });
        Guarded::start(memory, change)
    }

    fn start(memory: Memory, change: impl FnOnce(&mut AgentOptions)) -> Self {
        let mut options = options(Path::new("/nonexistent"));
        change(&mut options);
        let report = Arc::new(AgentReport::new(&options));
        let (reporter, now) = (Reporter::new(&options, report, None), Instant::now());
        let agent = Agent::new(&options, memory.clone(), reporter, now);
        let agent = agent.with_plugins(Plugins::new("n1".into(), None));
        Guarded { agent, memory, now }
    }

    fn restarted(&self, change: impl FnOnce(&mut AgentOptions)) -> Self {
        Guarded::start(self.memory.clone(), change)
    }

    fn read(mut self, text: &str) -> Self {
        let mut reader = weir_api::ManifestReader::new();
        reader.read_file("test".into(), text.as_bytes());
        let manifests = reader.finish();
        let objects = manifests.objects.into_iter().map(|mut object| {
            if let Object::Pod(pod) = &mut object {
                pod.addresses.clear();
            }
            Change::Put(object)
        });
        let event =
            SourceEvent { changes: objects.collect(), in_sync: true, ..SourceEvent::default() };
        self.agent.handle(AgentEvent::Source(event, Instant::now()));
        self.turn();
        self
    }

    fn turn(&mut self) {
        // The first turn can find changes that the second one compiles.
        for _ in 0..2 {
            self.now += Duration::from_secs(60);
            self.agent.run_due(self.now);
        }
    }

    fn request(&mut self, request: Request) -> oneshot::Receiver<Reply> {
        let (reply, received) = oneshot::channel();
        let since = self.now + Duration::from_secs(3600);
        self.agent.handle(AgentEvent::Plugin(PluginRequest { request, since, reply }));
        self.turn();
        received
    }

    fn add(&mut self, name: &str, uid: &str, container: &str, last: u8) {
        let attachment = Attachment {
            namespace: "shop".into(),
            name: name.into(),
            uid: Some(uid.into()),
            container: container.into(),
            interface: "eth0".into(),
            network: "net".into(),
            addresses: vec![IpAddr::from([10, 0, 0, last])],
            links: vec!["cni0".into(), format!("veth-{container}")],
        };
        let mut reply = self.request(Request::Add(Waiting::new(attachment)));
        assert_eq!(reply.try_recv().unwrap(), Reply { ok: true, reason: None });
    }

    fn guard(&self) -> Guard {
        self.memory.machine(|machine| machine.guard.clone())
    }

    /// The links, each with the last number of its address.
    fn links(&self) -> Vec<(Name, String)> {
        let links = self.guard().links.into_iter();
        links.map(|(link, own)| (link, own.iter().map(ToString::to_string).collect())).collect()
    }
}

fn link(container: &str, last: u8) -> (Name, String) {
    (format!("veth-{container}").into(), format!("10.0.0.{last}"))
}

#[test]
fn a_pod_is_bound_before_the_plugin_gets_its_reply_and_until_it_is_gone() {
    let mut bench = Guarded::new(|_| ()).read(TWO_PODS);
    assert_eq!(bench.links(), []);
    bench.add("web", "u", "c", 7);
    assert_eq!(bench.links(), [link("c", 7)], "a bridge is not bound");
    bench.add("api", "v", "d", 8);
    assert_eq!(bench.links(), [link("c", 7), link("d", 8)]);
    bench.memory.machine(|machine| _ = machine.links.pairs.remove("veth-d"));
    bench.turn();
    assert_eq!(bench.links(), [link("c", 7)], "the link is gone");
    let gone = Attachment {
        namespace: "shop".into(),
        name: "web".into(),
        uid: None,
        container: "c".into(),
        interface: "eth0".into(),
        network: "net".into(),
        addresses: Vec::new(),
        links: Vec::new(),
    };
    bench.request(Request::Del(gone));
    assert_eq!(bench.links(), []);
}

#[test]
fn bindings_survive_a_restart_unless_their_pods_are_gone() {
    let mut bench = Guarded::new(|_| ()).read(TWO_PODS);
    bench.add("web", "u", "c", 7);
    bench.add("api", "v", "d", 8);
    let before = bench.guard();
    let next = bench.restarted(|_| ());
    assert_eq!(next.guard(), before, "nothing is written before the source is complete");
    let next = next.read(TWO_PODS);
    assert_eq!(next.guard(), before);
    let own =
        next.memory.machine(|machine| machine.installed.owner([10, 0, 0, 7].into()).is_some());
    assert!(own, "the pod has the address that the plugin reported");
    let next = next.restarted(|_| ()).read(ONE_POD);
    assert_eq!(next.links(), [link("d", 8)]);
    assert_eq!(next.guard().records.len(), 1);
}

#[test]
fn with_spoofing_allowed_only_the_records_are_kept() {
    let mut bench = Guarded::new(|options| options.spoofing = Verdict::Allow).read(TWO_PODS);
    bench.add("web", "u", "c", 7);
    assert_eq!((bench.links(), bench.guard().records.len()), (vec![], 1));
    let next = bench.restarted(|_| ()).read(TWO_PODS);
    assert_eq!(next.links(), [link("c", 7)]);
}

#[test]
fn a_changed_guard_is_restored() {
    let mut bench = Guarded::new(|_| ()).read(TWO_PODS);
    bench.add("web", "u", "c", 7);
    let before = bench.guard();
    bench.memory.machine(|machine| machine.guard = Guard::default());
    bench.turn();
    assert_eq!(bench.guard(), before);
}

#[test]
fn a_pod_waits_while_the_guard_cannot_be_read() {
    let bench = Guarded::new(|_| ());
    bench.memory.machine(|machine| machine.unavailable = true);
    let mut next = bench.restarted(|_| ()).read(TWO_PODS);
    next.memory.machine(|machine| machine.unavailable = false);
    next.turn();
    next.add("web", "u", "c", 7);
    assert_eq!(next.links(), [link("c", 7)]);
}

#[test]
fn pods_may_not_send_to_the_tunnels_that_the_node_has() {
    let vxlan = Tunnel::Udp(8472);
    let mut bench = Guarded::new(|_| ()).read(TWO_PODS);
    bench.add("web", "u", "c", 7);
    assert_eq!(bench.guard().tunnels, [].into());
    bench.memory.machine(|machine| _ = machine.links.tunnels.insert(vxlan));
    bench.turn();
    assert_eq!(bench.guard().tunnels, [vxlan].into());
    assert_eq!(bench.guard().pods, [IpAddr::from([10, 0, 0, 7])].into());
    bench.add("api", "v", "d", 8);
    assert_eq!(bench.guard().pods.len(), 2);
    let allowed = bench.restarted(|options| options.encapsulation = Verdict::Allow);
    assert_eq!(allowed.read(TWO_PODS).guard().tunnels, [].into());
}

#[test]
fn a_forged_packet_is_reported_with_its_sender_and_the_reason() {
    let mut bench = Guarded::new(|_| ()).read(TWO_PODS);
    bench.add("web", "u", "c", 7);
    let forged = Dropped { cause: DropCause::SpoofedSource, link: Some(3), ..packet() };
    let sender = bench.agent.sender_of(&forged);
    assert_eq!(sender, Some(PodId::new("shop", "web")));
    assert_eq!(bench.agent.sender_of(&Dropped { link: Some(4), ..forged.clone() }), None);
    let page = serde_json::to_value(crate::drops::Drop::new(
        &forged,
        sender,
        &weir_engine::Engine::new(weir_engine::Locality::Node("n1".into())),
        &Program::default(),
    ));
    let page = page.unwrap();
    assert_eq!((&page["fromPod"], &page["direction"]), (&json!("shop/web"), &json!("egress")));
    assert_eq!(page["policies"], json!(["spoofed source"]));
}
