//! The page without a server: static files with the answers to all requests that they can make.
//!
//! A page from a file cannot load modules, so the scripts become one classic script.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};
use weir_view::page::{PageData, PageRequest};

use crate::assets::{ALL, Asset};

/// A file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct ExportError {
    /// The file.
    path: PathBuf,
    source: io::Error,
}

/// The content security policy of the static page, which needs no connection at all.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'";
/// The line of the page that loads the scripts.
const SCRIPT_LINE: &str = r#"<script type="module" src="app.js"></script>"#;

/// Writes a page with the answers to these requests into a folder, which it creates.
pub fn export(
    folder: &Path,
    data: &dyn PageData,
    requests: &[PageRequest],
) -> Result<(), ExportError> {
    fs::create_dir_all(folder).map_err(|source| ExportError { path: folder.into(), source })?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|source| ExportError { path, source })
    };
    for asset in ALL.iter().filter(|asset| !is_script(asset)) {
        let name = asset.path.trim_start_matches('/');
        if name == "index.html" {
            write(name, &static_page(asset.text))?;
        } else {
            write(name, asset.text)?;
        }
    }
    write("page.js", &bundle())?;
    write("data.js", &answers(data, requests))
}

fn is_script(asset: &Asset) -> bool {
    asset.path.ends_with(".js")
}

/// The page that loads the data and the bundle.
fn static_page(page: &str) -> String {
    let policy = format!(
        r#"<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">"#
    );
    let scripts = concat!(
        r#"<script src="data.js" defer></script>"#,
        "\n",
        r#"<script src="page.js" defer></script>"#
    );
    page.replacen("<meta charset=\"utf-8\">", &format!("<meta charset=\"utf-8\">\n{policy}"), 1)
        .replacen(SCRIPT_LINE, scripts, 1)
}

/// All scripts as one, without imports and exports.
fn bundle() -> String {
    let mut bundle = String::from("(() => {\n'use strict';\n");
    for asset in ALL.iter().filter(|asset| is_script(asset)) {
        for line in asset.text.lines().filter(|line| !line.starts_with("import ")) {
            bundle.push_str(line.strip_prefix("export ").unwrap_or(line));
            bundle.push('\n');
        }
    }
    bundle + "})();\n"
}

/// A script with the answers, by request. A list that has several answers is complete.
fn answers(data: &dyn PageData, requests: &[PageRequest]) -> String {
    let mut answers = Map::new();
    for request in requests {
        let mut next = Some(request.clone());
        while let Some(request) = next.take() {
            let answer = match data.answer(&request) {
                Ok(value) => value,
                Err(error) => serde_json::json!({"error": error.error, "hint": error.hint}),
            };
            next = continuation(&request, &answer);
            let key = serde_json::to_string(&request).unwrap_or_default();
            answers.insert(key, answer);
        }
    }
    format!("globalThis.weirAnswers = {};\n", Value::Object(answers))
}

/// The request for the flows that follow those of an answer.
fn continuation(request: &PageRequest, answer: &Value) -> Option<PageRequest> {
    let PageRequest::Flows { after } = request else { return None };
    let last = answer["last"].as_u64().filter(|last| answer["more"] == true && last > after)?;
    Some(PageRequest::Flows { after: last })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use weir_view::page::PageError;

    use super::*;

    /// Three flows, one in each answer.
    struct ThreeFlows;

    impl PageData for ThreeFlows {
        fn answer(&self, request: &PageRequest) -> Result<Value, PageError> {
            let PageRequest::Flows { after } = request else { return Ok(Value::Null) };
            Ok(serde_json::json!({"last": after + 1, "more": *after < 2}))
        }
    }

    #[test]
    fn an_export_has_all_flows() {
        let script =
            answers(&ThreeFlows, &[PageRequest::Overview, PageRequest::Flows { after: 0 }]);
        let json = script.trim_start_matches("globalThis.weirAnswers = ").trim_end_matches(";\n");
        let answers: Map<String, Value> = serde_json::from_str(json).unwrap();
        let keys: Vec<&str> = answers.keys().map(String::as_str).collect();
        let expected = [
            r#"{"kind":"overview"}"#,
            r#"{"kind":"flows","after":0}"#,
            r#"{"kind":"flows","after":1}"#,
            r#"{"kind":"flows","after":2}"#,
        ];
        assert_eq!(keys, expected);
    }

    #[test]
    fn the_page_has_the_lines_that_an_export_replaces() {
        let page = static_page(crate::assets::find("/").unwrap().text);
        assert!(page.contains("Content-Security-Policy") && page.contains("page.js"), "{page}");
        assert!(!page.contains("type=\"module\""), "{page}");
    }

    #[test]
    fn no_two_scripts_define_the_same_name() {
        let mut names = BTreeSet::new();
        for asset in ALL.iter().filter(|asset| is_script(asset)) {
            for line in asset.text.lines() {
                let line = line.strip_prefix("export ").unwrap_or(line);
                let line = line.strip_prefix("async ").unwrap_or(line);
                for keyword in ["function ", "const ", "let ", "class "] {
                    let Some(rest) = line.strip_prefix(keyword) else { continue };
                    let is_part = |c: char| c.is_alphanumeric() || c == '_';
                    let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
                    assert!(names.insert(rest[..end].to_owned()), "{}: {line}", asset.path);
                }
            }
        }
        assert!(names.len() > 20, "{names:?}");
    }

    #[test]
    fn an_import_is_one_line() {
        let bundle = bundle();
        assert!(!bundle.contains("\nimport ") && !bundle.contains("\nexport "), "{bundle}");
        assert!(!bundle.contains(" from './"), "{bundle}");
    }
}
