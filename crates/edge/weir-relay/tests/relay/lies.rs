//! Relays that are behind, that lie about versions, or that send garbage.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use weir_kube::{SyncPoint, begin_frame, commit_frame, put_frame, remove_frame, seen_frame};
use weir_model::{Change, Key, Object, PodId, World};

use crate::{
    agent::Agent,
    api::Api,
    liar::{Liar, request},
    process::{Files, Relay, free_address},
    tests::{LONG, SHORT, cluster, pod, policy},
};

/// The timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The objects of an agent as frames.
struct Frames {
    node: Vec<u8>,
    others: Vec<u8>,
}

impl Frames {
    fn new(world: &World) -> Self {
        let json = policy("db", "db", "web").to_string();
        let (mut node, mut others) = (Vec::new(), Vec::new());
        for change in world.changes() {
            let Change::Put(object) = change else { continue };
            let frame = put_frame(&object, json.as_bytes(), true).unwrap();
            if matches!(object, Object::Node(_)) { &mut node } else { &mut others }.extend(frame);
        }
        Frames { node, others }
    }

    fn all(&self) -> Vec<u8> {
        [&self.node[..], &self.others].concat()
    }
}

fn remove(name: &str) -> Vec<u8> {
    remove_frame(&Key::Pod(PodId::new("shop", name))).unwrap()
}

/// A point at which each version is this much lower.
fn earlier(seen: &SyncPoint, by: u64) -> SyncPoint {
    let mut point = SyncPoint::default();
    (0..SyncPoint::KINDS).for_each(|kind| point.set(kind, seen.version(kind).saturating_sub(by)));
    point
}

/// The frames that a liar sends to an agent which has seen this.
type Lie = fn(&Frames, &SyncPoint) -> Vec<u8>;

/// What a relay should not send to an agent that has all objects.
const LIES: [(&str, Lie); 14] = [
    ("an older list", |frames, seen| {
        let old = earlier(seen, 1);
        [begin_frame(&old), frames.node.clone(), commit_frame(&old)].concat()
    }),
    ("an older list that ends with a new version", |frames, seen| {
        let begin = begin_frame(&earlier(seen, 1));
        [begin, frames.node.clone(), commit_frame(seen)].concat()
    }),
    ("another list in the middle of a list", |frames, seen| {
        let (begin, node) = (begin_frame(seen), frames.node.clone());
        [begin.clone(), frames.all(), begin, node, commit_frame(seen)].concat()
    }),
    ("another list after a list", |frames, seen| {
        let (begin, commit) = (begin_frame(seen), commit_frame(seen));
        let node = frames.node.clone();
        [begin.clone(), frames.all(), commit.clone(), begin, node, commit].concat()
    }),
    ("a list without a beginning", |frames, seen| {
        [frames.node.clone(), commit_frame(seen)].concat()
    }),
    ("a list without an end", |frames, seen| [begin_frame(seen), frames.node.clone()].concat()),
    (WITHOUT_NODE, |frames, seen| {
        [begin_frame(seen), frames.others.clone(), commit_frame(seen)].concat()
    }),
    ("no objects", |_, seen| [begin_frame(seen), commit_frame(seen)].concat()),
    ("removals without an end", |frames, seen| {
        let list = [begin_frame(seen), frames.all(), commit_frame(seen)].concat();
        [list, remove("db"), remove("web")].concat()
    }),
    ("a truncated frame", |frames, seen| {
        let mut all = frames.all();
        all.truncate(all.len() - 3);
        [begin_frame(seen), all, commit_frame(seen)].concat()
    }),
    (UNREADABLE, |frames, seen| {
        // A frame of a pod with three bytes.
        let broken = vec![4, 0x16, 0xff, 0xff, 0xff];
        [begin_frame(seen), frames.node.clone(), broken, commit_frame(seen)].concat()
    }),
    (GARBAGE, |_, _| vec![0xff; 500]),
    ("garbage after a beginning", |_, seen| [begin_frame(seen), vec![0xff; 500]].concat()),
    ("nothing", |_, _| Vec::new()),
];

const WITHOUT_NODE: &str = "a list without the own node";
const UNREADABLE: &str = "an object that cannot be read";
const GARBAGE: &str = "garbage";

#[test]
fn lies_of_a_relay_remove_nothing_and_another_relay_takes_over() {
    for (text, lie) in LIES {
        let (api, files, address) = (cluster(), Files::new(), free_address());
        let mut liar = Liar::new(&files);
        let relay = Relay::start(&api, &files, address);
        until_it_serves(address, &files);
        let relays = [address, liar.address];
        let mut agent = Agent::start(&api, &files, "n1", "agent-n1", &relays, LONG);
        agent.until("everything", |agent| agent.is_in_sync);
        let frames = Frames::new(&agent.world);
        liar.tell(move |seen| lie(&frames, seen));
        drop(relay);
        let start = Instant::now();
        while liar.answers() < 2 {
            agent.linger(Duration::from_millis(20));
            assert!(start.elapsed() < TIMEOUT, "{text}: the agent does not request it");
        }
        agent.linger(Duration::from_millis(100));
        let _relay = Relay::start(&api, &files, address);
        api.put("Pod", pod("late", "web", "n2", "10.0.4.1"));
        agent.until(text, |agent| agent.pods() == ["db", "late", "web"]);
        assert_eq!(agent.server, format!("relay https://{address}"), "{text}");
        assert_eq!((agent.removed.len(), agent.world.policies.len()), (0, 1), "{text}");
    }
}

#[test]
fn an_agent_whose_only_relay_lies_follows_the_api_server() {
    for (text, lie) in LIES {
        if ![WITHOUT_NODE, UNREADABLE, GARBAGE].contains(&text) {
            continue;
        }
        let (api, files) = (cluster(), Files::new());
        let mut liar = Liar::new(&files);
        let mut agent = Agent::start(&api, &files, "n1", "agent-n1", &[liar.address], SHORT);
        let frames = Frames::new(&World::default());
        liar.tell(move |seen| lie(&frames, seen));
        agent.until(text, |agent| agent.is_in_sync);
        let (answers, (lists, _)) = (liar.answers(), api.counts());
        for number in 0..4 {
            agent.linger(Duration::from_millis(300));
            let name = format!("late-{number}");
            api.put("Pod", pod(&name, "web", "n2", &format!("10.0.4.{number}")));
            agent.until(text, |agent| agent.pods().contains(&&*name));
            assert_eq!(agent.server, "the API server", "{text}");
        }
        assert!(liar.answers() > answers, "{text}: the agent does not try the relay again");
        assert_eq!(api.counts().0, lists, "{text}: a useless relay costs lists");
        assert_eq!((agent.pods().len(), agent.removed.len()), (7, 0), "{text}");
    }
}

/// The relay ends while it lists pods again.
#[test]
fn an_agent_has_seen_the_objects_of_a_list_that_does_not_end() {
    let files = Files::new();
    let (api, frames, mut liar) = liar(&files);
    let shown = Arc::new(AtomicU64::new(0));
    let last = shown.clone();
    liar.tell(move |seen| {
        last.store(seen.version(SyncPoint::KINDS - 1), Ordering::Relaxed);
        let mut newer = SyncPoint::default();
        newer.set(SyncPoint::KINDS - 1, 5000);
        let list = [begin_frame(seen), frames.all(), commit_frame(seen)].concat();
        let change = [remove("web"), seen_frame(&newer), commit_frame(&SyncPoint::default())];
        [list, change.concat()].concat()
    });
    let mut agent = Agent::start(&api, &files, "n1", "agent-n1", &[liar.address], LONG);
    agent.until("the change", |agent| !agent.removed.is_empty());
    until("the agent states the version", || shown.load(Ordering::Relaxed) == 5000);
}

/// The API server and its objects, and a liar that does not answer yet.
fn liar(files: &Files) -> (Api, Frames, Liar) {
    let api = cluster();
    let mut agent = Agent::start(&api, files, "n1", "agent-n1", &[], Duration::ZERO);
    agent.until("everything", |agent| agent.is_in_sync);
    (api, Frames::new(&agent.world), Liar::new(files))
}

#[test]
fn relays_that_end_soon_after_their_list_lead_to_the_api_server() {
    let files = Files::new();
    let (api, frames, mut liar) = liar(&files);
    liar.linger = Duration::from_millis(700);
    liar.tell(move |seen| [begin_frame(seen), frames.all(), commit_frame(seen)].concat());
    let mut agent = Agent::start(&api, &files, "n1", "agent-n1", &[liar.address], SHORT);
    agent.until("a relay", |agent| agent.server.starts_with("relay"));
    agent.until("the API server", |agent| agent.server == "the API server");
    assert_eq!(agent.removed, []);
}

/// Honest relays are behind a version of the future, and the API server as well: its versions seem to
/// go back.
#[test]
fn versions_of_the_future_remove_nothing() {
    let (api, files) = (cluster(), Files::new());
    let mut liar = Liar::new(&files);
    let address = free_address();
    let relay = Relay::start(&api, &files, address);
    until_it_serves(address, &files);
    let relays = [address, liar.address];
    let mut agent = Agent::start(&api, &files, "n1", "agent-n1", &relays, SHORT);
    agent.until("everything", |agent| agent.server.starts_with("relay"));
    agent.until("only the span", |agent| agent.pods() == ["db", "web"]);
    let known = agent.removed.len();
    let frames = Frames::new(&agent.world);
    liar.tell(move |_| {
        let mut future = SyncPoint::default();
        (0..SyncPoint::KINDS).for_each(|kind| future.set(kind, 1 << 62));
        [begin_frame(&future), frames.all(), commit_frame(&future)].concat()
    });
    drop(relay);
    agent.until("the lie", |agent| agent.server.ends_with(&liar.address.to_string()));
    let _relay = Relay::start(&api, &files, address);
    api.put("Pod", pod("late", "web", "n2", "10.0.4.1"));
    agent.until("a change", |agent| agent.pods().contains(&"late"));
    let own = ["db", "web"].map(|name| Key::Pod(PodId::new("shop", name)));
    assert!(!agent.removed[known..].iter().any(|key| own.contains(key)), "{:?}", agent.removed);
    assert_eq!(agent.world.policies.values().filter(|it| &*it.id.name == "db").count(), 1);
}

#[test]
fn a_relay_that_is_behind_an_agent_refuses_it_and_lists_again() {
    let (api, files, address) = (cluster(), Files::new(), free_address());
    let _relay = Relay::start(&api, &files, address);
    let ask =
        |pods: u64| request(address, &files, "n1", "agent-n1", &format!("0.0.0.0.0.0.{pods}"));
    until("the relay is in sync", || ask(0).is_ok_and(|code| code == 200));
    let (lists, _) = api.counts();
    // The cluster has not so many versions yet.
    let seen = 112;
    assert_eq!([ask(seen).unwrap(), ask(seen).unwrap()], [503, 503]);
    until("it lists pods again", || api.counts().0 > lists);
    assert_eq!(ask(seen).unwrap(), 503);
    for number in 0..5 {
        api.put("Pod", pod(&format!("late-{number}"), "web", "n2", &format!("10.0.4.{number}")));
    }
    until("it serves", || ask(seen).is_ok_and(|code| code == 200));
    assert_eq!(api.counts().0, lists + 1);
    assert_eq!(request(address, &files, "n1", "unknown", "0.0.0.0.0.0.0").unwrap(), 401);
    assert_eq!(request(address, &files, "n1", "agent-n2", "0.0.0.0.0.0.0").unwrap(), 403);
    assert_eq!(request(address, &files, "n9", "agent-n9", "0.0.0.0.0.0.0").unwrap(), 404);
    assert_eq!(request(address, &files, "n1", "agent-n1", "0").unwrap(), 404);
}

/// Waits until a relay serves. An agent would try the liar meanwhile, which does not answer yet.
#[track_caller]
fn until_it_serves(address: SocketAddr, files: &Files) {
    let status = || request(address, files, "n1", "agent-n1", "0.0.0.0.0.0.0");
    until("the relay serves", || status().is_ok_and(|code| code == 200));
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < TIMEOUT, "not in time: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
