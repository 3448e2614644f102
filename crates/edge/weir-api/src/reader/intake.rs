//! Lowers documents while they are read.

use std::collections::BTreeSet;

use weir_model::{Name, Severity};

use super::{
    DUPLICATE_KEY, ManifestReader, ignore, is_configuration, list_kind, repeated, unreadable,
};
use crate::{
    document::{self, DocumentSink, MapEntry, Repeat, SyntaxError, Tree, TreeValue},
    lower::{self, keep},
};

/// Lowers documents while they are read.
pub(super) struct Intake<'r> {
    reader: &'r mut ManifestReader,
    file: Name,
    list: Option<OpenList>,
    /// The number of findings before the current object.
    reported: usize,
}

impl<'r> Intake<'r> {
    pub(super) fn new(reader: &'r mut ManifestReader, file: Name) -> Self {
        let reported = reader.findings.len();
        Intake { reader, file, list: None, reported }
    }

    /// A repeated key in an object that weir ignores is only a warning. The API server accepts it.
    fn weigh_repeats(&mut self, tree: &Tree) {
        if tree.get("kind").and_then(Tree::text).is_some_and(lower::is_ignored) {
            let recent = self.reader.findings.iter_mut().skip(self.reported);
            recent
                .filter(|finding| finding.code == DUPLICATE_KEY)
                .for_each(|finding| finding.severity = Severity::Warning);
        }
    }
}

/// A list whose elements arrive before its kind.
struct OpenList {
    /// The number of objects before it.
    found: usize,
    /// The number of findings before it.
    findings: usize,
    /// The elements without a kind.
    waiting: Vec<Tree>,
}

impl DocumentSink for Intake<'_> {
    const ITEMS: bool = true;

    fn item(&mut self, head: &[MapEntry], _: usize, mut item: Tree) {
        self.weigh_repeats(&item);
        let reader = &mut *self.reader;
        let list = self.list.get_or_insert_with(|| OpenList {
            found: reader.found.len(),
            findings: reader.findings.len(),
            waiting: Vec::new(),
        });
        let known = list_kind(head);
        if item.get("kind").is_some() || !known.kind.is_empty() {
            reader.add(&self.file, &item, Some(&known));
        } else {
            slim(&mut item);
            list.waiting.push(item);
        }
        // Otherwise the elements may turn out to be a field of another kind of object.
        let is_list =
            document::find(head, "kind").and_then(Tree::text).is_some_and(document::is_list);
        if is_list {
            self.reader.flush();
        }
        self.reported = self.reader.findings.len();
    }

    fn document(&mut self, root: Tree) {
        let list = self.list.take();
        if root.is_null() || is_config_file(&self.file, &root) {
            return;
        }
        self.weigh_repeats(&root);
        self.reader.documents += 1;
        let is_object =
            ["kind", "metadata", "items", "probes"].iter().any(|key| root.get(key).is_some());
        self.reader.objects += usize::from(is_object || !root.items().is_empty());
        match (list, root.get("kind").and_then(Tree::text)) {
            (Some(list), Some(kind)) if document::is_list(kind) => {
                let known = list_kind(root.entries());
                self.reader.report_misplaced_items(&self.file, &root);
                for item in &list.waiting {
                    self.reader.add(&self.file, item, Some(&known));
                }
            }
            (Some(list), _) => {
                self.reader.found.truncate(list.found);
                self.reader.findings.truncate(list.findings);
                self.reader.add(&self.file, &root, None);
            }
            (None, _) => {
                let (root, others) = separate(root);
                self.reader.add(&self.file, &root, None);
                others.iter().for_each(|other| self.reader.add(&self.file, other, None));
            }
        }
        self.reader.flush();
        self.reported = self.reader.findings.len();
    }

    fn repeat(&mut self, repeat: Repeat) {
        keep(&mut self.reader.findings, repeated(&self.file, &repeat));
    }

    fn error(&mut self, error: SyntaxError) {
        self.list = None;
        self.reader.flush();
        self.reader.documents += 1;
        self.reader.objects += 1;
        keep(&mut self.reader.findings, unreadable(&self.file, &error));
        self.reported = self.reader.findings.len();
    }
}

/// Whether a document is the configuration of `weir lint`, which is beside the manifests.
fn is_config_file(file: &str, root: &Tree) -> bool {
    let name = file.rsplit(['/', '\\']).next();
    name == Some("weir.yaml") && is_configuration(root)
}

/// Separates objects that follow each other without `---`, which form one mapping with repeated
/// keys, so that none of them is lost. The first keeps all keys. The others get their first key
/// twice, so that a policy among them is rejected.
fn separate(root: Tree) -> (Tree, Vec<Tree>) {
    let is_kind = |entry: &&MapEntry| &*entry.key == "kind";
    if root.entries().iter().filter(is_kind).count() < 2 {
        return (root, Vec::new());
    }
    let mut parts: Vec<Vec<MapEntry>> = Vec::new();
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
        Some(Tree { line, value: TreeValue::Map(part) })
    });
    let others = others.collect();
    (root, others)
}

/// Removes large parts of a waiting object that lowering never reads.
fn slim(tree: &mut Tree) {
    const BULK: [&str; 11] = [
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
        TreeValue::Map(entries) => {
            entries.retain(|entry| !BULK.contains(&&*entry.key));
            for entry in entries {
                match (&*entry.key, &mut entry.value.value) {
                    ("annotations", TreeValue::Map(all)) => {
                        all.retain(|entry| {
                            lower::ANNOTATIONS.contains(&&*entry.key)
                                || entry.key.starts_with(ignore::PREFIX)
                        });
                    }
                    _ => slim(&mut entry.value),
                }
            }
        }
        TreeValue::Seq(items) => items.iter_mut().for_each(slim),
        _ => (),
    }
}
