use std::collections::{BTreeMap, btree_map};

use super::{DEPTH, DocumentSink, MapEntry, Repeat, SyntaxError, Tree, TreeValue, tree};

/// The most values in memory at a time.
const MAX_LIVE: usize = 4_000_000;
/// The most values that the aliases of a file may expand to.
const MAX_EXPANDED: usize = 4_000_000;

/// An event of the YAML or JSON parser.
pub(super) enum ParseEvent {
    DocumentStart,
    /// A single value, and the id of its anchor or 0.
    Scalar(TreeValue, usize),
    /// The plain scalar `<<`.
    Merge,
    Seq(usize),
    Map(usize),
    /// The end of a list or mapping.
    End,
    /// An alias of the value with this anchor.
    Alias(usize),
}

/// Receives events.
pub(super) trait Events {
    fn event(&mut self, event: ParseEvent, line: u32) -> Result<(), SyntaxError>;
}

/// A syntax check: it ignores the content, except for its depth.
#[derive(Default)]
pub(super) struct Dry {
    depth: usize,
}

impl Events for Dry {
    fn event(&mut self, event: ParseEvent, line: u32) -> Result<(), SyntaxError> {
        match event {
            ParseEvent::Seq(_) | ParseEvent::Map(_) if self.depth >= DEPTH => Err(too_deep(line)),
            ParseEvent::Seq(_) | ParseEvent::Map(_) => {
                self.depth += 1;
                Ok(())
            }
            ParseEvent::End => {
                self.depth = self.depth.saturating_sub(1);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Builds trees from events with an explicit stack, within limits.
pub(super) struct Builder<'s, S> {
    sink: &'s mut S,
    stack: Vec<Frame>,
    /// The values with anchors; `None` while a value is incomplete.
    anchors: BTreeMap<usize, Option<Subtree>>,
    live: usize,
    expanded: usize,
}

/// A collection that is being read.
struct Frame {
    line: u32,
    anchor: usize,
    weight: usize,
    height: usize,
    content: Content,
}

enum Content {
    Seq(Vec<Tree>),
    /// The elements go to the sink: their number so far, and the number of values before them.
    Items(usize, usize),
    Map {
        entries: Vec<MapEntry>,
        key: Option<(MapKey, u32)>,
        merged: Vec<MapEntry>,
    },
}

enum MapKey {
    /// The key, and its spelling if that differs.
    Text(Box<str>, Option<Box<str>>),
    Merge,
}

/// A tree with its number of values and its depth.
#[derive(Clone)]
struct Subtree {
    tree: Tree,
    weight: usize,
    height: usize,
}

impl<'s, S: DocumentSink> Builder<'s, S> {
    pub(super) fn new(sink: &'s mut S) -> Self {
        Builder { sink, stack: Vec::new(), anchors: BTreeMap::new(), live: 0, expanded: 0 }
    }

    /// Discards the current document because of an error, which goes to the sink.
    pub(super) fn abort(&mut self, error: SyntaxError) {
        self.stack.clear();
        self.anchors.clear();
        self.live = 0;
        self.sink.error(error);
    }

    fn open(&mut self, content: Content, anchor: usize, line: u32) -> Result<(), SyntaxError> {
        if self.stack.len() >= DEPTH {
            return Err(too_deep(line));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, None);
        }
        self.stack.push(Frame { line, anchor, weight: 1, height: 1, content });
        Ok(())
    }

    /// A new list. If it is the `items` of a list object, its elements go to the sink.
    fn seq(&self, anchor: usize) -> Content {
        if let [
            Frame {
                content: Content::Map { entries, key: Some((MapKey::Text(key, _), _)), .. },
                ..
            },
        ] = &self.stack[..]
        {
            let kind = tree::find(entries, "kind").and_then(Tree::text);
            if S::ITEMS && &**key == "items" && anchor == 0 && kind.is_none_or(is_list) {
                return Content::Items(0, self.live);
            }
        }
        Content::Seq(Vec::new())
    }

    fn close(&mut self, line: u32) -> Result<(), SyntaxError> {
        let Some(frame) = self.stack.pop() else {
            return Err(SyntaxError::new(line, "unexpected end of a collection", ""));
        };
        let value = match frame.content {
            Content::Seq(items) => TreeValue::Seq(items),
            Content::Items(..) => TreeValue::Seq(Vec::new()),
            Content::Map { mut entries, merged, .. } => {
                self.report_repeats(&entries);
                merge(&mut entries, merged);
                TreeValue::Map(entries)
            }
        };
        let tree = Tree { line: frame.line, value };
        self.complete(
            Subtree { tree, weight: frame.weight, height: frame.height },
            frame.anchor,
            line,
        )
    }

    /// Adds a complete tree to its parent.
    fn complete(&mut self, subtree: Subtree, anchor: usize, line: u32) -> Result<(), SyntaxError> {
        if anchor != 0 {
            self.expand(subtree.weight, line)?;
            self.anchors.insert(anchor, Some(subtree.clone()));
        }
        self.live += 1;
        if self.live > MAX_LIVE {
            let message = format!("the document has more than {MAX_LIVE} values");
            return Err(SyntaxError::new(line, message, "split it into several documents"));
        }
        let Subtree { mut tree, weight, height } = subtree;
        let Some((frame, below)) = self.stack.split_last_mut() else {
            self.sink.document(tree);
            self.live = 0;
            return Ok(());
        };
        frame.height = frame.height.max(height + 1);
        match &mut frame.content {
            Content::Seq(items) => {
                frame.weight += weight;
                items.push(tree);
            }
            Content::Items(index, before) => {
                let head = match below.first().map(|root| &root.content) {
                    Some(Content::Map { entries, .. }) => &entries[..],
                    _ => &[],
                };
                self.sink.item(head, *index, tree);
                *index += 1;
                self.live = *before;
            }
            Content::Map { entries, key, merged } => {
                frame.weight += weight;
                match key.take() {
                    None => *key = Some((key_of(tree)?, line)),
                    Some((MapKey::Merge, at)) => merge_source(tree, at, merged)?,
                    Some((MapKey::Text(key, written), at)) => {
                        if tree.is_null() {
                            tree.line = at;
                        }
                        entries.push(MapEntry { key, written, line: at, value: tree });
                    }
                }
            }
        }
        Ok(())
    }

    fn alias(&mut self, id: usize, line: u32) -> Result<(), SyntaxError> {
        let (weight, height) = match self.anchors.get(&id) {
            Some(Some(subtree)) => (subtree.weight, subtree.height),
            Some(None) => {
                let message = "an alias refers to the value that it is a part of";
                return Err(SyntaxError::new(line, message, "write the value out"));
            }
            None => {
                let message = "an alias refers to an anchor of another document";
                return Err(SyntaxError::new(line, message, "write the value out"));
            }
        };
        self.expand(weight, line)?;
        if self.stack.len() + height > DEPTH {
            return Err(too_deep(line));
        }
        self.live += weight;
        match self.anchors.get(&id).cloned().flatten() {
            Some(subtree) => self.complete(subtree, 0, line),
            None => Ok(()),
        }
    }

    fn expand(&mut self, weight: usize, line: u32) -> Result<(), SyntaxError> {
        self.expanded += weight;
        if self.expanded > MAX_EXPANDED {
            let message = format!("aliases expand to more than {MAX_EXPANDED} values");
            return Err(SyntaxError::new(line, message, "write the values out, without anchors"));
        }
        Ok(())
    }

    fn report_repeats(&mut self, entries: &[MapEntry]) {
        let depth = self.stack.len();
        let mut report = |key: &str, first, again| {
            self.sink.repeat(Repeat { key: key.into(), first, again, depth });
        };
        if entries.len() <= 16 {
            for (at, entry) in entries.iter().enumerate() {
                if let Some(first) = entries[..at].iter().find(|e| e.key == entry.key) {
                    report(&entry.key, first.line, entry.line);
                }
            }
            return;
        }
        let mut seen = BTreeMap::new();
        for entry in entries {
            match seen.entry(&*entry.key) {
                btree_map::Entry::Vacant(place) => drop(place.insert(entry.line)),
                btree_map::Entry::Occupied(first) => report(&entry.key, *first.get(), entry.line),
            }
        }
    }
}

impl<S: DocumentSink> Events for Builder<'_, S> {
    fn event(&mut self, event: ParseEvent, line: u32) -> Result<(), SyntaxError> {
        match event {
            ParseEvent::DocumentStart => {
                self.anchors.clear();
                Ok(())
            }
            ParseEvent::Scalar(value, anchor) => self.complete(
                Subtree { tree: Tree { line, value }, weight: 1, height: 1 },
                anchor,
                line,
            ),
            ParseEvent::Merge => match self.stack.last_mut().map(|frame| &mut frame.content) {
                Some(Content::Map { key: key @ None, .. }) => {
                    *key = Some((MapKey::Merge, line));
                    Ok(())
                }
                _ => self.event(ParseEvent::Scalar(TreeValue::Str("<<".into()), 0), line),
            },
            ParseEvent::Seq(anchor) => self.open(self.seq(anchor), anchor, line),
            ParseEvent::Map(anchor) => {
                let content = Content::Map { entries: Vec::new(), key: None, merged: Vec::new() };
                self.open(content, anchor, line)
            }
            ParseEvent::End => self.close(line),
            ParseEvent::Alias(id) => self.alias(id, line),
        }
    }
}

/// Whether objects of this kind contain others in `items`.
pub(crate) fn is_list(kind: &str) -> bool {
    kind.ends_with("List")
}

fn too_deep(line: u32) -> SyntaxError {
    SyntaxError::new(
        line,
        format!("collections nest more than {DEPTH} deep"),
        "flatten the document",
    )
}

/// Converts a key to text. Like the API server, writes numbers and booleans in their canonical
/// spelling.
fn key_of(tree: Tree) -> Result<MapKey, SyntaxError> {
    match tree.value {
        TreeValue::Str(text) | TreeValue::Float(text) => Ok(MapKey::Text(text, None)),
        TreeValue::Bool(value, text) => Ok(meaning(value.to_string(), text)),
        TreeValue::Int(value, text) => Ok(meaning(value.to_string(), text)),
        TreeValue::Null | TreeValue::Seq(_) | TreeValue::Map(_) => {
            let message = format!("the key of a mapping is {}; expected a string", tree.describe());
            Err(SyntaxError::new(tree.line, message, "quote the key"))
        }
    }
}

fn meaning(key: String, written: Box<str>) -> MapKey {
    let differs = *key != *written;
    MapKey::Text(key.into(), differs.then_some(written))
}

fn merge_source(tree: Tree, line: u32, merged: &mut Vec<MapEntry>) -> Result<(), SyntaxError> {
    match tree.value {
        TreeValue::Map(entries) => merged.extend(entries),
        TreeValue::Seq(items) => {
            for item in items {
                match item.value {
                    TreeValue::Map(entries) => merged.extend(entries),
                    _ => return Err(not_mergeable(&item, line)),
                }
            }
        }
        _ => return Err(not_mergeable(&tree, line)),
    }
    Ok(())
}

fn not_mergeable(tree: &Tree, line: u32) -> SyntaxError {
    let message = format!("`<<` merges {}; expected a mapping", tree.describe());
    SyntaxError::new(line, message, "quote the key if it is not a merge key")
}

/// Adds merged entries. The mapping's own key wins, then the first source that has it.
fn merge(entries: &mut Vec<MapEntry>, merged: Vec<MapEntry>) {
    if merged.is_empty() {
        return;
    }
    let mut known: std::collections::BTreeSet<Box<str>> =
        entries.iter().map(|entry| entry.key.clone()).collect();
    for entry in merged {
        if known.insert(entry.key.clone()) {
            entries.push(entry);
        }
    }
}
