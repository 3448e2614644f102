#![cfg(unix)]

use std::{
    fs,
    sync::mpsc::{self, Receiver},
};

use tempfile::TempDir;
use weir_model::World;

use super::*;

fn pod(name: &str, address: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop}}\nstatus: {{podIP: {address}}}\n---\n"
    )
}

fn policy(name: &str, app: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{podSelector: {{matchLabels: {{app: {app}}}}}}}\n---\n"
    )
}

/// A manifest without objects.
const NOTHING: &str = "{apiVersion: v1, kind: List, items: []}";

/// A folder on a disk, and the world that results from its events.
struct Bench {
    disk: TempDir,
    folder: Folder,
    world: World,
    last: SourceEvent,
}

impl Bench {
    fn new() -> Self {
        let disk = tempfile::tempdir().unwrap();
        let folder = Folder::new(disk.path());
        Bench { disk, folder, world: World::default(), last: SourceEvent::default() }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.disk.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Scans the folder. Returns the names of the current pods and policies.
    fn scan(&mut self) -> Vec<String> {
        // A missing file counts as removed only after a delay.
        let now = SystemTime::now();
        self.folder.scan(now, |_| WriteState::Done);
        self.folder.scan(now + REMOVAL_DELAY, |_| WriteState::Done);
        if let Some(event) = self.folder.next_event() {
            event.changes.iter().for_each(|change| self.world.apply(change.clone()));
            self.last = event;
        }
        names(&self.world)
    }

    fn unread(&self) -> Vec<String> {
        let root = format!("{}/", self.disk.path().display());
        let text = |finding: &Finding| {
            let location = finding.location.as_ref().unwrap().to_string();
            format!("{} {}", location.replace(&root, ""), finding.code)
        };
        self.last.unread.iter().map(text).collect()
    }
}

fn names(world: &World) -> Vec<String> {
    let pods = world.pods.keys().map(|id| id.name.to_string());
    pods.chain(world.policies.keys().map(|id| id.name.to_string())).collect()
}

#[test]
fn files_are_added_changed_and_removed() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &pod("a", "10.0.0.1"));
    bench.write("b.yaml", &pod("b", "10.0.0.2"));
    assert_eq!(bench.scan(), ["a", "b"]);
    assert!(bench.last.in_sync && bench.last.unread.is_empty());
    assert!(bench.world.namespaces.contains_key("shop"), "a mentioned namespace exists");
    bench.write("b.yaml", &(pod("b", "10.0.0.3") + &policy("p", "b")));
    assert_eq!(bench.scan(), ["a", "b", "p"]);
    assert_eq!(bench.last.changes.len(), 2, "only changed objects: {:?}", bench.last.changes);
    fs::remove_file(bench.disk.path().join("a.yaml")).unwrap();
    assert_eq!(bench.scan(), ["b", "p"]);
    bench.folder.scan(SystemTime::now(), |_| WriteState::Unknown);
    assert_eq!(bench.folder.next_event(), None, "there is no event without a change");
}

#[test]
fn the_last_valid_version_of_a_broken_file_stays_in_effect() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &(pod("a", "10.0.0.1") + &policy("p", "a")));
    bench.write("b.yaml", &pod("b", "10.0.0.2"));
    bench.scan();
    bench.write("a.yaml", &(pod("a", "10.0.0.1") + "kind: ["));
    bench.write("b.yaml", &pod("c", "10.0.0.3"));
    assert_eq!(bench.scan(), ["a", "c", "p"], "other files are still read");
    assert_eq!(bench.unread(), ["a.yaml:6 syntax"]);
    assert!(bench.last.in_sync);
    bench.write("a.yaml", &policy("p", "{}").replace("podSelector", "podselector"));
    assert_eq!(bench.scan(), ["a", "c", "p"], "like an object that the API server rejects");
    assert!(!bench.last.unread.is_empty());
    bench.write("a.yaml", &policy("p", "b"));
    assert_eq!(bench.scan(), ["c", "p"]);
    assert_eq!(bench.unread(), [""; 0]);
}

#[test]
fn the_folder_is_in_sync_once_every_file_was_read() {
    let mut bench = Bench::new();
    assert_eq!(bench.scan(), [""; 0]);
    assert_eq!(bench.unread().len(), 1, "a folder without manifests may not be mounted yet");
    bench.write("a.yaml", &pod("a", "10.0.0.1"));
    bench.write("b.yaml", "kind: [");
    assert_eq!(bench.scan(), ["a"]);
    assert!(!bench.last.in_sync);
    assert_eq!(bench.unread(), ["b.yaml:1 syntax"]);
    bench.write("b.yaml", NOTHING);
    assert!(bench.folder.read_if_changed(&bench.disk.path().join("b.yaml")));
    assert!(bench.folder.next_event().unwrap().in_sync);
    bench.write("c.yaml", "kind: [");
    bench.scan();
    assert!(bench.last.in_sync && !bench.last.unread.is_empty(), "later errors are only reported");
}

#[test]
fn the_readable_documents_of_a_new_file_take_effect() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &(pod("a", "10.0.0.1") + "kind: [\n---\n" + &policy("p", "a")));
    assert_eq!(bench.scan(), ["a", "p"]);
    assert!(!bench.last.in_sync && bench.last.is_partial);
    assert_eq!(bench.unread(), ["a.yaml:6 syntax"]);
    bench.write("a.yaml", &(pod("c", "10.0.0.3") + "kind: [\n"));
    assert_eq!(bench.scan(), ["a", "c", "p"], "nothing is removed by a file that is incomplete");
    bench.write("a.yaml", &pod("a", "10.0.0.1"));
    assert_eq!(bench.scan(), ["a"]);
    assert!(bench.last.in_sync && !bench.last.is_partial);
}

#[test]
fn an_error_in_an_object_that_is_ignored_is_a_warning() {
    for config in ["kind: ConfigMap\ndata: [\n---\n", "kind: Secret\na: 1\na: 2\n---\n"] {
        let mut bench = Bench::new();
        bench.write("a.yaml", &(config.to_owned() + &pod("a", "10.0.0.1")));
        assert_eq!((bench.scan(), bench.unread()), (vec!["a".into()], vec![]));
        assert!(bench.last.in_sync);
        let severities: Vec<Severity> =
            bench.last.findings.iter().map(|one| one.severity).collect();
        assert_eq!(severities, [Severity::Warning]);
    }
}

#[test]
fn a_file_without_objects_does_not_replace_its_last_valid_version() {
    let nothing = [
        ("", "a.yaml says-nothing"),
        ("# later\n---\n# perhaps\n", "a.yaml says-nothing"),
        ("just a moment\n", "a.yaml:1 not-an-object"),
        ("<html><body>502</body></html>\n", "a.yaml:1 not-an-object"),
        ("replicas: 5\n", "a.yaml:1 not-an-object"),
        ("- 5\n", "a.yaml:1 not-an-object"),
    ];
    for (text, unread) in nothing {
        let mut bench = Bench::new();
        bench.write("a.yaml", text);
        bench.write("b.yaml", &pod("b", "10.0.0.2"));
        assert_eq!((bench.scan(), bench.unread()), (vec!["b".into()], vec![unread.into()]));
        assert!(!bench.last.in_sync, "{text:?} from the start");
        bench.write("a.yaml", &pod("a", "10.0.0.1"));
        bench.scan();
        bench.write("a.yaml", text);
        assert_eq!(bench.scan(), ["a", "b"], "{text:?}");
        assert_eq!(bench.unread(), [unread]);
        bench.write("a.yaml", NOTHING);
        assert_eq!((bench.scan(), bench.unread()), (vec!["b".into()], vec![]));
    }
}

#[test]
fn a_policy_that_was_never_valid_allows_nothing() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &policy("p", "a").replace("spec: {", "spec: {ingress: [{frm: []}], "));
    assert_eq!(bench.scan(), ["p"]);
    assert!(bench.last.in_sync && !bench.last.unread.is_empty());
    let policy = bench.world.policies.values().next().unwrap();
    let rules = policy.spec.ingress.iter().flatten();
    assert!(rules.clone().all(|rule| rule.peers.as_ref().is_some_and(Vec::is_empty)), "{policy:?}");
}

#[test]
fn files_that_cannot_be_listed_stay_in_effect() {
    let mut bench = Bench::new();
    bench.write("deep/a.yaml", &pod("a", "10.0.0.1"));
    bench.write("b.yaml", &pod("b", "10.0.0.2"));
    bench.scan();
    fs::remove_file(bench.disk.path().join("deep/a.yaml")).unwrap();
    let link = bench.disk.path().join("deep/a.yaml");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    fs::remove_file(bench.disk.path().join("b.yaml")).unwrap();
    assert_eq!(bench.scan(), ["a"]);
    assert_eq!(bench.unread(), ["deep/a.yaml unreadable"]);
    fs::remove_file(link).unwrap();
    assert_eq!(bench.scan(), ["a"], "an empty folder may not be mounted yet");
    fs::remove_dir_all(bench.disk.path()).unwrap();
    assert_eq!(bench.scan(), ["a"]);
    bench.write("c.yaml", &pod("c", "10.0.0.3"));
    assert_eq!(bench.scan(), ["c"]);
}

#[test]
fn a_policy_in_two_files_allows_nothing_in_any_order() {
    for order in [["a.yaml", "b.yaml"], ["b.yaml", "a.yaml"]] {
        let mut bench = Bench::new();
        for file in order {
            bench.write(file, &(pod("x", "10.0.0.1") + &policy("p", file)));
            bench.scan();
        }
        let subject = &bench.world.policies.values().next().unwrap().spec.subject;
        assert!(subject.pods.is_everything(), "two policies that differ are both obeyed");
        assert_eq!(bench.unread(), ["b.yaml:6 duplicate-object"], "the pods are equal");
        assert_eq!(bench.last.findings.len(), 2);
        assert!(
            bench.last.unread[0]
                .message
                .ends_with("the policy allows nothing until one is removed")
        );
        fs::remove_file(bench.disk.path().join("a.yaml")).unwrap();
        bench.scan();
        assert!(bench.last.findings.is_empty());
    }
}

/// The first address of the only pod.
fn address(bench: &mut Bench) -> String {
    bench.scan();
    let pod = bench.world.pods.values().next();
    pod.map_or(String::new(), |pod| pod.addresses[0].to_string())
}

#[test]
fn a_version_that_conflicts_with_another_file_does_not_take_effect() {
    let mut bench = Bench::new();
    bench.write("b.yaml", &pod("x", "10.0.0.2"));
    assert_eq!(address(&mut bench), "10.0.0.2");
    bench.write("a.yaml", &(pod("x", "10.0.0.1") + &policy("p", "a")));
    assert_eq!(address(&mut bench), "10.0.0.2", "even if its name sorts first");
    assert_eq!(names(&bench.world), ["x"], "none of its objects is in effect");
    assert_eq!(bench.unread(), ["a.yaml:1 conflicting-object"]);
    bench.write("b.yaml", &pod("x", "10.0.0.1"));
    assert_eq!(address(&mut bench), "10.0.0.1", "they agree");
    assert_eq!(bench.unread(), [""; 0]);
    bench.write("a.yaml", &pod("x", "10.0.0.3"));
    assert_eq!(address(&mut bench), "10.0.0.1");
    bench.write("a.yaml", "kind: [");
    assert_eq!(address(&mut bench), "10.0.0.1");
    assert_eq!(bench.unread(), ["a.yaml:1 syntax"]);
    bench.write("a.yaml", &pod("x", "10.0.0.3"));
    assert_eq!(address(&mut bench), "10.0.0.1");
    fs::remove_file(bench.disk.path().join("b.yaml")).unwrap();
    assert_eq!(address(&mut bench), "10.0.0.3", "the conflict is gone");
    assert_eq!(bench.unread(), [""; 0]);
    bench.write("a.yaml", NOTHING);
    bench.write("c.yaml", &pod("x", "10.0.0.4"));
    assert_eq!(address(&mut bench), "10.0.0.4", "the pod moved to another file");
    bench.write("a.yaml", &pod("x", "10.0.0.5"));
    bench.write("c.yaml", NOTHING);
    assert_eq!((address(&mut bench), bench.unread()), ("10.0.0.5".into(), vec![]), "and back");
}

#[test]
fn the_folder_is_not_in_sync_while_two_files_conflict() {
    let node = |label: &str| {
        format!("{{apiVersion: v1, kind: Node, metadata: {{name: n1, labels: {{a: {label}}}}}}}")
    };
    let space = |label: &str| node(label).replace("Node", "Namespace");
    for [one, other] in [
        [pod("x", "10.0.0.1"), pod("x", "10.0.0.2")],
        [node("a"), node("b")],
        [space("a"), space("b")],
    ] {
        let mut bench = Bench::new();
        bench.write("a.yaml", &one);
        bench.write("b.yaml", &other);
        assert_eq!(bench.scan(), [""; 0]);
        assert!(!bench.last.in_sync);
        let unread = ["a.yaml:1 conflicting-object", "b.yaml:1 conflicting-object"];
        assert_eq!(bench.unread(), unread);
        bench.write("b.yaml", &one);
        bench.scan();
        assert!(bench.last.in_sync && bench.last.unread.is_empty());
    }
}

#[test]
fn a_declared_namespace_replaces_a_mentioned_one() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &pod("a", "10.0.0.1"));
    let declared =
        "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: shop}}}";
    bench.write("b.yaml", declared);
    bench.scan();
    assert_eq!(bench.world.namespaces["shop"].labels.len(), 2);
    fs::remove_file(bench.disk.path().join("b.yaml")).unwrap();
    bench.scan();
    assert_eq!(bench.world.namespaces["shop"].labels.len(), 1);
}

#[test]
fn pods_without_address_and_node_are_ignored() {
    let mut bench = Bench::new();
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}}";
    let deployment = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: b, namespace: shop}, spec: {selector: {}, template: {metadata: {labels: {a: b}}}}}";
    bench.write("a.yaml", &format!("{pod}\n---\n{deployment}"));
    assert_eq!(bench.scan(), [""; 0]);
    let scheduled = pod.replace("}}", ", uid: u-1}, spec: {nodeName: n1}}");
    bench.write("a.yaml", &format!("{scheduled}\n---\n{deployment}"));
    assert_eq!(bench.scan(), ["a"]);
    let a = bench.world.pods.values().next().unwrap();
    assert_eq!((a.addresses.len(), a.uid.as_deref()), (0, Some("u-1")));
}

#[test]
fn a_file_that_is_being_written_is_not_read() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &pod("a", "10.0.0.1"));
    bench.scan();
    bench.write("a.yaml", NOTHING);
    bench.folder.scan(SystemTime::now(), |_| WriteState::Busy);
    let event = bench.folder.next_event().unwrap();
    assert!(event.more_expected && event.changes.is_empty());
    bench.folder.scan(SystemTime::now(), |_| WriteState::Unknown);
    assert!(bench.folder.more_expected, "it is too young");
    bench.folder.scan(SystemTime::now() + QUIET_PERIOD / 2, |_| WriteState::Unknown);
    assert!(bench.folder.more_expected, "its writer may only pause");
    bench.folder.scan(SystemTime::now() + QUIET_PERIOD, |_| WriteState::Unknown);
    assert_eq!(bench.folder.next_event().unwrap().changes.len(), 2, "the pod and its namespace");
}

#[test]
fn a_file_that_is_written_all_the_time_is_read_occasionally() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &pod("a", "10.0.0.1"));
    bench.scan();
    let start = SystemTime::now();
    let mut pods = Vec::new();
    for (seconds, name) in [(0, "b"), (30, "c"), (61, "d")] {
        bench.write("a.yaml", &pod(name, "10.0.0.1"));
        let now = start + Duration::from_secs(seconds);
        let file = fs::File::options().write(true).open(bench.disk.path().join("a.yaml")).unwrap();
        file.set_modified(now).unwrap();
        bench.folder.scan(now, |_| WriteState::Unknown);
        let changes = bench.folder.next_event().map_or(Vec::new(), |event| event.changes);
        changes.into_iter().for_each(|change| bench.world.apply(change));
        pods.push(names(&bench.world).join(" "));
    }
    assert_eq!(pods, ["a", "a", "d"]);
}

#[test]
fn a_new_file_is_read_when_it_is_a_second_old() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &pod("a", "10.0.0.1"));
    bench.folder.scan(SystemTime::now() + Duration::from_millis(500), |_| WriteState::Unknown);
    assert!(!bench.folder.next_event().unwrap().in_sync, "its writer may not have finished");
    bench.folder.scan(SystemTime::now() + NEW_FILE_AGE, |_| WriteState::Unknown);
    assert!(bench.folder.next_event().unwrap().in_sync);
}

#[test]
fn a_file_that_is_missing_briefly_is_not_removed() {
    let mut bench = Bench::new();
    bench.write("a.yaml", &pod("a", "10.0.0.1"));
    bench.write("b.yaml", &pod("b", "10.0.0.2"));
    bench.write("c.yaml", &pod("c", "10.0.0.2"));
    bench.scan();
    let start = SystemTime::now();
    let changes_at = |bench: &mut Bench, millis| {
        bench.folder.scan(start + Duration::from_millis(millis), |_| WriteState::Done);
        bench.folder.next_event().map_or(0, |event| event.changes.len())
    };
    fs::remove_file(bench.disk.path().join("a.yaml")).unwrap();
    assert_eq!(changes_at(&mut bench, 0), 0);
    bench.write("a.yaml", &pod("a", "10.0.0.1"));
    assert_eq!(changes_at(&mut bench, 600), 0, "it is back unchanged");
    fs::remove_file(bench.disk.path().join("a.yaml")).unwrap();
    assert_eq!(changes_at(&mut bench, 700), 0);
    fs::remove_file(bench.disk.path().join("b.yaml")).unwrap();
    assert_eq!(changes_at(&mut bench, 1000), 0);
    assert_eq!(changes_at(&mut bench, 1300), 0, "another file disappeared meanwhile");
    assert_eq!(changes_at(&mut bench, 1500), 2, "both are removed together");
}

#[test]
fn a_file_is_read_when_its_writer_has_finished() {
    use std::io::Write;
    let disk = tempfile::tempdir().unwrap();
    let path = disk.path().join("a.yaml");
    fs::write(&path, pod("a", "10.0.0.1")).unwrap();
    let (sender, events) = mpsc::channel();
    let _watch = FolderWatch::start(disk.path(), move |event| sender.send(event).is_ok()).unwrap();
    let mut world = World::default();
    wait_for(&events, &mut world, &["a"]);
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(pod("b", "10.0.0.2").as_bytes()).unwrap();
    while let Ok(event) = events.recv_timeout(Duration::from_millis(2500)) {
        assert_eq!(event.changes, [], "the file is only half written");
    }
    file.write_all(pod("c", "10.0.0.3").as_bytes()).unwrap();
    drop(file);
    let closed = std::time::Instant::now();
    wait_for(&events, &mut world, &["b", "c"]);
    assert!(closed.elapsed() < Duration::from_secs(2), "{:?}", closed.elapsed());
}

/// Applies events until the pods are these.
#[track_caller]
fn wait_for(events: &Receiver<SourceEvent>, world: &mut World, expected: &[&str]) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while names(world) != expected {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let event = events.recv_timeout(left).unwrap_or_else(|_| panic!("still {world:?}"));
        event.changes.into_iter().for_each(|change| world.apply(change));
    }
}

#[test]
fn a_watch_reports_edits_swapped_links_and_a_recreated_folder() {
    let disk = tempfile::tempdir().unwrap();
    let root = disk.path().join("manifests");
    // Kubernetes mounts a ConfigMap like this: the file names lead through a link that is swapped.
    let generation = |name: &str, text: &str| {
        fs::create_dir_all(root.join(name)).unwrap();
        fs::write(root.join(name).join("a.yaml"), text).unwrap();
        std::os::unix::fs::symlink(name, root.join("..tmp")).unwrap();
        fs::rename(root.join("..tmp"), root.join("..data")).unwrap();
    };
    generation("..1", &pod("a", "10.0.0.1"));
    std::os::unix::fs::symlink("..data/a.yaml", root.join("a.yaml")).unwrap();
    let (sender, events) = mpsc::channel();
    let watch = FolderWatch::start(&root, move |event| sender.send(event).is_ok()).unwrap();
    let mut world = World::default();
    wait_for(&events, &mut world, &["a"]);
    generation("..2", &pod("b", "10.0.0.2"));
    wait_for(&events, &mut world, &["b"]);
    fs::write(root.join("c.yaml"), pod("c", "10.0.0.3")).unwrap();
    wait_for(&events, &mut world, &["b", "c"]);
    let start = std::time::Instant::now();
    fs::write(root.join("c.yaml"), pod("d", "10.0.0.3")).unwrap();
    wait_for(&events, &mut world, &["b", "d"]);
    assert!(start.elapsed() < Duration::from_secs(5), "notified, not polled");
    fs::remove_dir_all(&root).unwrap();
    fs::create_dir(&root).unwrap();
    fs::write(root.join("e.yaml"), pod("e", "10.0.0.4")).unwrap();
    wait_for(&events, &mut world, &["e"]);
    fs::write(root.join("e.yaml"), pod("f", "10.0.0.4")).unwrap();
    wait_for(&events, &mut world, &["f"]);
    while events.recv_timeout(Duration::from_millis(300)).is_ok() {}
    watch.reload();
    let event = events.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(event.changes.is_empty() && event.in_sync, "a reload sends an event without changes");
}
