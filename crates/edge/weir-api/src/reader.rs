use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{Finding, Location, Name, Object, PodId, PolicyId, Severity};

use crate::{
    document::{self, Entry, Repeat, Sink, SyntaxError, Tree, Value},
    lower::{self, ListKind, Lowered, MISPLACED, NOT_AN_OBJECT, Names, Stranger, TOO_MANY, keep},
    settle,
};

/// What manifests say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifests {
    /// The objects of the model, sorted by kind and name: namespaces, nodes, pods, policies.
    pub objects: Vec<Object>,
    /// What is wrong with the input, in the order it was read.
    pub findings: Vec<Finding>,
    /// The pods of each workload.
    pub owners: BTreeMap<Owner, Vec<PodId>>,
    /// The policies that a controller made, and for which object, as in `Memcached shop/cache`.
    pub makers: BTreeMap<PolicyId, Name>,
    /// The addresses that were made up for pods that had none.
    pub made_up: BTreeSet<IpAddr>,
}

impl Manifests {
    /// The findings that mean that something is not in `objects`, or not where it belongs: the rest of a file that could
    /// not be read, an object whose kind is missing or misspelt, objects in a list that is none, a policy whose namespace
    /// cannot be read, one of two objects of one name that differ, and whatever came after the last finding that was kept.
    ///
    /// An answer about the world is a guess while there are any.
    pub fn missing(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| match finding.code {
            SYNTAX | TOO_MANY | MISPLACED | settle::CONFLICT => true,
            UNKNOWN_KIND => finding.severity >= Severity::Warning,
            // Of a list: the field of an object says which.
            UNKNOWN_FIELD => finding.object.is_none(),
            NOT_AN_OBJECT => finding.severity == Severity::Error,
            _ => false,
        })
    }
}

impl Manifests {
    /// The same, read from a cluster and not from files: nothing is made up, and nothing has a place.
    pub fn of_cluster(mut self) -> Self {
        let made_up = std::mem::take(&mut self.made_up);
        for object in &mut self.objects {
            lower::without_location(object);
            if let Object::Pod(pod) = object {
                pod.addresses.retain(|address| !made_up.contains(address));
            }
        }
        self.findings.iter_mut().for_each(|finding| finding.location = None);
        self
    }
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The namespace it lives in.
    pub namespace: Name,
    /// Its kind in lower case, as in `deployment`.
    pub kind: Name,
    /// Its name.
    pub name: Name,
}

/// Reads manifests, file by file.
#[derive(Debug, Default)]
pub struct Reader {
    names: Names,
    found: Vec<Lowered>,
    findings: Vec<Finding>,
    unknown: BTreeSet<Name>,
    documents: usize,
}

impl Reader {
    /// A reader that has read nothing.
    pub fn new() -> Self {
        Reader::default()
    }

    /// Reads one file. What is wrong with it is a finding; what came before a syntax error stays.
    pub fn read(&mut self, file: Name, bytes: &[u8]) {
        let mut intake = Intake { reader: self, file: file.clone(), list: None };
        if let Err(error) = document::read(bytes, &mut intake) {
            keep(&mut self.findings, unreadable(&file, &error));
        }
    }

    /// How many documents were read that say anything, be it that there is nothing, as an empty list does.
    pub fn documents(&self) -> usize {
        self.documents
    }

    /// Puts together what was read: pods for workloads, namespaces that are only mentioned, addresses.
    pub fn finish(self) -> Manifests {
        settle::settle(self.found, self.findings)
    }

    fn take(&mut self, file: &Name, tree: &Tree, list: Option<&ListKind>) {
        let kind = tree.get("kind").and_then(Tree::text);
        if kind.is_some_and(document::is_list) && tree.get("items").is_some() {
            let inner = list_kind(tree.entries());
            self.stray(file, tree);
            for item in tree.get("items").map_or(&[][..], Tree::items) {
                self.take(file, item, Some(&inner));
            }
            return;
        }
        if kind.is_some_and(document::is_list) && self.stray(file, tree) {
            return;
        }
        let may_be_list = |entry: &Entry| is_items(&entry.key);
        if let Some(kind) = kind.filter(|kind| !document::is_list(kind))
            && tree.entries().iter().any(may_be_list)
            && let Some(meant) = lower::meant_list(kind)
        {
            self.near(file, kind, tree.line, &format!("kind: {meant}"));
            return;
        }
        match lower::lower(file, &mut self.names, &mut self.findings, tree, list) {
            Some(Lowered::Unknown { kind, line, stranger }) => match stranger {
                Stranger::Near(meant) => self.near(file, &kind, line, &meant),
                Stranger::Policy => self.skip(file, kind, line, true),
                Stranger::Other => self.skip(file, kind, line, false),
            },
            Some(lowered) => self.found.push(lowered),
            None => (),
        }
    }

    /// A kind that is nearly one of ours.
    fn near(&mut self, file: &Name, kind: &str, line: u32, meant: &str) {
        let location = Location { file: file.clone(), line };
        let message = format!("there is no kind {kind}; the object was not read");
        let hint = format!("did you mean `{meant}`?");
        let finding = general(location, UNKNOWN_KIND, message, hint);
        keep(&mut self.findings, Finding { severity: Severity::Warning, ..finding });
    }

    /// Reports what is in a list under a key that is nearly `items`, or is no list there. Whether there is any.
    fn stray(&mut self, file: &Name, list: &Tree) -> bool {
        let before = self.findings.len();
        for Entry { key, line, value, .. } in list.entries() {
            let location = Location { file: file.clone(), line: *line };
            if &**key != "items" && is_items(key) {
                let key = document::quote(key);
                let message =
                    format!("there is no field {key} in a list; its objects were not read");
                let finding =
                    general(location, UNKNOWN_FIELD, message, "did you mean `items`?".into());
                keep(&mut self.findings, finding);
            } else if &**key == "items" && !matches!(value.value, Value::Seq(_) | Value::Null) {
                let found = value.describe();
                let message =
                    format!("expected a list of objects in `items`, found {found}; it was skipped");
                let hint = "begin each object with `- `".into();
                keep(&mut self.findings, general(location, NOT_AN_OBJECT, message, hint));
            }
        }
        self.findings.len() > before
    }

    /// Kinds that are not read are named once.
    fn skip(&mut self, file: &Name, kind: Name, line: u32, is_policy: bool) {
        if self.unknown.insert(kind.clone()) {
            let location = Location { file: file.clone(), line };
            let (severity, code, message, hint) = match is_policy {
                true => (
                    Severity::Warning,
                    FOREIGN_POLICY,
                    format!("policies of the kind {kind} are not read; answers do not know them"),
                    "keep in mind that such policies may deny or allow more",
                ),
                false => (
                    Severity::Info,
                    UNKNOWN_KIND,
                    format!("objects of the kind {kind} are not read"),
                    "nothing to do, unless it was meant to be a policy",
                ),
            };
            let finding = general(location, code, message, hint.into());
            keep(&mut self.findings, Finding { severity, ..finding });
        }
    }
}

/// Whether a key is `items`, or nearly.
fn is_items(key: &str) -> bool {
    key.eq_ignore_ascii_case("items") || key.eq_ignore_ascii_case("item")
}

/// The code of a finding about a kind that is not read: a warning if it is nearly one that is.
const UNKNOWN_KIND: &str = "unknown-kind";

/// The code of a finding about policies of others, which are known not to be read: unlike with a misspelt kind, nothing of
/// ours is missing.
const FOREIGN_POLICY: &str = "foreign-policy";

/// The code of a finding about a field that is not known.
const UNKNOWN_FIELD: &str = "unknown-field";

/// The code of a finding about a file that could not be read to its end.
const SYNTAX: &str = "syntax";

/// A finding for a file that could not be read to its end.
pub(crate) fn unreadable(file: &Name, error: &SyntaxError) -> Finding {
    let location = Location { file: file.clone(), line: error.line };
    let message = format!("{}; the file was not read from there on", error.message);
    general(location, SYNTAX, message, error.hint.clone())
}

/// A finding for a key that a mapping has twice.
pub(crate) fn repeated(file: &Name, repeat: &Repeat) -> Finding {
    let Repeat { key, first, again, depth } = repeat;
    let location = Location { file: file.clone(), line: *again };
    if *depth == 0 && &**key == "kind" {
        let message = format!(
            "the key \"kind\" is there twice, in lines {first} and {again}: a second object seems to follow without `---`"
        );
        let hint = "write `---` on a line of its own between the two objects".into();
        return general(location, "duplicate-key", message, hint);
    }
    let key = document::quote(key);
    let message = format!("the key {key} is there twice, in lines {first} and {again}");
    general(location, "duplicate-key", message, "remove one of the two".into())
}

/// An error that is about no object in particular.
fn general(location: Location, code: &'static str, message: String, hint: String) -> Finding {
    let (location, object, field) = (Some(location), None, String::new());
    Finding { location, code, severity: Severity::Error, object, field, message, hint }
}

/// Lowers documents as they are read.
struct Intake<'r> {
    reader: &'r mut Reader,
    file: Name,
    list: Option<OpenList>,
}

/// A list whose elements come one by one, before it is known to be one.
struct OpenList {
    /// How much had been found before it.
    found: usize,
    findings: usize,
    /// Elements that do not say their kind.
    waiting: Vec<Tree>,
}

impl Sink for Intake<'_> {
    const ITEMS: bool = true;

    fn item(&mut self, head: &[Entry], _: usize, mut item: Tree) {
        let reader = &mut *self.reader;
        let list = self.list.get_or_insert_with(|| OpenList {
            found: reader.found.len(),
            findings: reader.findings.len(),
            waiting: Vec::new(),
        });
        let known = list_kind(head);
        if item.get("kind").is_some() || !known.kind.is_empty() {
            reader.take(&self.file, &item, Some(&known));
        } else {
            slim(&mut item);
            list.waiting.push(item);
        }
    }

    fn document(&mut self, root: Tree) {
        let list = self.list.take();
        if root.is_null() {
            return;
        }
        self.reader.documents += 1;
        match (list, root.get("kind").and_then(Tree::text)) {
            (Some(list), Some(kind)) if document::is_list(kind) => {
                let known = list_kind(root.entries());
                self.reader.stray(&self.file, &root);
                for item in &list.waiting {
                    self.reader.take(&self.file, item, Some(&known));
                }
            }
            (Some(list), _) => {
                self.reader.found.truncate(list.found);
                self.reader.findings.truncate(list.findings);
                self.reader.take(&self.file, &root, None);
            }
            (None, _) => {
                let (root, others) = apart(root);
                self.reader.take(&self.file, &root, None);
                others.iter().for_each(|other| self.reader.take(&self.file, other, None));
            }
        }
    }

    fn repeat(&mut self, repeat: Repeat) {
        keep(&mut self.reader.findings, repeated(&self.file, &repeat));
    }
}

/// Objects that follow each other without `---` are one mapping with keys that are there twice: takes them apart, so that
/// none of them vanishes. The first keeps all keys, and the others the key they begin with twice, so that a policy among
/// them is known to be refused.
fn apart(root: Tree) -> (Tree, Vec<Tree>) {
    let is_kind = |entry: &&Entry| &*entry.key == "kind";
    if root.entries().iter().filter(is_kind).count() < 2 {
        return (root, Vec::new());
    }
    let mut parts: Vec<Vec<Entry>> = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in root.entries() {
        if parts.is_empty() || !seen.insert(&entry.key) {
            seen = BTreeSet::from([&entry.key]);
            parts.push(Vec::new());
        }
        parts.last_mut().into_iter().for_each(|part| part.push(entry.clone()));
    }
    let others = parts.into_iter().skip(1).filter_map(|mut part| {
        let first = part.first()?.clone();
        let line = first.line;
        part.push(first);
        Some(Tree { line, value: Value::Map(part) })
    });
    let others = others.collect();
    (root, others)
}

/// What a list says about its elements: a `PodList` holds Pods.
fn list_kind(entries: &[Entry]) -> ListKind {
    let text = |key| document::find(entries, key).and_then(Tree::text);
    let kind = text("kind").and_then(|kind| kind.strip_suffix("List")).unwrap_or("");
    ListKind { api_version: text("apiVersion").map(Into::into), kind: kind.into() }
}

/// Takes out the bulk of an object that has to wait and that nobody will ask for.
fn slim(tree: &mut Tree) {
    const BULK: [&str; 12] = [
        "annotations",
        "args",
        "command",
        "conditions",
        "containerStatuses",
        "env",
        "ephemeralContainers",
        "images",
        "initContainerStatuses",
        "managedFields",
        "volumeMounts",
        "volumes",
    ];
    match &mut tree.value {
        Value::Map(entries) => {
            entries.retain(|entry| !BULK.contains(&&*entry.key));
            entries.iter_mut().for_each(|entry| slim(&mut entry.value));
        }
        Value::Seq(items) => items.iter_mut().for_each(slim),
        _ => (),
    }
}

#[cfg(test)]
mod tests;
