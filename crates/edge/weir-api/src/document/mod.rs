//! Parses YAML and JSON into the same [`Tree`]s, which know their lines.
//!
//! ```text
//!  bytes ─► text ─► yaml ─┐ events
//!                   json ─┴──────► builder ─► DocumentSink: documents, and elements of long lists
//! ```

mod bounded;
mod builder;
mod conversion;
mod deserialize;
mod json;
mod scalar;
mod text;
mod tree;
mod yaml;

pub(crate) use builder::is_list;
pub use tree::{MapEntry, Tree, TreeValue};
pub(crate) use tree::{find, quote};

use builder::{Builder, Dry};

/// The greatest depth of nested collections.
const DEPTH: usize = 128;
/// The size limit of a file.
pub const MAX_BYTES: usize = 512 << 20;

/// Why the rest of a file could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The line where reading stopped, from 1; 0 if nothing was read.
    pub line: u32,
    /// What was found and what was expected.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl SyntaxError {
    fn new(line: u32, message: impl Into<String>, hint: impl Into<String>) -> Self {
        SyntaxError { line, message: message.into(), hint: hint.into() }
    }
}

/// A key that a mapping has more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The key.
    pub key: Box<str>,
    /// The line of the first one.
    pub first: u32,
    /// The line of the other one.
    pub again: u32,
    /// The depth of the mapping: 0 if it is the document.
    pub depth: usize,
}

/// Receives documents and elements as soon as they are complete.
pub(crate) trait DocumentSink {
    /// Whether the sink receives the elements of `items` one by one, so that the whole list is
    /// never in memory.
    const ITEMS: bool;

    /// An element of `items`; `head` is the part of its document before the list.
    fn item(&mut self, head: &[MapEntry], index: usize, item: Tree);
    /// A document, without the elements that the sink already received.
    fn document(&mut self, root: Tree);
    /// A mapping has a key twice. It contains both entries.
    fn repeat(&mut self, repeat: Repeat);
}

/// Reads a file. The sink receives everything before an error.
pub(crate) fn parse(bytes: &[u8], sink: &mut impl DocumentSink) -> Result<(), SyntaxError> {
    let text = text::decode(bytes)?;
    let first = text.trim_start();
    let first = first.strip_prefix("---").unwrap_or(first).trim_start();
    if !first.starts_with(['{', '[']) {
        return yaml::parse(text, &mut Builder::new(sink));
    }
    let is_json = match json::parse(text, &mut Dry) {
        Ok(()) => true,
        // Otherwise it is flow style, JSON with YAML extensions, or broken. Then report the error
        // of the parser that got further.
        Err(in_json) => match yaml::parse(text, &mut Builder::new(&mut Dry)) {
            Ok(()) => false,
            Err(in_yaml) => {
                // YAML reports a missing end in the line after it.
                let last = text.trim_end().lines().count();
                let [in_json, in_yaml] = [in_json, in_yaml]
                    .map(|error| usize::try_from(error.line).map_or(last, |line| line.min(last)));
                in_json > in_yaml || (in_json == in_yaml && looks_like_json(first))
            }
        },
    };
    if is_json {
        json::parse(text, &mut Builder::new(sink))
    } else {
        yaml::parse(text, &mut Builder::new(sink))
    }
}

fn looks_like_json(text: &str) -> bool {
    let mut chars = text.chars().filter(|c| !c.is_whitespace());
    match (chars.next(), chars.next()) {
        (Some('{'), Some(second)) => matches!(second, '"' | '}'),
        (Some('['), Some(second)) => "\"{[]-0123456789tfn".contains(second),
        _ => false,
    }
}

/// All documents of a file up to the first error, the repeated keys, and that error.
pub fn documents(bytes: &[u8]) -> (Vec<Tree>, Vec<Repeat>, Option<SyntaxError>) {
    let mut all = Documents::default();
    let error = parse(bytes, &mut all).err();
    (all.roots, all.repeats, error)
}

/// Calls `each` with the elements of a list's `items` one by one, so that the whole list is never
/// in memory. Returns the rest of the list object.
pub fn items(bytes: &[u8], each: impl FnMut(Tree)) -> Result<Tree, SyntaxError> {
    let mut all = Items { each, rest: Tree::null(1) };
    parse(bytes, &mut all)?;
    Ok(all.rest)
}

struct Items<F> {
    each: F,
    rest: Tree,
}

impl<F: FnMut(Tree)> DocumentSink for Items<F> {
    const ITEMS: bool = true;
    fn item(&mut self, _: &[MapEntry], _: usize, item: Tree) {
        (self.each)(item);
    }
    fn document(&mut self, root: Tree) {
        self.rest = root;
    }
    fn repeat(&mut self, _: Repeat) {}
}

#[derive(Default)]
struct Documents {
    roots: Vec<Tree>,
    repeats: Vec<Repeat>,
}

impl DocumentSink for Documents {
    const ITEMS: bool = false;
    fn item(&mut self, _: &[MapEntry], _: usize, _: Tree) {}
    fn document(&mut self, root: Tree) {
        self.roots.push(root);
    }
    fn repeat(&mut self, repeat: Repeat) {
        self.repeats.push(repeat);
    }
}

/// Whether YAML reads this as a string without quotes.
pub(crate) fn is_plain_text(text: &str) -> bool {
    matches!(scalar::resolve(text), TreeValue::Str(_))
}

#[cfg(test)]
mod tests;
