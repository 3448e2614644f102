//! JSON values as YAML. Every YAML 1.1 or 1.2 parser reads the same value back.

use serde_json::Value;

/// The value as a YAML document.
pub(crate) fn text(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => block(&mut out, value, 0),
        Value::Array(list) if !list.is_empty() => block(&mut out, value, 0),
        _ => {
            scalar(&mut out, value);
            out.push('\n');
        }
    }
    out
}

/// A map or list that is not empty, from the start of a line.
fn block(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                pad(out, indent);
                string(out, key);
                out.push(':');
                entry(out, value, indent);
            }
        }
        Value::Array(list) => {
            for value in list {
                pad(out, indent);
                out.push('-');
                item(out, value, indent);
            }
        }
        _ => scalar(out, value),
    }
}

/// Writes the value after `key:`. Lists keep the indent of their key.
fn entry(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            block(out, value, indent + 2);
        }
        Value::Array(list) if !list.is_empty() => {
            out.push('\n');
            block(out, value, indent);
        }
        _ => {
            out.push(' ');
            scalar(out, value);
            out.push('\n');
        }
    }
}

/// Writes the value after `-`. The first line of a map or list is on the same line.
fn item(out: &mut String, value: &Value, indent: usize) {
    let nested = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    };
    out.push(' ');
    if nested {
        let mut inner = String::new();
        block(&mut inner, value, indent + 2);
        out.push_str(inner.trim_start());
    } else {
        scalar(out, value);
        out.push('\n');
    }
}

fn scalar(out: &mut String, value: &Value) {
    match value {
        Value::String(text) => string(out, text),
        other => out.push_str(&other.to_string()),
    }
}

fn string(out: &mut String, text: &str) {
    if is_plain(text) {
        return out.push_str(text);
    }
    // A JSON string is also a YAML string, except for line breaks that only YAML recognizes.
    let json = Value::from(text).to_string();
    let escaped = ['\u{85}', '\u{2028}', '\u{2029}', '\u{feff}', '\u{7f}'].into_iter();
    out.push_str(&escaped.fold(json, |json, character| {
        json.replace(character, &format!("\\u{:04x}", u32::from(character)))
    }));
}

/// Whether every YAML parser reads the unquoted text as a string.
fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 10] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"];
    let first = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '/');
    first
        && !text.ends_with(' ')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./ ()*=".contains(c))
        && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}

fn pad(out: &mut String, indent: usize) {
    out.push_str(&" ".repeat(indent));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_lists_and_scalars() {
        let value = json!({
            "name": "web", "port": 80, "yes": "yes", "address": "10.0.0.1", "none": null, "empty": [],
            "list": ["a", 1, {"b": true, "c": {"d": []}}, ["x", ["y"]], {}],
        });
        expect_test::expect![[r#"
            name: web
            port: 80
            "yes": "yes"
            address: "10.0.0.1"
            none: null
            empty: []
            list:
            - a
            - 1
            - b: true
              c:
                d: []
            - - x
              - - "y"
            - {}
        "#]]
        .assert_eq(&text(&value));
    }

    #[test]
    fn ambiguous_strings_are_quoted() {
        for text_value in [
            "", " a", "a ", "a: b", "a #b", "1.5", "0x1f", "No", "- a", "a\nb", "é\u{85}", "*a",
            "&a",
        ] {
            let line = text(&Value::from(text_value));
            assert!(line.starts_with('"') && line.lines().count() == 1, "{line}");
        }
    }

    #[test]
    fn the_output_is_read_back_as_the_same_value() {
        let value = json!({
            "": "", "a b": ["no", "~", "1e3", "0o7", "-", "? x", "a:b", "x: y", "#", "'", "\"", "\t", "tr ue"],
            "nested": [[[]], [{}], [[{"k": [1, -2, true, null]}]], {"a": {"b": {"c": "d"}}, "e": []}],
            "text": "two\nlines\u{85}\u{2028}ü ✓",
            "=": "<<", "*x": "&y", "!t": "%d", "@a": "`b`", "[": "]", "{": "}", "|": ">", ",": "null",
        });
        let (roots, repeats, error) = weir_api::document::documents(text(&value).as_bytes());
        assert!(repeats.is_empty() && error.is_none(), "{error:?}");
        assert_eq!(roots.iter().map(Value::from).collect::<Vec<_>>(), [value]);
    }
}
