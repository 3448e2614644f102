//! A second parser, which follows libyaml line by line, reads the same text in the same way.

use proptest::prelude::*;

use super::{
    cursor::ScanError,
    parser::{Event, Parser, Tag},
};

/// The events of a text, or the error.
fn events(text: &str) -> Result<Vec<String>, ScanError> {
    let mut parser = Parser::new(text, 1);
    let mut all = Vec::new();
    while let Some(parsed) = parser.next_event() {
        let (event, mark) = parsed?;
        let name = |anchor: Option<&str>| anchor.map_or(String::new(), |name| format!(" &{name}"));
        all.push(match event {
            Event::DocumentStart => "document".into(),
            Event::Alias(name) => format!("{}: *{name}", mark.line),
            Event::Seq(anchor) => format!("{}: list{}", mark.line, name(anchor)),
            Event::Map(anchor) => format!("{}: mapping{}", mark.line, name(anchor)),
            Event::End => "end".into(),
            Event::Scalar { text, is_plain, tag, anchor } => {
                let is_text = tag.map_or(!is_plain, |tag| tag == Tag::Text);
                // Only the line of a value with text is of interest.
                let line = if text.is_empty() { 0 } else { mark.line };
                format!("{line}: {text:?} {is_text}{}", name(anchor))
            }
        });
    }
    Ok(all)
}

/// The events according to the second parser, or its error.
fn reference(text: &str) -> Result<Vec<String>, String> {
    use libyaml_safer::{EventData, ScalarStyle};
    let mut input = text.as_bytes();
    let mut parser = libyaml_safer::Parser::new();
    parser.set_input_string(&mut input);
    let mut all = Vec::new();
    loop {
        let event = parser.parse().map_err(|error| error.to_string())?;
        let line = event.start_mark.line + 1;
        let name =
            |anchor: Option<String>| anchor.map_or(String::new(), |name| format!(" &{name}"));
        all.push(match event.data {
            EventData::StreamStart { .. } | EventData::DocumentEnd { .. } => continue,
            EventData::StreamEnd => return Ok(all),
            EventData::DocumentStart { .. } => "document".into(),
            EventData::Alias { anchor } => format!("{line}: *{anchor}"),
            EventData::SequenceStart { anchor, .. } => format!("{line}: list{}", name(anchor)),
            EventData::MappingStart { anchor, .. } => format!("{line}: mapping{}", name(anchor)),
            EventData::SequenceEnd | EventData::MappingEnd => "end".into(),
            EventData::Scalar { anchor, tag, value, style, .. } => {
                let is_plain = style == ScalarStyle::Plain;
                let is_text = match tag.as_deref() {
                    Some(tag) => !tag.ends_with(":int"),
                    None => !is_plain,
                };
                let line = if value.is_empty() { 0 } else { line };
                format!("{line}: {value:?} {is_text}{}", name(anchor))
            }
        });
    }
}

#[track_caller]
fn compare(text: &str) {
    match (events(text), reference(text)) {
        (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text:?}"),
        (Err(_), Err(_)) => (),
        // kubectl reads `{a:}`, and weir too.
        (Ok(_), Err(error)) if error.contains("unexpected ':'") => (),
        (found, expected) => panic!("{text:?}: {found:?}, expected {expected:?}"),
    }
}

/// The idioms that other parsers of YAML reject. They occur in manifests of kubernetes/website,
/// istio/istio, k8snetworkplumbingwg/multus-cni and np-guard/netpol-analyzer.
#[test]
fn idioms_of_public_manifests_are_read() {
    for text in [
        "spec:\n    args: [\n      \"x\"\n    ]\n    next: 1\n",
        "spec:\n    args: [\n      \"x\",\n    ]\n",
        "args: [\n  'x', y\n]\n",
        "env: {\n  a: \"1\"\n}\n",
        "- args: [\n  \"x\"\n  ]\n- b\n",
        "spec:\n  config: '{\n  \"type\": \"x\"\n  }'\n  next: 1\n",
        "spec:\n  config: '{\n\"type\": \"x\",\n\n\"list\": [\n]\n}'\n",
        "spec:\n  config: \"a\nb\\\n  c\"\n",
        "args: [\n\t\t\"a\",\n\t\tb]\n",
        "a:\tb\nc:\t\t\"d\"\n",
        "a: b\t# comment\nc: d \t\n",
        "a:\n- b\n-\n  c: d\n- - e\n  - f\n",
        "key with spaces: a\n\"quoted\" : b\n? explicit\n: c\n",
        "a: 'it''s'\nb: \"\\u00e9\\x41\\t\"\n",
        "a: |\n  one\n   two\n\n  three\nb: >-\n  one\n  two\n\n  three\nc: |+\n  one\n\nd: |2\n    x\n",
        "a: one\n  two\n\n  three\nb: http://x:80/?a=b#c\n",
        "a: {b: c, d, \"e\":f, g: [h: i]}\n",
        "a: &x\n  b: 1\nc: *x\nd: &y e\n",
        "a: !!str 5\nb: ! 6\nc: !!int \"7\"\n",
        "--- a\n---\n...\n--- |\n b\n--- {a: b}\n",
        "a:\r\n  - b\r\n  - 'c\r\n    d'\r\n",
        "a: [b,\n# comment\n c]\n",
    ] {
        assert!(events(text).is_ok(), "{text:?}: {:?}", events(text));
        compare(text);
    }
}

#[test]
fn broken_text_is_rejected() {
    for text in [
        "a:\n\tb: 1\n",
        "-\ta\n",
        "a: [b\nc: d\n",
        "a: 'b\n---\nc: d\n",
        "a: b: c\n",
        "a: \"b\" c\n",
        "- a\nb: c\n",
        "a: b\n  c: d\n",
        "a:\n  - b\n c\n",
        "a: @b\n",
        "a: \"\\q\"\n",
        "a: |x\n b\n",
        "a: ]\n",
        "a\nb: c\n",
        "a: *\n",
        "%FOO\n---\na\n",
        "a: 1\n...\nb: 2\n",
    ] {
        assert!(events(text).is_err(), "{text:?}: {:?}", events(text));
        compare(text);
    }
}

#[test]
fn a_key_ends_after_1024_characters() {
    for (length, fits) in [(1000, true), (1022, true), (1030, false)] {
        for key in ["k", "é"] {
            let text = format!("{}: v\n", key.repeat(length));
            assert_eq!(events(&text).is_ok(), fits, "{length}");
        }
    }
}

/// Where weir follows kubectl instead of libyaml.
#[test]
fn kubectl_is_followed_where_it_differs_from_libyaml() {
    let scalars = |text| -> Vec<String> {
        let all = events(text).unwrap();
        all.into_iter().filter(|event| event.contains('"')).collect()
    };
    assert_eq!(scalars("{a:}"), ["1: \"a:\" false", "0: \"\" false"]);
    assert_eq!(scalars("[a:,b]"), ["1: \"a:\" false", "1: \"b\" false"]);
    assert_eq!(scalars("[!!str, b]"), ["1: \"b\" true"]);
}

const FRAGMENTS: &[&str] = &[
    "a",
    "b c",
    "key: ",
    "k:\n",
    "k:\t",
    "- ",
    "-\t",
    "-",
    "? ",
    ": ",
    ":",
    "\n",
    "\n",
    "\n ",
    "\n  ",
    "\n    ",
    "\n\t",
    "\n \t",
    "\n- ",
    "\n  - ",
    "\nk: ",
    "\n  k: ",
    " ",
    "\t",
    "[",
    "]",
    "{",
    "}",
    ",",
    ", ",
    "\"x\"",
    "'y'",
    "\"x\n y\"",
    "'{\n\"t\": 1\n}'",
    "\"a\\nb\"",
    "\"\\\n ",
    "'",
    "\"",
    "|\n",
    "|-\n",
    ">\n",
    ">+\n",
    "|1\n",
    "\n  text",
    "\n   more",
    " # c",
    "#",
    "&a ",
    "*a",
    " *a ",
    "!!str ",
    "! ",
    "!!int ",
    "---\n",
    "\n---\n",
    "\n--- ",
    "\n...\n",
    "<<: ",
    "\r\n",
    "\r",
    "é",
    "\u{85}",
    "\u{2028}",
    "\\",
    "~",
    "@",
    "`",
    "%",
    "|",
    ">",
    "http://x:80",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn any_text_is_read_as_by_libyaml(
        parts in proptest::collection::vec(proptest::sample::select(FRAGMENTS), 0..24),
    ) {
        compare(&(parts.concat() + "\n"));
    }

    #[test]
    fn any_manifest_is_read_as_by_libyaml(value in value(), seed in any::<u64>()) {
        let mut text = String::new();
        let mut style = Style(seed);
        write_block(&value, 0, &mut style, &mut text);
        compare(&(text + "\n"));
    }
}

/// A document, for the law.
#[derive(Clone, Debug)]
enum Value {
    Text(String),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
}

fn value() -> impl Strategy<Value = Value> {
    let text = "[a-c:#' \"\\n\\t,\\[\\]{}-]{0,12}";
    let leaf = text.prop_map(Value::Text);
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
            proptest::collection::vec(("[a-d]{1,3}", inner), 0..4).prop_map(Value::Map),
        ]
    })
}

/// Choices of layout, in a fixed order.
struct Style(u64);

impl Style {
    fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let index = (self.0 >> 33) as usize % choices.len();
        choices[index]
    }
}

fn write_block(value: &Value, indent: usize, style: &mut Style, out: &mut String) {
    let margin = " ".repeat(indent);
    match value {
        Value::Text(text) => write_scalar(text, indent, style, out),
        Value::List(items) if !items.is_empty() && style.pick(&["block", "flow"]) == "block" => {
            for item in items {
                out.push_str(&format!("{margin}-{}", style.pick(&[" ", "  ", "\t", "\n"])));
                if out.ends_with('\n') {
                    out.push_str(&" ".repeat(indent + 2));
                }
                write_flow(item, style, out);
                out.push_str(style.pick(&["\n", "\n", " # c\n", "\n\n", "\t\n", "\r\n"]));
            }
        }
        Value::Map(entries) if !entries.is_empty() && style.pick(&["block", "flow"]) == "block" => {
            for (key, value) in entries {
                let quote = style.pick(&["", "", "'", "\""]);
                out.push_str(&format!("{margin}{quote}{key}{quote}:"));
                if let Value::Text(_) = value {
                    out.push_str(style.pick(&[" ", "  ", "\t", " \t"]));
                    write_block(value, indent, style, out);
                    out.push('\n');
                } else {
                    out.push('\n');
                    let deeper = style.pick(&["", " ", "  ", "    "]).len();
                    write_block(value, indent + deeper, style, out);
                }
            }
        }
        _ => {
            out.push_str(&margin);
            write_flow(value, style, out);
            out.push('\n');
        }
    }
}

fn write_scalar(text: &str, indent: usize, style: &mut Style, out: &mut String) {
    let quote = style.pick(&["", "'", "\"", "|", ">-"]);
    match quote {
        "|" | ">-" => {
            let margin = " ".repeat(indent + 1);
            out.push_str(&format!(
                "{quote}\n{margin}{}",
                text.replace('\n', &format!("\n{margin}"))
            ));
        }
        "'" => out.push_str(&format!("'{}'", text.replace('\'', "''"))),
        "\"" => out.push_str(&format!("\"{}\"", text.replace('"', "\\\""))),
        _ => out.push_str(text),
    }
}

fn write_flow(value: &Value, style: &mut Style, out: &mut String) {
    const GAPS: [&str; 6] = ["", " ", "\n", "\n  ", "\n\t", " # c\n "];
    match value {
        Value::Text(text) => {
            let quote = style.pick(&["", "'", "\""]);
            out.push_str(&format!("{quote}{}{quote}", text.replace(['\'', '"'], "")));
        }
        Value::List(items) => {
            out.push('[');
            for (n, item) in items.iter().enumerate() {
                out.push_str(if n > 0 { "," } else { "" });
                out.push_str(style.pick(&GAPS));
                write_flow(item, style, out);
            }
            out.push_str(style.pick(&["]", "\n]", ",]", " ]"]));
        }
        Value::Map(entries) => {
            out.push('{');
            for (n, (key, value)) in entries.iter().enumerate() {
                out.push_str(if n > 0 { "," } else { "" });
                out.push_str(style.pick(&GAPS));
                out.push_str(&format!("{key}:{}", style.pick(&[" ", "\t", "\n "])));
                write_flow(value, style, out);
            }
            out.push_str(style.pick(&["}", "\n}", ",}", " }"]));
        }
    }
}
