use expect_test::{Expect, expect};

use super::{Tree, TreeValue, documents};

/// Checks the documents, one per line, and then the errors.
#[track_caller]
fn check(text: &str, expected: Expect) {
    let (roots, repeats, error) = documents(text.as_bytes());
    let mut out: String = roots.iter().map(|root| show(root) + "\n").collect();
    out.extend(
        repeats.iter().map(|r| format!("twice: {} in {} and {}\n", r.key, r.first, r.again)),
    );
    out.extend(error.map(|e| format!("error in {}: {} ({})\n", e.line, e.message, e.hint)));
    expected.assert_eq(&out);
}

/// A tree with its lines, as in `{1 a: 1 5, 2 b: [2 null]}`.
fn show(tree: &Tree) -> String {
    let join = |parts: Vec<String>| parts.join(", ");
    let value = match &tree.value {
        TreeValue::Null => "null".into(),
        TreeValue::Bool(value, _) => value.to_string(),
        TreeValue::Int(number, _) => number.to_string(),
        TreeValue::Float(text) => format!("float {text}"),
        TreeValue::Str(text) => format!("{text:?}"),
        TreeValue::Seq(items) => format!("[{}]", join(items.iter().map(show).collect())),
        TreeValue::Map(entries) => {
            let entries =
                entries.iter().map(|e| format!("{} {}: {}", e.line, e.key, show(&e.value)));
            format!("{{{}}}", join(entries.collect()))
        }
    };
    format!("{} {value}", tree.line)
}

#[test]
fn yaml_and_json_give_the_same_tree() {
    check(
        "a: 1\nb:\n- x\n- null\n- {c: true}\n",
        expect![[r#"
        1 {1 a: 1 1, 2 b: 3 [3 "x", 4 null, 5 {5 c: 5 true}]}
    "#]],
    );
    check(
        "{\"a\": 1,\n\"b\": [\n\"x\", null,\n{\"c\": true}]}",
        expect![[r#"
        1 {1 a: 1 1, 2 b: 2 [3 "x", 3 null, 4 {4 c: 4 true}]}
    "#]],
    );
}

#[test]
fn a_file_can_contain_several_documents_or_none() {
    check("", expect![[""]]);
    check("# only a comment\n", expect![[""]]);
    check(
        "---\na: 1\n---\n---\nb: 2\n...\n",
        expect![[r#"
        2 {2 a: 2 1}
        4 null
        5 {5 b: 5 2}
    "#]],
    );
    check(
        "{\"a\": 1}\n{\"b\": 2}\n[]",
        expect![[r#"
        1 {1 a: 1 1}
        2 {2 b: 2 2}
        3 []
    "#]],
    );
    check(
        "\u{feff}a: 1\r\nb: 2\r\n",
        expect![[r#"
        1 {1 a: 1 1, 2 b: 2 2}
    "#]],
    );
}

#[test]
fn quotes_and_tags_make_text() {
    check(
        "- \"80\"\n- 'yes'\n- !!str 5\n- ! no\n- |\n  5\n- !!int \"80\"\n- !other 5\n",
        expect![[r#"
            1 [1 "80", 2 "yes", 3 "5", 4 "no", 5 "5\n", 7 80, 8 "5"]
        "#]],
    );
}

#[test]
fn keys_are_text_like_in_the_api_server() {
    check(
        "80: a\nyes: b\n1.50: c\n\"0x10\": d\n0x10: e",
        expect![[r#"
        1 {1 80: 1 "a", 2 true: 2 "b", 3 1.50: 3 "c", 4 0x10: 4 "d", 5 16: 5 "e"}
    "#]],
    );
    check(
        "[a]: b",
        expect![[r#"
            error in 1: the key of a mapping is a list; expected a string (quote the key)
        "#]],
    );
    check(
        "? \n: b",
        expect![[r#"
            error in 1: the key of a mapping is nothing; expected a string (quote the key)
        "#]],
    );
}

#[test]
fn anchors_and_merge_keys_are_expanded() {
    check(
        "a: &x {k: 1, l: 2}\nb: *x\nc:\n  <<: *x\n  l: 3\nd:\n  <<: [{k: 4}, *x]\n",
        expect![[r#"
            1 {1 a: 1 {1 k: 1 1, 1 l: 1 2}, 2 b: 1 {1 k: 1 1, 1 l: 1 2}, 3 c: 4 {5 l: 5 3, 1 k: 1 1}, 6 d: 7 {7 k: 7 4, 1 l: 1 2}}
        "#]],
    );
    check(
        "a: {<<: 5}",
        expect![[r#"
        error in 1: `<<` merges the number 5; expected a mapping (quote the key if it is not a merge key)
    "#]],
    );
    check(
        "\"<<\": 5",
        expect![[r#"
        1 {1 <<: 1 5}
    "#]],
    );
    check(
        "a: &x 1\n---\nb: *x",
        expect![[r#"
            1 {1 a: 1 1}
            error in 3: this document has no anchor `&x` before the alias `*x` (write the value out, or quote text that begins with `*`)
        "#]],
    );
    check(
        "a: *missing",
        expect![[r#"
            error in 1: this document has no anchor `&missing` before the alias `*missing` (write the value out, or quote text that begins with `*`)
        "#]],
    );
}

#[test]
fn an_alias_of_itself_is_an_error() {
    check(
        "a: &x [1, *x]",
        expect![[r#"
        error in 1: an alias refers to the value that it is a part of (write the value out)
    "#]],
    );
}

#[test]
fn repeated_keys_are_reported_with_both_lines() {
    check(
        "a: 1\nb: 2\na: 3",
        expect![[r#"
        1 {1 a: 1 1, 2 b: 2 2, 3 a: 3 3}
        twice: a in 1 and 3
    "#]],
    );
    check(
        "{\"a\": 1,\n\"a\": 2}",
        expect![[r#"
        1 {1 a: 1 1, 2 a: 2 2}
        twice: a in 1 and 2
    "#]],
    );
    let many: String = (0..40).map(|n| format!("k{}: 1\n", n % 39)).collect();
    let (_, repeats, _) = documents(many.as_bytes());
    assert_eq!(repeats.len(), 1);
}

#[test]
fn json_is_read_exactly() {
    check(
        r#"{"a": "\u00e9\ud83d\ude00\n\/\"", "b": -1.5e3, "c": 12345678901234567890}"#,
        expect![[r#"
            1 {1 a: 1 "é😀\n/\"", 1 b: 1 float -1.5e3, 1 c: 1 float 12345678901234567890}
        "#]],
    );
    check(
        r#"["\ud83d", "\ud83d\u0041"]"#,
        expect![[r#"
        1 [1 "�", 1 "�A"]
    "#]],
    );
    check(
        "[01]",
        expect![[r#"
        1 [1 1]
    "#]],
    );
    check(
        "{\"a\": 1} x",
        expect![[r#"
        1 {1 a: 1 1}
        error in 1: this is not JSON: expected a value, found `x` (check commas, quotes and brackets around this line)
    "#]],
    );
    check(
        "{\"a\": 1,\n\"b\" 2}",
        expect![[r#"
        error in 2: this is not JSON: expected `:`, found `2` (check commas, quotes and brackets around this line)
    "#]],
    );
    check(
        "[1, 2",
        expect![[r#"
        error in 1: this is not JSON: expected `,` or `]`, found the end of the file (check commas, quotes and brackets around this line)
    "#]],
    );
    check(
        "[\"a\tb\", nul]",
        expect![[r#"
        1 [1 "a\tb", 1 "nul"]
    "#]],
    );
}

#[test]
fn json_documents_can_be_separated_by_dashes() {
    for text in [
        "---\n{\"a\": \"\\ud83d\\ude00\"}\n---\n{\"b\": 2}\n---\n",
        "{\"a\": \"\\ud83d\\ude00\"}\n--- \n---\n{\"b\": 2}",
    ] {
        let (roots, _, error) = documents(text.as_bytes());
        let count = roots.iter().filter(|root| !root.is_null()).count();
        assert_eq!((count, error), (2, None), "{text}");
    }
}

#[test]
fn of_two_syntax_errors_the_later_one_is_reported() {
    check(
        "{\"a\": 1}\n---\nb: 2\n---\nc: [\n",
        expect![[r#"
            1 {1 a: 1 1}
            3 {3 b: 3 2}
            error in 5: this is not YAML: the list or mapping that begins here has no end (column 4) (check indentation, quotes and brackets around this line)
        "#]],
    );
    check(
        "{\"a\": \"\\ud83d\\ude00\"}\n{\"b\": nul}\n",
        expect![[r#"
            1 {1 a: 1 "😀"}
            error in 2: this is not JSON: expected a value, found `n` (check commas, quotes and brackets around this line)
        "#]],
    );
}

#[test]
fn flow_style_that_is_not_json_is_read_as_yaml() {
    check(
        "{a: 1, b: [x, y,],}",
        expect![[r#"
        1 {1 a: 1 1, 1 b: 1 [1 "x", 1 true]}
    "#]],
    );
    check(
        "[a]: [b",
        expect![[r#"
            error in 1: the key of a mapping is a list; expected a string (quote the key)
        "#]],
    );
}

#[test]
fn an_error_concerns_only_its_document() {
    check(
        "a: 'b\n---\nc: 1\n--- # d\n{\n---\nd: 1\n...\n%YAML 1.1\n---\ne: 2\n",
        expect![[r#"
            3 {3 c: 3 1}
            7 {7 d: 7 1}
            11 {11 e: 11 2}
            error in 1: this is not YAML: the quoted string has no end (column 4) (check indentation, quotes and brackets around this line)
        "#]],
    );
    check(
        "a: &x [\n---\na: 1\n",
        expect![[r#"
        3 {3 a: 3 1}
        error in 1: this is not YAML: the list or mapping that begins here has no end (column 4) (check indentation, quotes and brackets around this line)
    "#]],
    );
    check(
        "items:\n- a\n- [\n---\nb: 1\n",
        expect![[r#"
        5 {5 b: 5 1}
        error in 3: this is not YAML: the list or mapping that begins here has no end (column 3) (check indentation, quotes and brackets around this line)
    "#]],
    );
}

#[test]
fn control_characters_are_errors() {
    check(
        "a: 1\nb: \u{7}\n---\nc: 1\n",
        expect![[r#"
        4 {4 c: 4 1}
        error in 2: this is not YAML: found a control character (remove it, or write it as an escape sequence in double quotes)
    "#]],
    );
    check(
        "a: é\u{85}\u{a0}\n",
        expect![[r#"
        error in 2: this is not YAML: expected `:` after this key (column 6) (check indentation, quotes and brackets around this line)
    "#]],
    );
}

#[test]
fn documents_before_an_error_are_kept() {
    check(
        "a: 1\n---\nb: 2\n---\nc: [\n",
        expect![[r#"
            1 {1 a: 1 1}
            3 {3 b: 3 2}
            error in 5: this is not YAML: the list or mapping that begins here has no end (column 4) (check indentation, quotes and brackets around this line)
        "#]],
    );
}

#[test]
fn syntax_errors_have_hints() {
    check(
        "a:\n\tb: 1",
        expect![[r#"
            error in 2: this is not YAML: found a tab that cannot start a value (column 1) (indent with spaces; YAML does not allow tabs there)
        "#]],
    );
    check(
        "name: {{ .Values.name }}",
        expect![[r#"
            error in 1: the key of a mapping is a mapping; expected a string (this looks like a template: render it first, for example with `helm template`)
        "#]],
    );
    check(
        "{{- if .Values.on }}\na: 1\n{{- end }}",
        expect![[r#"
            error in 1: this is not YAML: a list item `- ` cannot begin here (column 3) (this looks like a template: render it first, for example with `helm template`)
        "#]],
    );
    check(
        "a: b: c",
        expect![[r#"
            error in 1: this is not YAML: a mapping value is not allowed here; quote text that contains `: ` (column 5) (check indentation, quotes and brackets around this line)
        "#]],
    );
}

#[test]
fn hostile_input_is_stopped_early() {
    for text in
        ["[".repeat(1_000_000), format!("a: {}", "[".repeat(1_000_000)), "- ".repeat(1_000_000)]
    {
        let (_, _, error) = documents(text.as_bytes());
        assert!(error.is_some());
    }
    let mut laughs = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for n in 1..12 {
        let before = format!("*a{},", n - 1).repeat(10);
        laughs.push_str(&format!("a{n}: &a{n} [{before}]\n"));
    }
    let (_, _, error) = documents(laughs.as_bytes());
    assert_eq!(error.unwrap().message, "aliases expand to more than 4000000 values");
    let deep: String = (0..200).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
    let (_, _, error) = documents(deep.as_bytes());
    assert_eq!(error.unwrap().line, 129);
    let long = format!("- [{}]", "a,".repeat(4_000_000));
    let (_, _, error) = documents(long.as_bytes());
    assert_eq!(error.unwrap().message, "the document has more than 4000000 values");
}

mod laws {
    use proptest::prelude::*;

    use super::documents;

    proptest! {
        #[test]
        fn random_bytes_cause_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            documents(&bytes);
        }

        #[test]
        fn yaml_like_text_causes_no_panic(text in "([\\[\\]{}:,&*?!|>#'\"%@`<~ab01.\\-]|\n|  |\t|---\n|<<: |\\\\u)*") {
            documents(text.as_bytes());
        }
    }
}
