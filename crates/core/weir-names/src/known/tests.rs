use weir_model::Key;

use super::*;

fn answer(name: &str, addresses: impl IntoIterator<Item = (u32, u64)>) -> DnsAnswer {
    answer_to(1, name, addresses)
}

fn answer_to(pod: u8, name: &str, addresses: impl IntoIterator<Item = (u32, u64)>) -> DnsAnswer {
    let addresses = addresses.into_iter();
    let addresses =
        addresses.map(|(host, ttl)| (IpAddr::from(host.to_be_bytes()), Duration::from_secs(ttl)));
    DnsAnswer { pod: [10, 0, 0, pod].into(), name: name.into(), addresses: addresses.collect() }
}

fn put(name: &str, hosts: &[u32]) -> Change {
    let addresses = hosts.iter().map(|host| IpAddr::from(host.to_be_bytes())).collect();
    Change::Put(Object::Domain(name.into(), addresses))
}

#[test]
fn addresses_stay_for_their_time_to_live_within_bounds() {
    let (mut known, start) = (KnownNames::default(), Instant::now());
    let learned = known.learn(&answer("a", [(1, 0), (2, 600), (3, u64::from(u32::MAX))]), start);
    assert_eq!(learned.changes, [put("a", &[1, 2, 3])]);
    assert_eq!(known.expire(start + MIN_TTL - Duration::from_secs(1)), []);
    assert_eq!(known.expire(start + MIN_TTL), [put("a", &[2, 3])]);
    // A later answer prolongs the time, and an earlier end never shortens it.
    let later = start + Duration::from_secs(500);
    assert_eq!(known.learn(&answer("a", [(2, 300), (3, 1)]), later), Learned::default());
    assert_eq!(known.expire(start + Duration::from_secs(799)), []);
    assert_eq!(known.expire(start + Duration::from_secs(800)), [put("a", &[3])]);
    assert_eq!(known.next_expiry(), Some(start + MAX_TTL));
    assert_eq!(known.expire(start + MAX_TTL), [Change::Remove(Key::Domain("a".into()))]);
    assert_eq!(known, KnownNames::default());
}

#[test]
fn memory_is_bounded() {
    let (mut known, now) = (KnownNames::default(), Instant::now());
    for host in 0..1000 {
        known.learn(&answer("a", [(host, 1000 + u64::from(host))]), now);
    }
    assert_eq!(known.iter().count(), MAX_ADDRESSES_PER_NAME, "the oldest make room");
    assert!(known.names_of(IpAddr::from(999_u32.to_be_bytes())).count() == 1);
    let mut displaced = 0;
    for name in 0..20_000 {
        displaced += known.learn(&answer(&format!("n{name}"), [(name, 60)]), now).displaced;
    }
    assert_eq!(known.iter().count(), MAX_ADDRESSES);
    assert_eq!(displaced, 20_000 + MAX_ADDRESSES_PER_NAME - MAX_ADDRESSES);
}

#[test]
fn a_pod_with_very_many_addresses_displaces_only_its_own() {
    let (mut known, now) = (KnownNames::default(), Instant::now());
    // Before the attack, during it and after it, other pods learn addresses.
    known.learn(&answer_to(2, "before", [(1, 60)]), now);
    known.learn(&answer_to(3, "shared", [(2, 60)]), now);
    for name in 0..20_000 {
        known.learn(&answer(&format!("n{name}"), [(name + 100, 80_000)]), now);
        if name == 18_000 {
            let learned = known.learn(&answer_to(2, "meanwhile", [(3, 60)]), now);
            assert_eq!(learned.displaced, 1);
            assert!(learned.changes.contains(&put("meanwhile", &[3])));
            assert_eq!(learned.changes.len(), 2, "one name of the pod lost an address");
        }
    }
    // The pod asks for the address of another one, too: it still counts for the other one.
    known.learn(&answer("shared", [(2, 60)]), now);
    for name in 0..100 {
        known.learn(&answer_to(4, &format!("after{name}"), [(50, 60)]), now);
    }
    assert_eq!(known.iter().count(), MAX_ADDRESSES);
    let is_known = |name: &str| known.names.contains_key(name);
    assert!(["before", "shared", "meanwhile"].into_iter().all(is_known));
    assert!((0..100).all(|name| is_known(&format!("after{name}"))));
}

#[test]
fn a_pod_cannot_take_over_the_addresses_of_others() {
    let (mut known, now) = (KnownNames::default(), Instant::now());
    // The pod asks for the names of another pod, before and after that pod does.
    known.learn(&answer("first", [(1, 60)]), now);
    for name in ["first", "second"] {
        known.learn(&answer_to(2, name, [(1, 60)]), now);
    }
    known.learn(&answer("second", [(1, 60)]), now);
    for name in 0..MAX_ADDRESSES as u32 + 100 {
        known.learn(&answer(&format!("n{name}"), [(name + 100, 80_000)]), now);
    }
    assert!(["first", "second"].iter().all(|name| known.names.contains_key(*name)));
    assert_eq!(known.iter().count(), MAX_ADDRESSES);
}

#[test]
fn claims_are_bounded() {
    let (mut known, now) = (KnownNames::default(), Instant::now());
    for pod in 1..=9 {
        for name in 0..1000 {
            known.learn(&answer_to(pod, &format!("n{name}"), [(name, 60)]), now);
        }
    }
    assert_eq!(known.iter().count(), 1000);
    let claims = || known.by_pod.values().map(BTreeSet::len);
    assert_eq!(claims().sum::<usize>(), 1000 * MAX_CLAIMS_PER_ADDRESS);
    assert_eq!(claims().count(), 9, "pods with fewer claims replace those with more");
    known.expire(now + MIN_TTL);
    assert_eq!(known, KnownNames::default());
}

#[test]
fn unwanted_names_are_removed() {
    let (mut known, now) = (KnownNames::default(), Instant::now());
    known.learn(&answer("a", [(1, 60)]), now);
    known.learn(&answer("b", [(1, 60), (2, 60)]), now);
    assert_eq!(known.retain(|name| name == "a"), [Change::Remove(Key::Domain("b".into()))]);
    let names: Vec<&str> = known.names_of([0, 0, 0, 1].into()).map(|(name, _)| &**name).collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn records_restore_the_names_until_they_expire() {
    let (mut known, now) = (KnownNames::default(), Instant::now());
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    known.learn(&answer("a.example.com", [(1, 60), (2, 600)]), now);
    let six: IpAddr = "2001:db8::1".parse().unwrap();
    let addresses = [(six, Duration::from_secs(900))].into();
    let pod = [10, 0, 0, 1].into();
    known.learn(&DnsAnswer { pod, name: "b.example.com".into(), addresses }, now);
    let records: Vec<String> = known.records(now, wall).collect();
    assert!(records.iter().all(|record| KnownNames::is_record(record)));
    let more = ["compiling 77", "name", "name x", "name y 1.2.3.4", "name z 1.2.3.4=99999999999"];
    let texts = || records.iter().map(String::as_str).chain(more);
    let passed = Duration::from_secs(100);
    let mut restored = KnownNames::from_records(texts(), now, wall + passed);
    assert_eq!(restored.iter().count(), 3);
    // The address expired while no agent ran.
    assert_eq!(restored.expire(now), [put("a.example.com", &[2])]);
    let left: Vec<String> =
        restored.iter().map(|(name, address, _)| format!("{name} {address}")).collect();
    assert_eq!(left, ["a.example.com 0.0.0.2", "b.example.com 2001:db8::1"]);
    let until = restored.iter().map(|(_, _, until)| until.duration_since(now).as_secs());
    assert!(until.zip([500, 800]).all(|(left, expected)| expected - left <= 1));
}
