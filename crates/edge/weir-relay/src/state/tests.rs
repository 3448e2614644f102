use std::path::Path;

use futures::FutureExt;
use mpsc::error::TryRecvError;
use weir_kube::{Access, RetryPolicy};
use weir_model::{Claim, Node, Object, Pod, PodId};

use super::*;
use crate::chunks::Chunks;

/// The position of pods.
const PODS: usize = SyncPoint::KINDS - 1;
/// The version of the lists.
const LISTED: u64 = 100;

/// A relay that has listed a cluster with one node, and a feed that does not run.
fn relay() -> (Arc<Shared>, ClusterFeed) {
    let access = Access::direct("http://127.0.0.1:1", Path::new("token"), None);
    let (feed, _) = ClusterFeed::new(access, RetryPolicy::default(), mpsc::channel(1).0);
    let shared = Arc::<Shared>::default();
    let mut state = shared.state();
    let node = Node {
        name: "n1".into(),
        labels: weir_model::Labels::default(),
        addresses: Vec::new(),
        location: None,
    };
    state.apply(FeedEvent::Put(Object::Node(node), Vec::new(), None)).unwrap();
    for kind in 0..SyncPoint::KINDS {
        let reached = FeedEvent::Reached { kind, version: LISTED, is_bookmark: false };
        state.apply(reached).unwrap();
        state.apply(FeedEvent::Listed { kind, is_installed: true }).unwrap();
    }
    state.commit();
    drop(state);
    (shared, feed)
}

/// A pod of the node.
fn pod(number: u64) -> Object {
    Object::Pod(Pod {
        id: PodId::new("shop", "web"),
        labels: [("number", number.to_string())].into_iter().collect(),
        addresses: vec![[10, 0, 0, 1].into()],
        node: Some("n1".into()),
        ports: Vec::new(),
        host_network: false,
        finished: false,
        claim: Claim::Running,
        uid: None,
        owner: None,
        location: None,
    })
}

/// A transaction that gives a pod of the node other labels.
fn change(shared: &Shared, number: u64) {
    let mut state = shared.state();
    let version = (PODS, LISTED + 1 + number);
    state.apply(FeedEvent::Put(pod(number), Vec::new(), Some(version))).unwrap();
    state.commit();
}

fn subscribe(shared: &Arc<Shared>, feed: &ClusterFeed) -> Subscription {
    shared.subscribe("n1", &SyncPoint::default(), feed).unwrap()
}

#[test]
fn an_agent_that_reads_nothing_is_detached_and_lists_again() {
    let (shared, feed) = relay();
    let slow = subscribe(&shared, &feed);
    let mut changes = 0;
    while shared.state().receivers.len() == 1 {
        change(&shared, changes);
        changes += 1;
        assert!(changes <= MAX_WAITING as u64, "the queue grows without a limit");
    }
    let state = shared.state();
    assert_eq!((state.counters.slow, state.receivers.len(), state.counts().1), (1, 0, 0));
    drop(state);

    // It still gets what was on its way, and then the end.
    let (_, mut deliveries, old_connection) = slow.into_parts();
    let mut frames = 0;
    let end = loop {
        match deliveries.try_recv() {
            Ok(delivery) => frames += delivery.frames.len(),
            Err(end) => break end,
        }
    };
    assert_eq!(end, TryRecvError::Disconnected);
    assert!((MAX_WAITING / 2..=MAX_WAITING).contains(&frames), "{frames} frames");

    // The list is that of a relay which has only the last state.
    let again = subscribe(&shared, &feed);
    let (fresh, its_feed) = relay();
    change(&fresh, changes - 1);
    assert_eq!(again.list, subscribe(&fresh, &its_feed).list);
    // The end of the old connection does not concern the new one.
    drop(old_connection);
    assert_eq!(shared.state().counts().1, 1);
    let (_, mut deliveries, _connection) = again.into_parts();
    change(&shared, changes);
    assert_eq!(deliveries.try_recv().unwrap().frames.len(), 2);
    assert_eq!(shared.state().counters.slow, 1);
}

#[test]
fn an_agent_that_reads_is_not_too_slow() {
    let (shared, feed) = relay();
    let (_, mut deliveries, _connection) = subscribe(&shared, &feed).into_parts();
    for number in 0..MAX_WAITING as u64 {
        change(&shared, number);
        assert_eq!(deliveries.try_recv().unwrap().frames.len(), 2);
    }
    let state = shared.state();
    assert_eq!((state.counters.slow, state.receivers.len()), (0, 1));
}

#[test]
fn one_transaction_of_any_size_does_not_make_an_agent_slow() {
    let (shared, feed) = relay();
    let (_, mut deliveries, _connection) = subscribe(&shared, &feed).into_parts();
    let slot = *shared.state().receivers.keys().next().unwrap();
    let frame = FrameBytes::from(commit_frame(&SyncPoint::default()));
    let mut sent = 0;
    for _ in 0..2 {
        assert!(shared.state().deliver(slot, vec![frame.clone(); 2 * MAX_WAITING]).is_some());
        sent += 1;
    }
    assert_eq!(shared.state().counters.slow, 0);
    while deliveries.try_recv().is_ok() {
        sent -= 1;
    }
    assert_eq!((sent, shared.state().receivers[&slot].waiting.load(Ordering::Relaxed)), (0, 0));
    // Those that follow without an end do.
    assert!(
        (0..3).any(|_| {
            shared.state().deliver(slot, vec![frame.clone(); 2 * MAX_WAITING]).is_none()
        })
    );
    assert_eq!(shared.state().counters.slow, 1);
}

#[test]
fn objects_of_a_list_that_is_under_way_carry_their_versions() {
    let (shared, feed) = relay();
    let (_, mut deliveries, _connection) = subscribe(&shared, &feed).into_parts();
    let seen = (PODS, LISTED + 50);
    shared.state().apply(FeedEvent::Seen(seen)).unwrap();
    shared.state().apply(FeedEvent::Put(pod(0), Vec::new(), None)).unwrap();
    shared.state().commit();
    let mut point = SyncPoint::default();
    point.set(PODS, LISTED + 50);
    let frame = FrameBytes::from(seen_frame(&point));
    assert!(deliveries.try_recv().unwrap().frames.contains(&frame));
    assert!(subscribe(&shared, &feed).list.contains(&frame));
    let reached = FeedEvent::Reached { kind: PODS, version: LISTED + 60, is_bookmark: false };
    shared.state().apply(reached).unwrap();
    assert!(!subscribe(&shared, &feed).list.contains(&frame));
}

#[test]
fn an_agent_copies_only_a_chunk_of_what_waits() {
    let (shared, feed) = relay();
    let (list, deliveries, _connection) = subscribe(&shared, &feed).into_parts();
    let slot = *shared.state().receivers.keys().next().unwrap();
    let mut expected = list.concat();
    let mut chunks = Chunks::new(list, deliveries);
    let (large, small) = (FrameBytes::from(vec![1; 1_000_000]), FrameBytes::from(vec![2; 9_000]));
    let waiting = || shared.state().receivers[&slot].waiting.load(Ordering::Relaxed);
    for frames in [[&large, &small, &large], [&small, &small, &small]] {
        let frames: Vec<FrameBytes> = frames.into_iter().cloned().collect();
        expected.extend(frames.concat());
        assert!(shared.state().deliver(slot, frames).is_some());
    }
    let mut received = Vec::new();
    while received.len() < expected.len() {
        let chunk = chunks.next().now_or_never().flatten().unwrap();
        assert!((1..=16 << 10).contains(&chunk.len()), "{} bytes", chunk.len());
        let copied = !large.as_ptr_range().contains(&chunk.as_ptr());
        assert!(copied == (chunk[..] != large[..chunk.len()]), "a large frame is copied");
        received.extend_from_slice(&chunk);
        // A delivery waits until its last frame has been taken.
        assert!(waiting() > 0 || expected.len() - received.len() < 16 << 10);
    }
    assert!(received == expected && chunks.next().now_or_never().is_none());
    assert_eq!(waiting(), 0);
}

#[test]
fn versions_that_lists_do_not_reach_cause_ever_fewer_lists() {
    let (shared, _feed) = relay();
    let mut state = shared.state();
    let mut future = u64::MAX - 1;
    let mut waits = Vec::new();
    for _ in 0..9 {
        future -= 1;
        assert!(state.may_reload(PODS, future));
        // A list that takes long is not repeated.
        assert!(!state.may_reload(PODS, future));
        state.apply(FeedEvent::Listed { kind: PODS, is_installed: true }).unwrap();
        assert!(!state.may_reload(PODS, future));
        let reload = state.reloads[PODS].as_mut().unwrap();
        waits.push(reload.interval);
        reload.ended = Instant::now().checked_sub(reload.interval);
    }
    assert!(waits.is_sorted() && waits[0] == RELOAD_INTERVAL, "{waits:?}");
    assert_eq!(waits.last(), Some(&MAX_RELOAD_INTERVAL));
    // A list that reaches what the agent has seen was needed.
    state.reloads[PODS].as_mut().unwrap().version = LISTED;
    assert!(state.may_reload(PODS, LISTED + 1));
    assert_eq!(state.reloads[PODS].unwrap().interval, RELOAD_INTERVAL);
}

#[test]
fn transactions_are_counted_without_lists_and_heartbeats() {
    let (shared, feed) = relay();
    let (_, mut deliveries, _connection) = subscribe(&shared, &feed).into_parts();
    change(&shared, 0);
    shared.state().send_heartbeats();
    let transaction = deliveries.try_recv().unwrap();
    let bytes: usize = transaction.frames.iter().map(|frame| frame.len()).sum();
    let counters = shared.state().counters;
    assert_eq!((counters.transactions, counters.transaction_bytes), (1, bytes as u64));
    // The heartbeat is a frame of its own.
    assert_eq!(deliveries.try_recv().unwrap().frames.len(), 1);
    assert!(counters.bytes > counters.transaction_bytes);
}

#[test]
fn a_failure_ends_as_soon_as_all_kinds_can_be_followed() {
    let (shared, _feed) = relay();
    let mut state = shared.state();
    let problem = |why: Option<&str>| FeedEvent::Problem(PODS, why.map(str::to_owned));
    state.apply(problem(Some("forbidden"))).unwrap();
    state.send_heartbeats();
    assert!(state.failing_since.is_some());
    // Both events are between two heartbeats.
    state.apply(problem(None)).unwrap();
    state.apply(problem(Some("forbidden"))).unwrap();
    assert_eq!(state.failing_since, None);
}

#[test]
fn a_relay_that_is_behind_for_one_kind_lists_only_this_kind_again() {
    let (shared, feed) = relay();
    let mut seen = SyncPoint::default();
    seen.set(0, LISTED);
    seen.set(PODS, LISTED + 1);
    let refusal = shared.subscribe("n1", &seen, &feed).err();
    assert_eq!(refusal, Some(NotServed::Behind));
    let mut state = shared.state();
    let reloaded = (0..SyncPoint::KINDS).filter(|kind| state.reloads[*kind].is_some());
    assert_eq!(reloaded.collect::<Vec<_>>(), [PODS]);
    assert!(!state.may_reload(PODS, LISTED + 1), "agents cannot cause a list each");
    drop(state);
    change(&shared, 0);
    assert!(shared.subscribe("n1", &seen, &feed).is_ok());
}
