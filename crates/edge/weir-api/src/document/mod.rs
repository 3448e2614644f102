//! Bytes to trees: YAML and JSON become the same [`Tree`]s, each with the line it was written in.
//!
//! ```text
//!  bytes ─► text ─► yaml ─┐ events
//!                   json ─┴──────► builder ─► Sink: documents, and the elements of long lists one by one
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
pub use tree::{Entry, Tree, Value};
pub(crate) use tree::{find, quote};

use builder::{Builder, Dry};

/// How deep collections may nest.
const DEPTH: usize = 128;
/// The largest file that is read.
pub const MAX_BYTES: usize = 512 << 20;

/// Why a file could not be read further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The line where reading stopped, from 1; 0 if it never began.
    pub line: u32,
    /// What is wrong and what was expected.
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
    /// How many collections the mapping is in: 0 if it is the document.
    pub depth: usize,
}

/// Takes in what is read, as soon as it is complete.
pub(crate) trait Sink {
    /// Whether the elements of a document's `items` are handed over one by one, so that the whole is never in memory.
    const ITEMS: bool;

    /// An element of `items`; `head` is what of its document came before.
    fn item(&mut self, head: &[Entry], index: usize, item: Tree);
    /// A document. If its items were handed over, they are no longer in it.
    fn document(&mut self, root: Tree);
    /// A mapping has a key twice. Both entries are in it.
    fn repeat(&mut self, repeat: Repeat);
}

/// Reads a file. What came before an error has reached the sink.
pub(crate) fn read(bytes: &[u8], sink: &mut impl Sink) -> Result<(), SyntaxError> {
    let text = text::decode(bytes)?;
    let first = text.trim_start();
    let first = first.strip_prefix("---").unwrap_or(first).trim_start();
    if !first.starts_with(['{', '[']) {
        return yaml::read(text, &mut Builder::new(sink));
    }
    let is_json = match json::read(text, &mut Dry) {
        Ok(()) => true,
        // Otherwise it is flow style, or JSON with the liberties that YAML takes, or broken: then the one that got
        // further was the one that was meant, and tells where the fault is.
        Err(in_json) => match yaml::read(text, &mut Builder::new(&mut Dry)) {
            Ok(()) => false,
            Err(in_yaml) => {
                // What is missing at the end, YAML misses in the line behind it.
                let last = text.trim_end().lines().count();
                let [in_json, in_yaml] = [in_json, in_yaml]
                    .map(|error| usize::try_from(error.line).map_or(last, |line| line.min(last)));
                in_json > in_yaml || (in_json == in_yaml && looks_like_json(first))
            }
        },
    };
    match is_json {
        true => json::read(text, &mut Builder::new(sink)),
        false => yaml::read(text, &mut Builder::new(sink)),
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

/// All documents of a file, as far as it can be read, and what is wrong with it.
pub fn documents(bytes: &[u8]) -> (Vec<Tree>, Vec<Repeat>, Option<SyntaxError>) {
    let mut all = Documents::default();
    let error = read(bytes, &mut all).err();
    (all.roots, all.repeats, error)
}

/// Hands over the elements of a list's `items` one by one, so that the whole is never in memory, and returns the rest of it.
pub fn items(bytes: &[u8], each: impl FnMut(Tree)) -> Result<Tree, SyntaxError> {
    let mut all = Items { each, rest: Tree::null(1) };
    read(bytes, &mut all)?;
    Ok(all.rest)
}

struct Items<F> {
    each: F,
    rest: Tree,
}

impl<F: FnMut(Tree)> Sink for Items<F> {
    const ITEMS: bool = true;
    fn item(&mut self, _: &[Entry], _: usize, item: Tree) {
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

impl Sink for Documents {
    const ITEMS: bool = false;
    fn item(&mut self, _: &[Entry], _: usize, _: Tree) {}
    fn document(&mut self, root: Tree) {
        self.roots.push(root);
    }
    fn repeat(&mut self, repeat: Repeat) {
        self.repeats.push(repeat);
    }
}

/// Whether YAML reads this as text when it is written without quotes.
pub(crate) fn is_plain_text(text: &str) -> bool {
    matches!(scalar::resolve(text), Value::Str(_))
}

#[cfg(test)]
mod tests;
