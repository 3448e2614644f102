use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{Fault, FaultProxy};

/// Long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);
/// How long a fault lasts after the client reported it.
const DURATION: Duration = Duration::from_millis(600);
/// The most lists, and the most watches, of one path in the first second of a fault, and in each
/// further one. Without a back-off, a client sends hundreds.
const MAX_FIRST_REQUESTS: usize = 20;
const MAX_REQUESTS_PER_SECOND: usize = 10;

/// A fault of the API server, or of a proxy in front of it, that every client must survive.
#[derive(Clone, Copy, Debug)]
pub struct FaultCase {
    name: &'static str,
    requests: Requests,
    fault: fn() -> Fault,
    /// A part of the reason that the client must report. Without one, the client cannot notice the
    /// fault, and must stay ready.
    reason: Option<&'static str>,
}

/// The requests that a fault changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requests {
    /// Lists, and reads of the lease. Changes arrive when the fault is over.
    Lists,
    /// Watches. Changes arrive during the fault: the client lists.
    Watches,
    /// Lists. Watches get 410, as from a server that never had their version.
    World,
}

/// A client behind a proxy.
pub trait FaultSubject {
    /// Why the client is not ready; empty if it is.
    fn unready_reasons(&mut self) -> String;

    /// Whether everything that was in force before the first fault still is.
    fn is_intact(&mut self) -> bool;

    /// Makes a change in the API server.
    fn change(&mut self, number: usize);

    /// Whether a change has arrived.
    fn has_arrived(&mut self, number: usize) -> bool;
}

impl FaultCase {
    /// Answers that are no complete list, and watches that fail.
    pub const BROKEN_ANSWERS: &[FaultCase] = &[
        FaultCase::of_lists("a list that is cut off", || Fault::Cut, "cannot be read"),
        FaultCase::of_lists(
            "an empty list without a resourceVersion",
            || Fault::Edit(|list| (list["items"], list["metadata"]) = (json!([]), json!({}))),
            "the list has no resourceVersion",
        ),
        FaultCase::of_lists(
            "a list without items",
            || Fault::Edit(remove_items),
            "the list has no items",
        ),
        FaultCase::of_lists(
            "a Status instead of a list",
            || {
                Fault::Edit(|list| {
                    remove_items(list);
                    (list["kind"], list["status"]) = ("Status".into(), "Success".into());
                })
            },
            "cannot be read",
        ),
        FaultCase::of_lists(
            "an empty list of another kind",
            || {
                Fault::Edit(|list| {
                    (list["kind"], list["items"]) = ("ConfigMapList".into(), json!([]));
                })
            },
            "cannot be read",
        ),
        FaultCase::of_lists(
            "a web page",
            || Fault::Answer(200, "<html></html>".into()),
            "cannot be read",
        ),
        FaultCase::of_lists(
            "no path is served",
            || Fault::Answer(404, "404 page not found".into()),
            "the API server has no ",
        ),
        FaultCase::of_lists("503", || status(503, "overloaded"), "503: overloaded"),
        FaultCase::of_lists("429", || status(429, "slow down"), "429: slow down"),
        FaultCase::of_watches(
            "410 for each watch",
            || status(410, "too old"),
            "no longer has the requested version",
        ),
        FaultCase::of_watches(
            "an ERROR event with 410 in each watch",
            || {
                let error = json!({"kind": "Status", "code": 410, "message": "too old"});
                let event = json!({"type": "ERROR", "object": error});
                Fault::Answer(200, format!("{event}\n"))
            },
            "no longer has the requested version",
        ),
        FaultCase::of_watches(
            "watches that end immediately",
            || Fault::Answer(200, String::new()),
            "ends each watch",
        ),
    ];

    /// Watches that deliver nothing, or ten bytes per second, in turns. The client must list after a
    /// silence of seconds.
    pub const SILENT_WATCHES: FaultCase = FaultCase::of_watches(
        "silent and slow watches",
        || {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            match COUNT.fetch_add(1, Ordering::Relaxed) % 2 {
                0 => Fault::Silence,
                _ => Fault::Trickle(Duration::from_millis(100)),
            }
        },
        "delivered nothing for",
    );

    /// Watches that lose events. The client must compare every few seconds.
    pub const LOST_EVENTS: FaultCase = FaultCase {
        name: "lost events",
        requests: Requests::Watches,
        fault: || Fault::DropEvents,
        reason: None,
    };

    /// Valid lists of another, empty cluster. The agent must notice that its node is missing.
    pub const EMPTY_WORLD: FaultCase = FaultCase {
        name: "an empty world",
        requests: Requests::World,
        fault: || {
            Fault::Edit(|list| {
                list["items"] = json!([]);
                list["metadata"] = json!({"resourceVersion": "900000000"});
            })
        },
        reason: Some("any more"),
    };

    const fn of_lists(name: &'static str, fault: fn() -> Fault, reason: &'static str) -> Self {
        FaultCase { name, requests: Requests::Lists, fault, reason: Some(reason) }
    }

    const fn of_watches(name: &'static str, fault: fn() -> Fault, reason: &'static str) -> Self {
        FaultCase { name, requests: Requests::Watches, fault, reason: Some(reason) }
    }

    /// Injects the fault into all proxies of a client, makes a change, and ends the fault.
    ///
    /// The client must report the true reason, keep what is in force, send few requests, and follow
    /// the change.
    ///
    /// # Panics
    ///
    /// If the client does not.
    pub fn check(&self, number: usize, proxies: &[&FaultProxy], subject: &mut dyn FaultSubject) {
        let FaultCase { name, requests, fault, reason } = *self;
        until_ready(name, "it is ready", subject);
        let before: Vec<usize> =
            proxies.iter().map(|proxy| proxy.requests(|_| true).len()).collect();
        let start = Instant::now();
        for proxy in proxies {
            proxy.inject(move |request| match requests {
                Requests::Lists => {
                    let is_lease = request.is_of("leases") && request.method == "GET";
                    (request.is_list() || is_lease).then(fault)
                }
                Requests::Watches => request.is_watch().then(fault),
                Requests::World if request.is_watch() => Some(status(410, "too old")),
                Requests::World => request.is_list().then(fault),
            });
            proxy.cut();
        }
        if let Some(reason) = reason {
            until(name, reason, || subject.unready_reasons().contains(reason));
        }
        subject.change(number);
        let end = Instant::now() + DURATION;
        while Instant::now() < end {
            assert!(subject.is_intact(), "{name}: something is missing during the fault");
            thread::sleep(Duration::from_millis(50));
        }
        if requests == Requests::Watches {
            until(name, "the change arrives during the fault", || subject.has_arrived(number));
        }
        let seconds = start.elapsed().as_secs() as usize;
        for (proxy, before) in proxies.iter().zip(before) {
            check_rate(name, proxy, before, seconds);
            proxy.heal();
        }
        if reason.is_none() {
            until_ready(name, "it notices nothing", subject);
        }
        // A client that noticed nothing has watches with the fault.
        if reason.is_none() || requests != Requests::Watches {
            proxies.iter().for_each(|proxy| proxy.cut());
        }
        until(name, "the change has arrived", || subject.has_arrived(number));
        until_ready(name, "it is ready again", subject);
        assert!(subject.is_intact(), "{name}: something is missing after the fault");
    }
}

/// Checks how many requests a client sent since the first ones.
fn check_rate(name: &str, proxy: &FaultProxy, before: usize, seconds: usize) {
    let mut counts: BTreeMap<(String, bool), usize> = BTreeMap::new();
    for request in proxy.requests(|_| true).split_off(before) {
        let is_first_page = request.is_list() && !request.query.contains_key("continue");
        if is_first_page || request.is_watch() {
            *counts.entry((request.path.clone(), request.is_watch())).or_default() += 1;
        }
    }
    let most = MAX_FIRST_REQUESTS + MAX_REQUESTS_PER_SECOND * seconds;
    for (what, count) in counts {
        assert!(count <= most, "{name}: {count} requests for {what:?} in {seconds} s");
    }
}

#[track_caller]
fn until_ready(case: &str, what: &str, subject: &mut dyn FaultSubject) {
    let start = Instant::now();
    loop {
        let reasons = subject.unready_reasons();
        if reasons.is_empty() {
            return;
        }
        assert!(start.elapsed() < TIMEOUT, "{case}: not within {TIMEOUT:?}: {what}: {reasons}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
fn until(case: &str, what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "{case}: not within {TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn remove_items(list: &mut Value) {
    list.as_object_mut().and_then(|fields| fields.remove("items"));
}

fn status(code: u16, message: &str) -> Fault {
    Fault::Answer(code, json!({"kind": "Status", "code": code, "message": message}).to_string())
}
