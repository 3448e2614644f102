//! Reads YAML as kubectl does: with the grammar of libyaml, from which kubectl's parser is derived.
//!
//! ```text
//!  text ─► Scanner ─► tokens ─► Parser ─► events ─► Events
//! ```
//!
//! Like kubectl, and unlike libyaml, it reads `{a:}` as the key `a:` and `[!!str, a]` as one value.
//! It also reads some text that kubectl rejects: `[a?b]`, `"\/"`, and documents of YAML 1.2.

mod block_scalar;
mod cursor;
mod flow_scalar;
mod parser;
mod properties;
mod scan;

use std::collections::BTreeMap;

use super::{
    SyntaxError, TreeValue,
    builder::{Events, ParseEvent},
    scalar,
};
use cursor::ScanError;
use parser::{Event, Parser, Tag};

/// Reads YAML documents from a part of a file, whose first line has this number.
pub(super) fn parse<'t>(
    text: &'t str,
    line: u32,
    events: &mut impl Events,
) -> Result<(), SyntaxError> {
    let near = Near { text, line };
    if let Some(at) = control_character(text) {
        let breaks = text[..at].matches('\n').count();
        let line = line.saturating_add(u32::try_from(breaks).unwrap_or(u32::MAX));
        let message = "this is not YAML: found a control character";
        return Err(SyntaxError::new(
            line,
            message,
            "remove it, or write it as an escape sequence in double quotes",
        ));
    }
    let mut parser = Parser::new(text, line);
    // The numbers of the anchors of the document, from 1.
    let mut anchors: BTreeMap<&'t str, usize> = BTreeMap::new();
    let mut count = 0;
    while let Some(parsed) = parser.next_event() {
        let (event, mark) = parsed.map_err(|error| near.explain(&error))?;
        let mut number = |name: Option<&'t str>| match name {
            None => 0,
            Some(name) => {
                count += 1;
                anchors.insert(name, count);
                count
            }
        };
        let event = match event {
            Event::DocumentStart => {
                anchors.clear();
                ParseEvent::DocumentStart
            }
            Event::Alias(name) => match anchors.get(name) {
                Some(number) => ParseEvent::Alias(*number),
                None => {
                    let message =
                        format!("this document has no anchor `&{name}` before the alias `*{name}`");
                    let hint = "write the value out, or quote text that begins with `*`";
                    return Err(near.suspect_template(SyntaxError::new(mark.line, message, hint)));
                }
            },
            Event::Seq(anchor) => ParseEvent::Seq(number(anchor)),
            Event::Map(anchor) => ParseEvent::Map(number(anchor)),
            Event::End => ParseEvent::End,
            Event::Scalar { text, is_plain: true, tag: None, anchor: None } if text == "<<" => {
                ParseEvent::Merge
            }
            Event::Scalar { text, is_plain, tag, anchor } => {
                let is_text = match tag {
                    None => !is_plain,
                    Some(tag) => tag == Tag::Text,
                };
                let value =
                    if is_text { TreeValue::Str(text.into()) } else { scalar::resolve(&text) };
                ParseEvent::Scalar(value, number(anchor))
            }
        };
        events.event(event, mark.line).map_err(|error| near.suspect_template(error))?;
    }
    Ok(())
}

/// The position of the first character that YAML does not allow.
fn control_character(text: &str) -> Option<usize> {
    // Most text has no byte that could be a part of one.
    let is_suspect = |byte: &u8| matches!(byte, 0..=8 | 11 | 12 | 14..=31 | 0x7f | 0xc2 | 0xef);
    let first = text.as_bytes().iter().position(is_suspect)?;
    let is_bad = |c: char| match c {
        '\t' | '\n' | '\r' | '\u{85}' => false,
        '\u{fffe}' | '\u{ffff}' => true,
        c => c.is_control(),
    };
    text.get(first..)?.find(is_bad).map(|at| first + at)
}

/// The text around an error.
struct Near<'t> {
    text: &'t str,
    line: u32,
}

impl Near<'_> {
    fn explain(&self, error: &ScanError) -> SyntaxError {
        let ScanError { mark, message, start } = error;
        let before = self.text.get(..mark.at).unwrap_or("");
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        let mut message = format!("this is not YAML: {message} (column {column})");
        if let Some(start) = start.filter(|start| start.line != mark.line) {
            message.push_str(&format!("; the value begins in line {}", start.line));
        }
        let has_tab = |text: &str| text.trim_start_matches(' ').starts_with('\t');
        let hint = if self.line(mark.line).is_some_and(has_tab) {
            "indent with spaces; YAML does not allow tabs there"
        } else {
            "check indentation, quotes and brackets around this line"
        };
        self.suspect_template(SyntaxError::new(mark.line, message, hint))
    }

    /// Adds a hint about templates, the most common reason why a manifest is not YAML.
    fn suspect_template(&self, mut error: SyntaxError) -> SyntaxError {
        let near = error.line.saturating_sub(2)..=error.line;
        if near.into_iter().any(|at| self.line(at).is_some_and(|line| line.contains("{{"))) {
            error.hint =
                "this looks like a template: render it first, for example with `helm template`"
                    .into();
        }
        error
    }

    fn line(&self, line: u32) -> Option<&str> {
        self.text.lines().nth(usize::try_from(line.checked_sub(self.line)?).ok()?)
    }
}

#[cfg(test)]
mod tests;
