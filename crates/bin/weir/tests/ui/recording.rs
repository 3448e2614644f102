//! A recording without manifests.

use std::{io::Write, process::Stdio};

use serde_json::json;

use crate::{Ui, live::flow, open, webdriver::Browser, weir};

const WEB: &str = "shop/Deployment/web";
const API: &str = "shop/Deployment/api";
const DB: &str = "shop/StatefulSet/db";

/// The text of the page about missing manifests.
const NOTICE: &str = "There are no manifests: this page shows only the connections of the \
    recording. Unused connections, policies, explanations and What if need manifests (-f) or a \
    cluster (--context).";

/// The titles of the edges that the map draws, each with its kind.
fn edges(browser: &Browser) -> Vec<(String, String)> {
    let edges = browser.run(
        "return [...document.querySelectorAll('.edge')].map((edge) => [edge.nextElementSibling.textContent, edge.classList[1]])",
        &[],
    );
    let mut edges: Vec<(String, String)> = serde_json::from_value(edges).unwrap();
    edges.sort();
    edges
}

#[test]
fn a_recording_alone_shows_observed_connections_and_says_what_is_missing() {
    let ui = Ui::start(&["--flows", "examples/shop/flows.jsonl"]);
    let browser = Browser::start();
    open(&browser, &ui.url);
    assert_eq!(browser.wait_for_text("#notice", "There are no manifests"), NOTICE);
    let tabs = browser.run(
        "return [...document.querySelectorAll('[role=tab]')].filter((tab) => tab.checkVisibility()).map((tab) => tab.textContent)",
        &[],
    );
    assert_eq!(tabs, json!(["Map", "Matrix", "Flows", "Drops"]));
    let all = edges(&browser);
    let has = |title: &str, kind: &str| all.iter().any(|edge| *edge == (title.into(), kind.into()));
    let allowed = "shop/deployment/web → shop/deployment/api: allowed, 8080/TCP";
    assert!(has(allowed, "policy"), "{all:#?}");
    assert!(all.iter().any(|(title, _)| title.contains("→ addresses:")), "{all:#?}");
    // No policy is known, so no connection is open because of that.
    assert!(all.iter().all(|(_, kind)| ["policy", "partly", "denied"].contains(&&**kind)));
    let boxes = browser.run("return document.querySelectorAll('.kinds .kind').length", &[]);
    assert_eq!(boxes, 3);
    assert_eq!(browser.run("return document.querySelector('.lock')", &[]), json!(null));
    let labels = browser.run(
        "return [...document.querySelectorAll('.card')].map((card) => card.innerHTML).join()",
        &[],
    );
    let labels = labels.as_str().unwrap();
    assert!(!labels.contains("polic") && !labels.contains("restricted"), "{labels}");
    browser.picture("recording-map-light");

    // The keyboard reaches the next visible view, and a cell shows the flows behind it.
    browser.click("#tab-matrix");
    browser.wait("return document.querySelector('table.matrix')");
    browser.click("td[aria-label^='shop/deployment/web to shop/deployment/api: allowed']");
    let text = browser.wait_for_text("#panel .explanation", "allowed 8080/TCP");
    assert!(text.contains("connections, last 20") && text.contains("on node "), "{text}");
    browser.picture("recording-matrix-light");
    let label = "td[aria-label='shop/deployment/api to shop/deployment/web: not observed']";
    browser.wait(&format!("return document.querySelector(\"{label}\")"));
    browser.click("#tab-flows");
    browser.wait("return document.querySelector('table.flows button.link')");
    browser.click("table.flows button.link");
    browser.wait_for_text("#panel .explanation", "last 20");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn a_recording_from_standard_input_grows_with_a_reload() {
    let mut command = weir(&["ui", "--flows", "-"]);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    let ui = Ui::from_process(process);
    let browser = Browser::start();
    browser.open(&ui.url);
    browser.wait_for_text("#notice", "no flows yet. From standard input, Reload");
    let time = "2026-01-02T03:04:05Z";
    input.write_all(flow(WEB, API, 8080, "allow", time).as_bytes()).unwrap();
    input.write_all(flow(WEB, DB, 5432, "deny", time).as_bytes()).unwrap();
    // A namespace with markup in its name stays text.
    input.write_all(flow("<i>x/Pod/y", API, 8080, "audit", time).as_bytes()).unwrap();
    browser.click("#tab-flows");
    browser.wait_for_text("#view", "3 flows");
    browser.click("#reload");
    browser.click("#tab-map");
    browser.wait("return document.querySelectorAll('.edge').length === 3");
    let expected = [
        ("<i>x/y → shop/deployment/api: allowed, 8080/TCP", "policy"),
        ("shop/deployment/web → shop/deployment/api: allowed, 8080/TCP", "policy"),
        ("shop/deployment/web → shop/statefulset/db: denied, 5432/TCP", "denied"),
    ];
    let expected = expected.map(|(title, kind)| (title.to_owned(), kind.to_owned()));
    assert_eq!(edges(&browser), expected);
    browser.click("#tab-matrix");
    browser.wait("return document.querySelector('table.matrix')");
    browser.click("td[aria-label^='shop/deployment/web to shop/statefulset/db:']");
    let text = browser.wait_for_text("#panel .explanation", "denied 5432/TCP");
    assert!(text.contains("7 packets") && text.contains("NetworkPolicy shop/api"), "{text}");
    browser.picture("recording-denied-light");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn an_exported_recording_needs_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = weir(&["ui", "--flows", "examples/shop/flows.jsonl", "--export"]);
    let output = command.arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = String::from_utf8(output.stdout).unwrap();
    let browser = Browser::start();
    open(&browser, &format!("file://{}", page.trim()));
    assert_eq!(browser.wait_for_text("#notice", "There are no manifests"), NOTICE);
    browser.click("#tab-matrix");
    browser.wait("return document.querySelector('table.matrix')");
    // Twice, because the page reads the same answers again.
    for _ in 0..2 {
        browser.click("td[aria-label^='shop/deployment/web to shop/deployment/api: allowed']");
        browser.wait_for_text("#panel .explanation", "allowed 8080/TCP");
        browser.click("#panel button[aria-label='Close details']");
    }
    assert_eq!(browser.console(), Vec::<String>::new());
}
