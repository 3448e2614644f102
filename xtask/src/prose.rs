//! Rules for the English of the repository and for its documents, as tests. docs/style.md explains them.

use std::{collections::BTreeSet, fs, process::Command};

use crate::shell::root;

/// The maximum width of a line of Markdown.
const MAX_COLUMNS: usize = 100;

/// Words and phrases that docs/style.md replaces with the terms of the trade.
const BANNED: [&str; 23] = [
    "told",
    "tells",
    "whoever",
    "nobody",
    "somebody",
    "everybody",
    "hears",
    "heard of",
    "believed",
    "believes",
    "stranger",
    "strangers",
    "sign of life",
    "signs of life",
    "in charge",
    "made up",
    "for ever",
    "as it should be",
    "what is there",
    "at once",
    "by the way",
    "in vain",
    "one's",
];

/// Files that may contain banned words: the rules themselves, and names of pods and policies in tests.
const ALLOWED: [(&str, &[&str]); 6] = [
    ("docs/style.md", &BANNED),
    ("xtask/src/prose.rs", &BANNED),
    ("cases/", &["nobody", "stranger"]),
    ("crates/bin/weir/tests/cli/transcripts/", &["nobody"]),
    ("crates/edge/weir-api/src/document/tests.rs", &["nobody"]),
    ("crates/edge/weir-api/src/testing.rs", &["nobody"]),
];

/// The tracked files with one of these extensions.
fn files(extensions: &[&str]) -> Vec<(String, String)> {
    let mut git = Command::new("git");
    git.arg("ls-files").args(extensions.iter().map(|extension| format!("*.{extension}")));
    let output = git.current_dir(root()).output().expect("git runs");
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let read = |name: &str| Some((name.to_owned(), fs::read_to_string(root().join(name)).ok()?));
    let files: Vec<_> = names.lines().filter_map(read).collect();
    assert!(!files.is_empty(), "the repository has files of type {extensions:?}");
    files
}

/// The lines of Markdown that are text: outside code blocks, tables and HTML comments, with numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let start = line.trim_start();
        let is_fence = start.starts_with("```");
        is_code ^= is_fence;
        (!is_fence && !is_code && !start.starts_with('|')).then_some((index + 1, line))
    })
}

/// Whether a line has one sentence at most. One sentence per line is a style of its own.
fn is_one_sentence(line: &str) -> bool {
    let ends = [". ", "? ", "! ", ".) "].iter();
    !ends.into_iter().any(|end| {
        line.match_indices(end).any(|(at, _)| {
            let is_abbreviation = ["e.g", "i.e", "etc"].iter().any(|a| line[..at].ends_with(a));
            let is_number = line[..at].chars().all(|c| c.is_ascii_digit() || c == ' ');
            let next = line[at + end.len()..].chars().next();
            !is_abbreviation && !is_number && next.is_some_and(|c| c.is_uppercase() || c == '`')
        })
    })
}

/// Whether a line is one link or image and nothing else.
fn is_link(line: &str) -> bool {
    let line = line.trim().trim_start_matches(['-', '*', ' ', '!', '<']);
    line.starts_with("http")
        || (line.starts_with('[') && !line.trim_end_matches(')').contains(") "))
}

#[test]
fn lines_of_markdown_have_100_columns_or_one_sentence() {
    let mut wide = Vec::new();
    for (name, text) in files(&["md"]) {
        for (number, line) in prose(&text) {
            let is_wide = line.chars().count() > MAX_COLUMNS;
            if is_wide && !is_one_sentence(line) && !is_link(line) {
                wide.push(format!("{name}:{number}: {line}"));
            }
        }
    }
    assert!(wide.is_empty(), "{} wide lines:\n{}", wide.len(), wide.join("\n"));
}

/// The comments, string literals and function names of Rust code, line by line.
fn words_of_rust(line: &str) -> String {
    let mut words = String::new();
    let mut rest = line;
    if let Some((_, name)) = line.split_once("fn ") {
        let name = name.split(['(', '<']).next().unwrap_or_default();
        words.push_str(&name.replace('_', " "));
        words.push('\n');
    }
    while let Some(at) = rest.find(['"', '/']) {
        rest = &rest[at..];
        if let Some(comment) = rest.strip_prefix("//") {
            words.push_str(comment);
            break;
        }
        let is_text = rest.starts_with('"');
        rest = &rest[1..];
        if is_text {
            // A literal that continues on the next line ends with this one.
            let mut end = rest.len();
            let mut is_escaped = false;
            for (at, c) in rest.char_indices() {
                if c == '"' && !is_escaped {
                    end = at;
                    break;
                }
                is_escaped = c == '\\' && !is_escaped;
            }
            words.push_str(&rest[..end]);
            words.push('\n');
            rest = rest.get(end + 1..).unwrap_or_default();
        }
    }
    words
}

/// The banned words in a text. They match whole words in any case.
fn banned(text: &str) -> Vec<&'static str> {
    let text = text.to_lowercase();
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
    let contains = |word: &&str| {
        text.match_indices(*word).any(|(at, _)| {
            !is_word(text[..at].chars().next_back())
                && !is_word(text[at + word.len()..].chars().next())
        })
    };
    BANNED.into_iter().filter(contains).collect()
}

#[test]
fn no_comment_message_or_document_has_a_banned_word() {
    let mut hits = Vec::new();
    let types = ["rs", "md", "yaml", "toml", "json", "txt", "tpl", "sh", "go", "c", "ps1"];
    for (name, text) in files(&types) {
        let is_allowed = |word: &&str| {
            ALLOWED.iter().any(|(file, words)| name.starts_with(file) && words.contains(word))
        };
        for (index, line) in text.lines().enumerate() {
            let words = if name.ends_with(".rs") { words_of_rust(line) } else { line.to_owned() };
            for word in banned(&words).into_iter().filter(|word| !is_allowed(word)) {
                hits.push(format!("{name}:{}: `{word}`: {}", index + 1, line.trim()));
            }
        }
    }
    assert!(hits.is_empty(), "{} banned words:\n{}", hits.len(), hits.join("\n"));
}

#[test]
fn decision_records_have_an_index_a_status_and_no_gaps() {
    let folder = root().join("docs/adr");
    let index = fs::read_to_string(folder.join("README.md")).expect("docs/adr has an index");
    let names: BTreeSet<String> = fs::read_dir(&folder)
        .expect("docs/adr is a folder")
        .map(|file| file.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name != "README.md")
        .collect();
    for (name, number) in names.iter().zip(1..) {
        let prefix = format!("{number:04}-");
        assert!(name.starts_with(&prefix), "expected {prefix}…, found {name}");
        assert!(index.contains(&format!("({name})")), "the index does not link {name}");
        let text = fs::read_to_string(folder.join(name)).expect("a record");
        let has_status = text.lines().any(|line| line.starts_with("- Status:"));
        assert!(has_status, "{name} has no line `- Status: …`");
    }
}

#[test]
fn sentences_and_words_are_recognized() {
    assert!(is_one_sentence("The agent retries after 2 s, e.g. when a watch ends."));
    assert!(!is_one_sentence("The agent retries. The kernel keeps its rules."));
    assert!(is_link("- [weir](https://example.com/a)"));
    let line = r#"let x = "a \" told"; // nobody"#;
    assert_eq!(banned(&words_of_rust(line)), ["told", "nobody"]);
    assert_eq!(banned(&words_of_rust("fn nobody_is_told() {")), ["told", "nobody"]);
    assert_eq!(banned(&words_of_rust("let told = nobody();")), [""; 0]);
    assert_eq!(banned("Untold, nobody-like"), [""; 0]);
}
