use weir_model::{Claim, Labels, World};

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
        claim: Claim::Running,
        uid: (!uid.is_empty()).then(|| uid.into()),
        owner: None,
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
        links: vec![format!("veth-{container}")],
    }
}

/// An overlay, and the world that the engine gets.
struct Bench {
    overlay: Overlay,
    world: World,
}

impl Bench {
    fn new() -> Self {
        Bench { overlay: Overlay::new("n1".into()), world: World::default() }
    }

    fn put(&mut self, pod: Pod) -> &mut Self {
        let change = self.overlay.overlay(Change::Put(Object::Pod(pod)));
        self.world.apply(change);
        self
    }

    fn remove(&mut self, name: &str) -> &mut Self {
        let change = self.overlay.overlay(Change::Remove(Key::Pod(PodId::new("shop", name))));
        self.world.apply(change);
        self
    }

    fn attach(&mut self, attachment: Attachment) -> &mut Self {
        self.overlay.add(attachment).into_iter().for_each(|change| self.world.apply(change));
        self
    }

    fn read(&mut self, pod: Pod) -> &mut Self {
        self.overlay.add_read_pod(pod).into_iter().for_each(|change| self.world.apply(change));
        self
    }

    fn detach(&mut self, container: &str) -> &mut Self {
        let change = self.overlay.remove(container, "eth0");
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

    /// The pod that the engine gives an address to.
    fn owner(&self, last: u8) -> String {
        let holders = self.world.holders(address(last));
        let [only] = holders[..] else { panic!("one holder, not {holders:?}") };
        only.id.name.to_string()
    }
}

#[test]
fn the_plugins_addresses_apply_until_the_source_has_new_ones() {
    let mut bench = Bench::new();
    bench.put(pod("web", "u", &[])).has("web", &[]);
    bench.attach(attachment("web", "u", "c1", &[1])).has("web", &[1]);
    bench.put(pod("web", "u", &[])).has("web", &[1]);
    bench.put(pod("web", "u", &[1])).has("web", &[1]);
    bench.put(pod("web", "u", &[9])).has("web", &[9]);
    bench.put(pod("web", "u", &[])).has("web", &[]);
}

#[test]
fn a_pod_can_be_attached_before_the_source_has_it() {
    let mut bench = Bench::new();
    bench.attach(attachment("web", "u", "c1", &[1])).lacks("web");
    assert!(bench.overlay.obstacle(&attachment("web", "u", "c1", &[1])).is_some());
    bench.put(pod("web", "u", &[])).has("web", &[1]);
    assert!(bench.overlay.obstacle(&attachment("web", "u", "c1", &[1])).is_none());
}

#[test]
fn an_attachment_does_not_apply_to_an_older_pod_of_the_same_name() {
    let mut bench = Bench::new();
    bench.put(pod("db-0", "old", &[1]));
    bench.attach(attachment("db-0", "new", "c2", &[2])).has("db-0", &[1]);
    let obstacle = bench.overlay.obstacle(&attachment("db-0", "new", "c2", &[2]));
    assert_eq!(obstacle, Some("the source still has an older pod of this name"));
    // A source that lags behind can remove the old pod and add it again.
    bench.remove("db-0").lacks("db-0").put(pod("db-0", "old", &[1])).has("db-0", &[1]);
    bench.remove("db-0").lacks("db-0");
    bench.put(pod("db-0", "new", &[])).has("db-0", &[2]);
    // A newer pod of the same name ends the attachment, even without a removal in between.
    bench.put(pod("db-0", "newer", &[])).has("db-0", &[]);
    bench.put(pod("db-0", "new", &[])).has("db-0", &[]);
}

#[test]
fn a_new_sandbox_of_the_same_pod_has_the_newer_address() {
    let mut bench = Bench::new();
    bench.put(pod("web", "u", &[])).attach(attachment("web", "u", "c1", &[1]));
    // The source has neither the first address nor the second.
    bench.attach(attachment("web", "u", "c2", &[2])).has("web", &[2]);
    bench.put(pod("web", "u", &[1])).has("web", &[2]);
    bench.put(pod("web", "u", &[2])).has("web", &[2]);
    // The runtime removes the first sandbox only now.
    bench.detach("c1").has("web", &[2]);
    bench.put(pod("web", "u", &[2])).detach("c2").has("web", &[2]);
}

#[test]
fn an_attachment_ends_with_its_interface_and_with_its_pod() {
    let mut bench = Bench::new();
    bench.put(pod("web", "u", &[])).attach(attachment("web", "u", "c1", &[1])).has("web", &[1]);
    bench.detach("c1").has("web", &[]).detach("c1").has("web", &[]);
    bench.attach(attachment("web", "u", "c1", &[1])).remove("web").lacks("web");
    bench.put(pod("web", "u", &[])).has("web", &[]);
    // A finished pod has no address, even if it is attached.
    bench.attach(attachment("web", "u", "c1", &[1]));
    bench.put(Pod { finished: true, ..pod("web", "u", &[1]) });
    assert!(bench.world.pods.values().all(|pod| pod.own_addresses().is_empty()));
}

#[test]
fn an_address_that_two_pods_claim_belongs_to_the_last_attached_one() {
    let mut bench = Bench::new();
    bench.put(pod("stale", "y", &[1]));
    bench.put(Pod { node: Some("n2".into()), ..pod("far", "f", &[1]) });
    bench.put(pod("web", "u", &[])).attach(attachment("web", "u", "c1", &[1]));
    assert_eq!(bench.owner(1), "web");
    bench.put(pod("web", "u", &[1]));
    assert_eq!(bench.owner(1), "web", "also after the source confirms it");
    bench.put(pod("api", "a", &[])).attach(attachment("api", "a", "c2", &[1]));
    assert_eq!(bench.owner(1), "api", "the last attached pod has it");
}

#[test]
fn a_pod_with_its_nodes_network_gets_no_address() {
    let mut bench = Bench::new();
    bench.put(Pod { host_network: true, ..pod("proxy", "u", &[9]) });
    bench.attach(attachment("proxy", "u", "c1", &[1])).has("proxy", &[9]);
    let obstacle = bench.overlay.obstacle(&attachment("proxy", "u", "c1", &[1]));
    assert_eq!(obstacle, Some("according to the source it uses its node's network"));
}

#[test]
fn without_uids_pods_are_matched_by_name() {
    let mut bench = Bench::new();
    bench.put(pod("web", "", &[])).attach(attachment("web", "u", "c1", &[1])).has("web", &[1]);
    // The overlay cannot know whether this is the end of the attached pod, so the attachment stays.
    bench.remove("web").lacks("web").put(pod("web", "", &[])).has("web", &[1]);
    bench.detach("c1").has("web", &[]);
}

#[test]
fn a_directly_read_pod_is_used_until_the_source_has_it() {
    let mut bench = Bench::new();
    bench.put(Pod { node: Some("n2".into()), ..pod("db-0", "old", &[7]) });
    bench.attach(attachment("db-0", "new", "c1", &[1])).has("db-0", &[7]);
    bench.read(pod("db-0", "old", &[])).has("db-0", &[7]);
    bench.read(pod("db-0", "new", &[])).has("db-0", &[1]);
    bench.remove("db-0").has("db-0", &[1]);
    bench.put(pod("db-0", "new", &[])).has("db-0", &[1]);
    bench.remove("db-0").lacks("db-0");
    bench.read(pod("db-0", "new", &[])).lacks("db-0");
}

#[test]
fn garbage_collection_removes_unlisted_attachments() {
    let mut bench = Bench::new();
    bench.put(pod("web", "u", &[])).attach(attachment("web", "u", "c1", &[1]));
    bench.put(pod("api", "a", &[])).attach(attachment("api", "a", "c2", &[2]));
    assert!(bench.overlay.retain("other", &BTreeSet::new()).is_empty());
    for change in bench.overlay.retain("net", &["c2".to_owned()].into()) {
        bench.world.apply(change);
    }
    bench.has("web", &[]).has("api", &[2]);
}

#[test]
fn several_interfaces_of_a_sandbox_add_up() {
    let mut bench = Bench::new();
    bench.put(pod("web", "u", &[])).attach(attachment("web", "u", "c1", &[1]));
    let second = Attachment { interface: "net1".into(), ..attachment("web", "u", "c1", &[2]) };
    bench.attach(second).has("web", &[1, 2]);
    assert_eq!(bench.overlay.remove("c1", "net1"), None);
    bench.has("web", &[1, 2]).detach("c1").has("web", &[]);
}

#[test]
fn removing_an_attachment_without_effect_changes_nothing() {
    let mut bench = Bench::new();
    bench.put(Pod { node: Some("n2".into()), ..pod("db-0", "old", &[7]) });
    bench.attach(attachment("db-0", "new", "c1", &[1])).detach("c1").has("db-0", &[7]);
}

impl Bench {
    /// Another overlay, with the records of this one.
    fn restarted(&self) -> Bench {
        let mut next = Bench::new();
        for (number, line) in self.overlay.records() {
            let change = next.overlay.restore(number, &line);
            change.into_iter().for_each(|change| next.world.apply(change));
        }
        next
    }

    fn compare(&mut self) -> &mut Self {
        self.overlay.drop_absent().into_iter().for_each(|change| self.world.apply(change));
        self
    }

    #[track_caller]
    fn has_links(&mut self, expected: &[(&str, &str, u8)]) -> &mut Self {
        let links = self.overlay.links();
        let links = links.map(|(link, pod, own)| (link.to_owned(), pod.name.to_string(), own[0]));
        let expected = expected
            .iter()
            .map(|(link, pod, last)| ((*link).to_owned(), (*pod).to_owned(), address(*last)));
        assert_eq!(links.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        self
    }
}

#[test]
fn attachments_survive_a_restart() {
    let mut bench = Bench::new();
    bench.put(pod("web", "u", &[])).attach(attachment("web", "u", "c", &[7]));
    let mut next = bench.restarted();
    next.has_links(&[("veth-c", "web", 7)]);
    next.put(pod("web", "u", &[])).compare().has("web", &[7]);
    next.has_links(&[("veth-c", "web", 7)]);
    next.attach(attachment("api", "v", "d", &[8]));
    assert_eq!(next.overlay.records().len(), 2, "numbers are not reused");
    next.detach("c").has("web", &[]).has_links(&[("veth-d", "api", 8)]);
}

#[test]
fn restored_attachments_of_absent_pods_are_removed() {
    let mut bench = Bench::new();
    bench.put(pod("web", "u", &[])).attach(attachment("web", "u", "c", &[7]));
    bench.put(pod("api", "v", &[])).attach(attachment("api", "v", "d", &[8]));
    let mut next = bench.restarted();
    // Another pod has the name of the first, and a third one is newer than the source.
    next.put(pod("web", "w", &[])).attach(attachment("new", "x", "e", &[9]));
    next.compare().has("web", &[]).has_links(&[("veth-e", "new", 9)]);
}

#[test]
fn a_record_does_not_replace_a_later_attachment() {
    let mut bench = Bench::new();
    bench.attach(attachment("web", "u", "c", &[7]));
    let mut next = Bench::new();
    next.put(pod("web", "u", &[])).attach(attachment("web", "u", "d", &[8]));
    for (number, line) in bench.overlay.records() {
        assert_eq!(next.overlay.restore(number, &line), None);
    }
    next.has("web", &[8]);
    assert_eq!(next.overlay.restore(9, "not a record"), None);
}

#[test]
fn a_link_belongs_to_the_last_pod_that_it_was_attached_to() {
    let mut bench = Bench::new();
    bench.attach(attachment("web", "u", "c", &[7])).attach(attachment("api", "v", "c", &[8]));
    bench.has_links(&[("veth-c", "api", 8)]);
    bench.overlay.retain_links(|link| link != "veth-c");
    bench.has_links(&[]);
}
