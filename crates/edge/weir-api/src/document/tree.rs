use std::fmt::Write;

/// A part of a document, with its line.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Tree {
    /// The first line, from 1.
    pub line: u32,
    /// The value.
    pub value: TreeValue,
}

/// A value. Scalars other than strings keep their text, for messages.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum TreeValue {
    /// Nothing, `null` or `~`.
    Null,
    /// A boolean, in any of the spellings of YAML 1.1.
    Bool(bool, Box<str>),
    /// An integer of at most 64 bits.
    Int(i64, Box<str>),
    /// Any other number.
    Float(Box<str>),
    /// Text.
    Str(Box<str>),
    /// A list.
    Seq(Vec<Tree>),
    /// A mapping in its original order. A repeated key occurs twice.
    Map(Vec<MapEntry>),
}

/// One entry of a mapping.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct MapEntry {
    /// The key, as the API server reads it.
    pub key: Box<str>,
    /// The original spelling, if it differs: `on` is the boolean true.
    pub written: Option<Box<str>>,
    /// The line of the key.
    pub line: u32,
    /// The value.
    pub value: Tree,
}

impl Tree {
    /// An empty tree.
    pub fn null(line: u32) -> Self {
        Tree { line, value: TreeValue::Null }
    }

    /// The value under `key`; null counts as missing.
    pub fn get(&self, key: &str) -> Option<&Tree> {
        find(self.entries(), key)
    }

    /// The value under a path of keys; null counts as missing.
    pub fn path(&self, keys: &[&str]) -> Option<&Tree> {
        keys.iter().try_fold(self, |tree, key| tree.get(key))
    }

    /// The entries, if it is a mapping.
    pub fn entries(&self) -> &[MapEntry] {
        match &self.value {
            TreeValue::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The elements, if it is a list.
    pub fn items(&self) -> &[Tree] {
        match &self.value {
            TreeValue::Seq(items) => items,
            _ => &[],
        }
    }

    /// The text, if it is a string.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            TreeValue::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The original text of any scalar.
    pub fn written(&self) -> Option<&str> {
        match &self.value {
            TreeValue::Bool(_, text)
            | TreeValue::Int(_, text)
            | TreeValue::Float(text)
            | TreeValue::Str(text) => Some(text),
            TreeValue::Null | TreeValue::Seq(_) | TreeValue::Map(_) => None,
        }
    }

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        self.value == TreeValue::Null
    }

    /// A description for messages: `the boolean yes`, `a list`.
    pub fn describe(&self) -> String {
        match &self.value {
            TreeValue::Null => "nothing".into(),
            TreeValue::Bool(_, text) => format!("the boolean {text}"),
            TreeValue::Int(_, text) | TreeValue::Float(text) => {
                format!("the number {}", shorten(text))
            }
            TreeValue::Str(text) => format!("the string {}", quote(text)),
            TreeValue::Seq(_) => "a list".into(),
            TreeValue::Map(_) => "a mapping".into(),
        }
    }

    /// Whether it is a scalar that would need quotes to be a string.
    pub fn lacks_quotes(&self) -> bool {
        matches!(self.value, TreeValue::Bool(..) | TreeValue::Int(..) | TreeValue::Float(_))
    }
}

/// The value under `key` in a mapping's entries; null counts as missing.
pub(crate) fn find<'t>(entries: &'t [MapEntry], key: &str) -> Option<&'t Tree> {
    entries.iter().find(|entry| *entry.key == *key).map(|e| &e.value).filter(|v| !v.is_null())
}

/// Text in quotes on one line, shortened if it is long.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in shorten(text).chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn shorten(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    match text.char_indices().nth(MAX_CHARS) {
        None => text.into(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}
