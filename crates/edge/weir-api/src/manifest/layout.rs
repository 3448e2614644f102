//! A YAML document to write, with flow or block style per collection.

use std::fmt::Write;

use crate::document::is_plain_text;

/// A part of an object.
#[derive(Clone, Debug)]
pub(super) enum Layout {
    Text(String),
    Number(i64),
    List(Style, Vec<Layout>),
    Map(Style, Vec<(String, Layout)>),
}

/// How a collection is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// On one line: `{a: 1, b: 2}`. Everything inside is on that line too.
    Flow,
    /// One line per entry.
    Block,
}

impl Layout {
    pub(super) fn text(text: impl ToString) -> Self {
        Layout::Text(text.to_string())
    }

    /// A list of texts on one line.
    pub(super) fn texts<T: ToString>(items: impl IntoIterator<Item = T>) -> Self {
        Layout::List(Style::Flow, items.into_iter().map(Layout::text).collect())
    }

    /// A mapping on one line.
    pub(super) fn flow<const N: usize>(entries: [(&str, Layout); N]) -> Self {
        Layout::Map(Style::Flow, entries.map(|(key, value)| (key.to_owned(), value)).into())
    }

    /// A mapping with one line per entry.
    pub(super) fn block<const N: usize>(entries: [(&str, Layout); N]) -> Self {
        Layout::Map(Style::Block, entries.map(|(key, value)| (key.to_owned(), value)).into())
    }

    /// The object as YAML.
    pub(super) fn to_yaml(&self) -> String {
        let mut out = String::new();
        match self {
            Layout::Map(Style::Block, entries) => write_entries(&mut out, entries, 0),
            _ => self.write_flow(&mut out),
        }
        out
    }

    fn write_flow(&self, out: &mut String) {
        match self {
            Layout::Text(text) => out.push_str(&quoted(text)),
            Layout::Number(number) => out.push_str(&number.to_string()),
            Layout::List(_, items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index > 0 { ", " } else { "" });
                    item.write_flow(out);
                }
                out.push(']');
            }
            Layout::Map(_, entries) => {
                out.push('{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    out.push_str(if index > 0 { ", " } else { "" });
                    out.push_str(&quoted(key));
                    out.push_str(": ");
                    value.write_flow(out);
                }
                out.push('}');
            }
        }
    }
}

/// The entries of a mapping. The indentation of the first line is already there.
fn write_entries(out: &mut String, entries: &[(String, Layout)], depth: usize) {
    for (index, (key, value)) in entries.iter().enumerate() {
        if index > 0 {
            indent(out, depth);
        }
        out.push_str(&quoted(key));
        out.push(':');
        match value {
            Layout::Map(Style::Block, inner) if !inner.is_empty() => {
                out.push('\n');
                indent(out, depth + 1);
                write_entries(out, inner, depth + 1);
            }
            Layout::List(Style::Block, items) if !items.is_empty() => {
                out.push('\n');
                write_items(out, items, depth);
            }
            _ => {
                out.push(' ');
                value.write_flow(out);
                out.push('\n');
            }
        }
    }
}

fn write_items(out: &mut String, items: &[Layout], depth: usize) {
    for item in items {
        indent(out, depth);
        out.push_str("- ");
        match item {
            Layout::Map(Style::Block, entries) if !entries.is_empty() => {
                write_entries(out, entries, depth + 1);
            }
            _ => {
                item.write_flow(out);
                out.push('\n');
            }
        }
    }
}

fn indent(out: &mut String, depth: usize) {
    out.extend(std::iter::repeat_n("  ", depth));
}

/// Quotes text unless YAML certainly reads it unquoted as the same string.
fn quoted(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    let network =
        text.contains('/') && text.split(['.', '/']).all(|part| part.parse::<u8>().is_ok());
    if (plain && is_plain_text(text)) || network {
        return text.into();
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() || c > '\u{7e}' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\U{:08x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl From<Layout> for serde_json::Value {
    fn from(layout: Layout) -> Self {
        match layout {
            Layout::Text(text) => text.into(),
            Layout::Number(number) => number.into(),
            Layout::List(_, items) => items.into_iter().map(Self::from).collect(),
            Layout::Map(_, entries) => {
                let entry = |(key, value)| (key, Self::from(value));
                serde_json::Value::Object(entries.into_iter().map(entry).collect())
            }
        }
    }
}
