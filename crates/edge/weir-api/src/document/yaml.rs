use saphyr_parser::{Event as Parsed, Parser, ScalarStyle, ScanError, Tag};

use super::{
    SyntaxError, TreeValue,
    bounded::{Ahead, Bounded},
    builder::{Events, ParseEvent},
    scalar,
};

/// Reads a stream of YAML documents.
pub(super) fn parse(text: &str, events: &mut impl Events) -> Result<(), SyntaxError> {
    let ahead = Ahead::default();
    let mut parser = Parser::new(Bounded::new(text, ahead.clone()));
    let mut last = 1;
    loop {
        let (event, span) = match parser.next_event() {
            None => return Ok(()),
            Some(_) if ahead.is_too_far() => return Err(too_long(last)),
            Some(Ok(parsed)) => parsed,
            Some(Err(error)) => return Err(explain(text, &error)),
        };
        ahead.reset();
        let line = line(span.start.line());
        last = line;
        let event = match event {
            Parsed::StreamEnd => return Ok(()),
            Parsed::Nothing | Parsed::StreamStart | Parsed::DocumentEnd => continue,
            Parsed::DocumentStart(_) => ParseEvent::DocumentStart,
            Parsed::Alias(id) => ParseEvent::Alias(id),
            Parsed::SequenceStart(anchor, _) => ParseEvent::Seq(anchor),
            Parsed::MappingStart(anchor, _) => ParseEvent::Map(anchor),
            Parsed::SequenceEnd | Parsed::MappingEnd => ParseEvent::End,
            Parsed::Scalar(text, style, anchor, tag) => {
                match (style, tag.as_deref().map(is_text)) {
                    (ScalarStyle::Plain, None) if text == "<<" && anchor == 0 => ParseEvent::Merge,
                    (ScalarStyle::Plain, None | Some(false)) => {
                        ParseEvent::Scalar(scalar::resolve(&text), anchor)
                    }
                    _ => ParseEvent::Scalar(TreeValue::Str(text.into()), anchor),
                }
            }
        };
        events.event(event, line).map_err(|error| suspect_template(text, error))?;
    }
}

fn too_long(line: u32) -> SyntaxError {
    let message = "a collection in brackets is too long";
    SyntaxError::new(line, message, "write it as a block, with `- ` and `key:` lines")
}

fn is_text(tag: &Tag) -> bool {
    tag.suffix == "str" || (tag.handle.is_empty() && tag.suffix == "!")
}

fn line(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn explain(text: &str, error: &ScanError) -> SyntaxError {
    let line = line(error.marker().line());
    let column = error.marker().col() + 1;
    let message = format!("this is not YAML: {} (column {column})", error.info());
    let hint = if line_of(text, line).is_some_and(|l| l.trim_start_matches(' ').starts_with('\t')) {
        "indent with spaces; YAML does not allow tabs there"
    } else {
        "check indentation, quotes and brackets around this line"
    };
    suspect_template(text, SyntaxError::new(line, message, hint))
}

/// Adds a hint about templates, the most common reason why a manifest is not YAML.
fn suspect_template(text: &str, mut error: SyntaxError) -> SyntaxError {
    let near = error.line.saturating_sub(2)..=error.line;
    if near.into_iter().any(|at| line_of(text, at).is_some_and(|line| line.contains("{{"))) {
        error.hint =
            "this looks like a template: render it first, for example with `helm template`".into();
    }
    error
}

fn line_of(text: &str, line: u32) -> Option<&str> {
    text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?)
}
