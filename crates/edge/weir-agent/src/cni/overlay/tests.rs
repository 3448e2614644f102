use weir_model::{Labels, World};

use super::*;

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn pod(name: &str, uid: &str, addresses: &[u8]) -> Pod {
    Pod {
        id: PodId::new("shop", name),
        labels: Labels::default(),
        addresses: addresses.iter().map(|last| address(*last)).collect(),
        node: Some("n1".into()),
        ports: Vec::new(),
        host_network: false,
        finished: false,
        born: 5,
        uid: (!uid.is_empty()).then(|| uid.into()),
        location: None,
    }
}

fn attachment(name: &str, uid: &str, container: &str, addresses: &[u8]) -> Attachment {
    Attachment {
        namespace: "shop".into(),
        name: name.into(),
        uid: (!uid.is_empty()).then(|| uid.into()),
        container: container.into(),
        interface: "eth0".into(),
        network: "net".into(),
        addresses: addresses.iter().map(|last| address(*last)).collect(),
    }
}

/// An overlay, and the world as the engine hears of it.
struct Bench {
    overlay: Overlay,
    world: World,
}

impl Bench {
    fn new() -> Self {
        Bench { overlay: Overlay::new("n1".into()), world: World::default() }
    }

    fn put(&mut self, pod: Pod) -> &mut Self {
        let change = self.overlay.lay(Change::Put(Object::Pod(pod)));
        self.world.apply(change);
        self
    }

    fn remove(&mut self, name: &str) -> &mut Self {
        let change = self.overlay.lay(Change::Remove(Key::Pod(PodId::new("shop", name))));
        self.world.apply(change);
        self
    }

    fn tell(&mut self, attachment: Attachment) -> &mut Self {
        self.overlay.tell(attachment).into_iter().for_each(|change| self.world.apply(change));
        self
    }

    fn read(&mut self, pod: Pod) -> &mut Self {
        self.overlay.read(pod).into_iter().for_each(|change| self.world.apply(change));
        self
    }

    fn forget(&mut self, container: &str) -> &mut Self {
        let change = self.overlay.forget(container, "eth0");
        change.into_iter().for_each(|change| self.world.apply(change));
        self
    }

    /// The last numbers of a pod's addresses.
    #[track_caller]
    fn has(&mut self, name: &str, expected: &[u8]) -> &mut Self {
        let addresses: Vec<IpAddr> = expected.iter().map(|last| address(*last)).collect();
        let found = self.world.pods.get(&PodId::new("shop", name)).map(|pod| &pod.addresses[..]);
        assert_eq!(found, Some(&addresses[..]));
        self
    }

    #[track_caller]
    fn lacks(&mut self, name: &str) -> &mut Self {
        assert!(!self.world.pods.contains_key(&PodId::new("shop", name)));
        self
    }

    /// Whose an address is, as the engine decides it.
    fn owner(&self, last: u8) -> String {
        let pods = self.world.pods.values().filter(|pod| pod.addresses.contains(&address(last)));
        pods.max_by_key(|pod| (pod.born, &pod.id)).unwrap().id.name.to_string()
    }
}

#[test]
fn the_plugins_word_counts_until_the_source_has_news() {
    let mut bench = Bench::new();
    bench.put(pod("web", "u", &[])).has("web", &[]);
    bench.tell(attachment("web", "u", "c1", &[1])).has("web", &[1]);
    bench.put(pod("web", "u", &[])).has("web", &[1]);
    bench.put(pod("web", "u", &[1])).has("web", &[1]);
    bench.put(pod("web", "u", &[9])).has("web", &[9]);
    bench.put(pod("web", "u", &[])).has("web", &[]);
}

#[test]
fn a_pod_may_be_told_before_the_source_has_it() {
    let mut bench = Bench::new();
    bench.tell(attachment("web", "u", "c1", &[1])).lacks("web");
    assert!(bench.overlay.obstacle(&attachment("web", "u", "c1", &[1])).is_some());
    bench.put(pod("web", "u", &[])).has("web", &[1]);
    assert!(bench.overlay.obstacle(&attachment("web", "u", "c1", &[1])).is_none());
}

#[test]
fn an_older_pod_of_the_same_name_is_not_the_one() {
    let mut bench = Bench::new();
    bench.put(pod("db-0", "old", &[1]));
    bench.tell(attachment("db-0", "new", "c2", &[2])).has("db-0", &[1]);
    let obstacle = bench.overlay.obstacle(&attachment("db-0", "new", "c2", &[2]));
    assert_eq!(obstacle, Some("the source still has an older pod of this name"));
    // The old one may go and come back once more, as a source does that is behind.
    bench.remove("db-0").lacks("db-0").put(pod("db-0", "old", &[1])).has("db-0", &[1]);
    bench.remove("db-0").lacks("db-0");
    bench.put(pod("db-0", "new", &[])).has("db-0", &[2]);
    // Seen in one step, the next one ends what was told about this one.
    bench.put(pod("db-0", "newer", &[])).has("db-0", &[]);
    bench.put(pod("db-0", "new", &[])).has("db-0", &[]);
}

#[test]
fn a_new_sandbox_of_the_same_pod_has_the_newer_address() {
    let mut bench = Bench::new();
    bench.put(pod("web", "u", &[])).tell(attachment("web", "u", "c1", &[1]));
    // The source has heard neither of the first address nor of the second.
    bench.tell(attachment("web", "u", "c2", &[2])).has("web", &[2]);
    bench.put(pod("web", "u", &[1])).has("web", &[2]);
    bench.put(pod("web", "u", &[2])).has("web", &[2]);
    // The first sandbox is removed for good only now.
    bench.forget("c1").has("web", &[2]);
    bench.put(pod("web", "u", &[2])).forget("c2").has("web", &[2]);
}

#[test]
fn what_was_told_ends_with_the_attachment_and_with_the_pod() {
    let mut bench = Bench::new();
    bench.put(pod("web", "u", &[])).tell(attachment("web", "u", "c1", &[1])).has("web", &[1]);
    bench.forget("c1").has("web", &[]).forget("c1").has("web", &[]);
    bench.tell(attachment("web", "u", "c1", &[1])).remove("web").lacks("web");
    bench.put(pod("web", "u", &[])).has("web", &[]);
    // Who has finished has no address, whatever was told.
    bench.tell(attachment("web", "u", "c1", &[1]));
    bench.put(Pod { finished: true, ..pod("web", "u", &[1]) });
    assert!(bench.world.pods.values().all(|pod| pod.own_addresses().is_empty()));
}

#[test]
fn an_address_that_an_old_pod_still_claims_belongs_to_the_one_told() {
    let mut bench = Bench::new();
    bench.put(Pod { born: 100, ..pod("young", "y", &[1]) });
    bench.put(Pod { node: Some("n2".into()), born: 100, ..pod("far", "f", &[1]) });
    bench.put(pod("web", "u", &[])).tell(attachment("web", "u", "c1", &[1]));
    assert_eq!(bench.owner(1), "web");
    bench.put(pod("web", "u", &[1]));
    assert_eq!(bench.owner(1), "web", "what the source confirms is still the plugin's word");
    bench.put(pod("api", "a", &[])).tell(attachment("api", "a", "c2", &[1]));
    assert_eq!(bench.owner(1), "api", "the last one told has it");
}

#[test]
fn a_pod_with_its_nodes_network_gets_no_address() {
    let mut bench = Bench::new();
    bench.put(Pod { host_network: true, ..pod("proxy", "u", &[9]) });
    bench.tell(attachment("proxy", "u", "c1", &[1])).has("proxy", &[9]);
    let obstacle = bench.overlay.obstacle(&attachment("proxy", "u", "c1", &[1]));
    assert_eq!(obstacle, Some("the source says that it has its node's network"));
}

#[test]
fn without_uids_names_must_do() {
    let mut bench = Bench::new();
    bench.put(pod("web", "", &[])).tell(attachment("web", "u", "c1", &[1])).has("web", &[1]);
    // It cannot be told whether this is the end of the one that was told, so its word is kept for whoever comes.
    bench.remove("web").lacks("web").put(pod("web", "", &[])).has("web", &[1]);
    bench.forget("c1").has("web", &[]);
}

#[test]
fn a_pod_that_was_read_stands_in_until_the_source_has_it() {
    let mut bench = Bench::new();
    bench.put(Pod { node: Some("n2".into()), ..pod("db-0", "old", &[7]) });
    bench.tell(attachment("db-0", "new", "c1", &[1])).has("db-0", &[7]);
    bench.read(pod("db-0", "old", &[])).has("db-0", &[7]);
    bench.read(pod("db-0", "new", &[])).has("db-0", &[1]);
    bench.remove("db-0").has("db-0", &[1]);
    bench.put(pod("db-0", "new", &[])).has("db-0", &[1]);
    bench.remove("db-0").lacks("db-0");
    bench.read(pod("db-0", "new", &[])).lacks("db-0");
}

#[test]
fn an_attachment_that_is_not_in_the_list_is_gone() {
    let mut bench = Bench::new();
    bench.put(pod("web", "u", &[])).tell(attachment("web", "u", "c1", &[1]));
    bench.put(pod("api", "a", &[])).tell(attachment("api", "a", "c2", &[2]));
    assert!(bench.overlay.keep("other", &BTreeSet::new()).is_empty());
    for change in bench.overlay.keep("net", &["c2".to_owned()].into()) {
        bench.world.apply(change);
    }
    bench.has("web", &[]).has("api", &[2]);
}

#[test]
fn several_interfaces_of_a_sandbox_add_up() {
    let mut bench = Bench::new();
    bench.put(pod("web", "u", &[])).tell(attachment("web", "u", "c1", &[1]));
    let second = Attachment { interface: "net1".into(), ..attachment("web", "u", "c1", &[2]) };
    bench.tell(second).has("web", &[1, 2]);
    assert_eq!(bench.overlay.forget("c1", "net1"), None);
    bench.has("web", &[1, 2]).forget("c1").has("web", &[]);
}

#[test]
fn forgetting_what_had_no_effect_changes_nothing() {
    let mut bench = Bench::new();
    bench.put(Pod { node: Some("n2".into()), ..pod("db-0", "old", &[7]) });
    bench.tell(attachment("db-0", "new", "c1", &[1])).forget("c1").has("db-0", &[7]);
}
