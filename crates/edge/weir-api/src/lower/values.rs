//! Typed values of fields: each either has the expected type or is reported.

use std::net::IpAddr;

use weir_model::closest;

use super::LowerContext;
use crate::document::{Tree, TreeValue};

impl LowerContext<'_> {
    /// The elements of a list. Null is an empty list.
    pub(crate) fn list<'t>(&mut self, tree: &'t Tree) -> Option<&'t [Tree]> {
        match &tree.value {
            TreeValue::Seq(items) => Some(items),
            TreeValue::Null => Some(&[]),
            _ => {
                let message = format!("expected a list, found {}", tree.describe());
                self.invalid(tree.line, message, "begin each element with `- `");
                None
            }
        }
    }

    /// Reads all elements of a list. `None` if any of them is invalid; the errors of all are
    /// reported.
    pub(crate) fn each<T>(
        &mut self,
        tree: &Tree,
        mut read: impl FnMut(&mut Self, usize, &Tree) -> Option<T>,
    ) -> Option<Vec<T>> {
        let items = self.list(tree)?;
        let read: Vec<Option<T>> = items
            .iter()
            .enumerate()
            .map(|(index, item)| self.at(index, |ctx| read(ctx, index, item)))
            .collect();
        read.into_iter().collect()
    }

    pub(crate) fn text<'t>(&mut self, tree: &'t Tree) -> Option<&'t str> {
        match &tree.value {
            TreeValue::Str(text) => Some(text),
            _ => {
                let (advice, hint) = if tree.lacks_quotes() {
                    ("; quote it", "write it in double quotes")
                } else {
                    ("", "write a string here")
                };
                let message = format!("expected a string, found {}{advice}", tree.describe());
                self.invalid(tree.line, message, hint);
                None
            }
        }
    }

    /// A whole number from `low` to `high`.
    pub(crate) fn number(&mut self, tree: &Tree, low: i64, high: i64) -> Option<i64> {
        match tree.value {
            TreeValue::Int(number, _) if (low..=high).contains(&number) => Some(number),
            TreeValue::Int(..) | TreeValue::Float(_) => {
                let message = format!(
                    "expected a whole number from {low} to {high}, found {}",
                    tree.describe()
                );
                self.invalid(tree.line, message, format!("choose a number from {low} to {high}"));
                None
            }
            _ => {
                let message =
                    format!("expected a number from {low} to {high}, found {}", tree.describe());
                let hint = match tree.text() {
                    Some(_) => "write the number without quotes",
                    None => "write a number",
                };
                self.invalid(tree.line, message, hint);
                None
            }
        }
    }

    /// A port number.
    pub(crate) fn port(&mut self, tree: &Tree) -> Option<u16> {
        self.number(tree, 1, 65535).and_then(|port| u16::try_from(port).ok())
    }

    pub(crate) fn boolean(&mut self, tree: &Tree) -> Option<bool> {
        match tree.value {
            TreeValue::Bool(value, _) => Some(value),
            _ => {
                let message = format!("expected true or false, found {}", tree.describe());
                self.invalid(tree.line, message, "write true or false, without quotes");
                None
            }
        }
    }

    /// One of several words.
    pub(crate) fn word<T: Copy>(&mut self, tree: &Tree, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.text(tree)?;
        if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*meaning);
        }
        let list: Vec<&'static str> = words.iter().map(|(word, _)| *word).collect();
        // The versions of the admin kinds use different words.
        let renamed = list
            .iter()
            .find(|word| matches!((text, **word), ("Allow", "Accept") | ("Accept", "Allow")));
        let hint = match renamed.copied().or_else(|| closest(text, list.iter().copied())) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("write {}", one_of(&list)),
        };
        let message = format!("expected {}, found {}", one_of(&list), tree.describe());
        self.invalid(tree.line, message, hint);
        None
    }

    /// An address.
    pub(crate) fn address(&mut self, tree: &Tree) -> Option<IpAddr> {
        let text = self.text(tree)?;
        match super::cidr::address(text) {
            Some(address) => Some(address),
            None => {
                let message = format!("expected an IP address, found {}", tree.describe());
                self.invalid(tree.line, message, "write an address such as 10.0.0.1 or fd00::1");
                None
            }
        }
    }
}

/// Words for a sentence: `a, b or c`.
pub(crate) fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).into(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}
