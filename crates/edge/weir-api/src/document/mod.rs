//! Parses YAML and JSON into the same [`Tree`]s, which know their lines.
//!
//! ```text
//!  bytes ─► text ─► parts ─► yaml ─┐ events
//!                            json ─┴──────► builder ─► DocumentSink: documents, list elements
//! ```

mod builder;
mod conversion;
mod deserialize;
mod json;
mod scalar;
mod split;
mod text;
mod tree;
mod yaml;

pub(crate) use builder::is_list;
pub use tree::{MapEntry, Tree, TreeValue};
pub(crate) use tree::{find, quote};

use builder::{Builder, Dry};
use split::Part;
pub use split::last_separator;

/// The greatest depth of nested collections.
const DEPTH: usize = 128;
/// The size limit of a file.
pub const MAX_BYTES: usize = 512 << 20;

/// Why a document could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The line where reading stopped, from 1; 0 if nothing was read.
    pub line: u32,
    /// The kind of the object, if the document names exactly one.
    pub kind: Option<Box<str>>,
    /// What was found and what was expected.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl SyntaxError {
    fn new(line: u32, message: impl Into<String>, hint: impl Into<String>) -> Self {
        let (message, hint) = (message.into(), hint.into());
        SyntaxError { line, kind: None, message, hint }
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
    /// The current document cannot be read. The next one follows.
    fn error(&mut self, error: SyntaxError);
}

/// Reads a file, or a part of it that begins at a line. An error concerns only its document, and
/// those after it up to a line `---`.
pub(crate) fn parse(bytes: &[u8], line: u32, sink: &mut impl DocumentSink) {
    let text = match text::decode(bytes) {
        Ok(text) => text,
        Err(mut error) => {
            error.line = error.line.saturating_add(line - 1);
            return sink.error(error);
        }
    };
    let mut builder = Builder::new(sink);
    for part in split::parts(text, line) {
        let parsed = match is_json(part) {
            true => json::parse(part.text, part.line, &mut builder),
            false => yaml::parse(part.text, part.line, &mut builder),
        };
        if let Err(mut error) = parsed {
            error.kind = split::kind(part.text).map(Into::into);
            builder.abort(error);
        }
    }
}

/// Whether to read a part as JSON. Otherwise it is YAML, flow style, or JSON with YAML extensions.
fn is_json(part: Part<'_>) -> bool {
    let first = part.text.trim_start();
    let first = first.strip_prefix("---").unwrap_or(first).trim_start();
    if !first.starts_with(['{', '[']) {
        return false;
    }
    let Err(in_json) = json::parse(part.text, part.line, &mut Dry::default()) else { return true };
    let Err(in_yaml) = yaml::parse(part.text, part.line, &mut Dry::default()) else { return false };
    // It is broken: report the error of the parser that got further.
    in_json.line > in_yaml.line || (in_json.line == in_yaml.line && looks_like_json(first))
}

fn looks_like_json(text: &str) -> bool {
    let mut chars = text.chars().filter(|c| !c.is_whitespace());
    match (chars.next(), chars.next()) {
        (Some('{'), Some(second)) => matches!(second, '"' | '}'),
        (Some('['), Some(second)) => "\"{[]-0123456789tfn".contains(second),
        _ => false,
    }
}

/// All readable documents of a file, the repeated keys, and the first error.
pub fn documents(bytes: &[u8]) -> (Vec<Tree>, Vec<Repeat>, Option<SyntaxError>) {
    let mut all = Documents::default();
    parse(bytes, 1, &mut all);
    (all.roots, all.repeats, all.error)
}

/// Calls `each` with the elements of a list's `items` one by one, so that the whole list is never
/// in memory. Returns the rest of the list object.
pub fn items(bytes: &[u8], each: impl FnMut(Tree)) -> Result<Tree, SyntaxError> {
    let mut all = Items { each, rest: Ok(Tree::null(1)) };
    parse(bytes, 1, &mut all);
    all.rest
}

struct Items<F> {
    each: F,
    rest: Result<Tree, SyntaxError>,
}

impl<F: FnMut(Tree)> DocumentSink for Items<F> {
    const ITEMS: bool = true;
    fn item(&mut self, _: &[MapEntry], _: usize, item: Tree) {
        (self.each)(item);
    }
    fn document(&mut self, root: Tree) {
        if self.rest.is_ok() {
            self.rest = Ok(root);
        }
    }
    fn repeat(&mut self, _: Repeat) {}
    fn error(&mut self, error: SyntaxError) {
        self.rest = Err(error);
    }
}

#[derive(Default)]
struct Documents {
    roots: Vec<Tree>,
    repeats: Vec<Repeat>,
    error: Option<SyntaxError>,
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
    fn error(&mut self, error: SyntaxError) {
        self.error.get_or_insert(error);
    }
}

/// Whether YAML reads this as a string without quotes.
pub(crate) fn is_plain_text(text: &str) -> bool {
    matches!(scalar::resolve(text), TreeValue::Str(_))
}

#[cfg(test)]
mod tests;
