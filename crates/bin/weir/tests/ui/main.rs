//! The web page in a real browser: headless Chromium drives the page that the binary serves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run has failed")]

#[allow(dead_code, reason = "tests of the command line need more of it")]
mod agents;
mod live;
mod playground;
mod recording;
mod webdriver;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use webdriver::{Browser, Key};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn weir(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.current_dir(root()).stdin(Stdio::null()).args(arguments);
    // No test may use the cluster of the user.
    command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nowhere");
    command
}

/// A running `weir ui`.
struct Ui {
    process: Child,
    url: String,
}

impl Ui {
    fn start(arguments: &[&str]) -> Self {
        Ui::from_process(weir(&["ui"]).args(arguments).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn from_process(mut process: Child) -> Self {
        let mut url = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let url = url.trim().to_owned();
        assert!(url.starts_with("http://127.0.0.1:"), "{url}");
        Ui { process, url }
    }

    fn shop() -> Self {
        Ui::start(&["-f", "examples/shop/manifests"])
    }

    /// The address without the token.
    fn origin(&self) -> &str {
        self.url.split_once("/#").unwrap().0
    }

    fn token(&self) -> &str {
        self.url.split_once("#token=").unwrap().1
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// Opens the page, and waits until the map is complete.
fn open(browser: &Browser, url: &str) {
    browser.open(url);
    browser.wait("return document.querySelectorAll('.edge').length > 0");
}

/// The message that the console has for a violation of the page's policy.
const VIOLATION: &str = "Content Security Policy";

#[test]
fn an_edge_of_the_map_explains_itself() {
    let (ui, browser) = (Ui::shop(), Browser::start());
    open(&browser, &ui.url);
    let address = browser.run("return location.href", &[]);
    assert_eq!(address, format!("{}/", ui.origin()), "the token is not in the address bar");
    let rows = browser.run(
        "return [...document.querySelectorAll('.card')].map((card) => card.innerText.replace(/\\s+/g, ' ').trim())",
        &[],
    );
    let rows = rows.to_string();
    assert!(rows.contains("▲2 3 api web db"), "{rows}");
    browser.picture("map-light");

    // The middle of the curve from the API to the database.
    let point = browser.wait(
        "const ends = [...document.querySelectorAll('.node.row')]; \
         const number = (name) => ends.find((node) => node.title === name)?.dataset.end; \
         const path = document.querySelector(`.hit[data-from='${number('shop/deployment/web')}'][data-to='${number('shop/deployment/api')}']`); \
         if (!path) return null; \
         const middle = path.getPointAtLength(path.getTotalLength() / 2).matrixTransform(path.getScreenCTM()); \
         return [Math.round(middle.x), Math.round(middle.y)]",
    );
    browser.click_at(point[0].as_i64().unwrap(), point[1].as_i64().unwrap());
    let denied = browser.wait_for_text("#panel .explanation", "denied 9100/TCP");
    assert!(denied.contains("Smallest fix"), "{denied}");
    browser.click("button.port.yes");
    let text = browser.wait_for_text("#panel .explanation", "allowed 8080/TCP");
    assert!(text.contains("examples/shop/manifests/policies/shop.yaml:"), "{text}");
    browser.picture("edge-light");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn the_matrix_explains_a_denied_cell_with_the_smallest_fix() {
    let (ui, browser) = (Ui::shop(), Browser::start());
    open(&browser, &ui.url);
    browser.click("#tab-matrix");
    browser.wait("return document.querySelector('table.matrix')");
    browser.picture("matrix-light");
    browser.click("td[aria-label^='shop/deployment/web to shop/statefulset/db:']");
    let text = browser.wait_for_text("#panel .explanation", "denied");
    assert!(text.contains("Smallest fix") && text.contains("kind: NetworkPolicy"), "{text}");
    assert!(text.contains("policies/shop.yaml:"), "{text}");

    // The page shows what the command prints.
    let command = ["explain", "-f", "examples/shop/manifests", "-o", "json", "--port", "5432"];
    let ends = ["--from", "shop/deployment/web", "--to", "shop/statefulset/db"];
    let output = weir(&command).args(ends).output().unwrap();
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let add = printed["remedy"]["add"].as_array().unwrap();
    let policies: Vec<&str> = add.iter().map(|policy| policy.as_str().unwrap()).collect();
    let policy = policies.join("---\n");
    let isolating = printed["ingress"]["isolatedBy"].as_array().unwrap();
    assert!(!isolating.is_empty());
    for one in isolating {
        let (id, place) = (one["policy"].as_str().unwrap(), one["place"].as_str().unwrap());
        assert!(text.contains(id) && text.contains(place), "{text}");
    }
    let shown = browser.run("return document.querySelector('.remedy pre').innerText", &[]);
    assert_eq!(shown.as_str().unwrap().trim(), policy.trim());

    // The fix opens exactly this connection.
    browser.click_button("Try it");
    let effect = browser.wait_for_text(".result", "Opened");
    assert!(effect.contains("shop/web") && effect.contains("5432/TCP"), "{effect}");
    assert!(!effect.contains("Closed"), "{effect}");
    browser.picture("what-if-light");
}

#[test]
fn what_if_shows_the_effect_of_an_edit_and_of_a_deletion() {
    let (ui, browser) = (Ui::shop(), Browser::start());
    open(&browser, &ui.url);
    browser.click("#tab-whatif");
    browser.wait("return document.getElementById('editor')");
    let policy = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "lock", "namespace": "monitoring"}, "spec": {"podSelector": {}}}"#;
    browser.type_into("#editor", policy);
    let effect = browser.wait_for_text(".result", "Closed");
    assert!(effect.contains("monitoring"), "{effect}");
    browser.click_button("Clear");
    browser.type_into("#editor", "kind: [");
    browser.wait("return document.querySelector('.result .bad')");
    browser.click_button("Clear");
    browser.wait_for_text(".result", "Nothing is applied");

    browser.click("#tab-policies");
    let list = browser.wait_for_text("#view", "7 policies");
    assert!(list.contains("2 findings") || list.contains("findings in the whole input"), "{list}");
    browser.picture("policies-light");
    browser.click("table.list tbody button.link");
    browser.wait_for_text("#panel", "kind: NetworkPolicy");
    browser.picture("policy-light");
    browser.click_button("What if it were deleted?");
    browser.wait_for_text(".removals", "delete NetworkPolicy");
    browser.wait("return document.querySelector('.result table, .result .summary')");
}

#[test]
fn the_keyboard_alone_leads_to_an_explanation_and_back() {
    let (ui, browser) = (Ui::shop(), Browser::start());
    open(&browser, &ui.url);
    let focus = "return document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent";
    browser.press(&[Key::Tab]);
    assert_eq!(browser.run(focus, &[]), "Skip to content");
    browser.press(&[Key::Tab]);
    assert_eq!(browser.run(focus, &[]), "Map");
    browser.press(&[Key::Right]);
    browser.wait("return document.querySelector('table.matrix')");
    assert_eq!(browser.run(focus, &[]), "Matrix");
    // Past the other buttons of the header and the filter, into the table.
    browser.press(&[Key::Tab, Key::Tab, Key::Tab, Key::Tab]);
    let first = browser.run(focus, &[]);
    let first = first.as_str().unwrap();
    assert!(first.contains(" to "), "{first}");
    browser.press(&[Key::Right, Key::Right, Key::Down, Key::Enter]);
    browser.wait("return document.querySelector('#panel .verdict')");
    let heading = browser.run("return document.activeElement.tagName", &[]);
    assert_eq!(heading, "H2");
    browser.press(&[Key::Escape]);
    browser.wait("return document.getElementById('panel').hidden");
    let back = browser.run(focus, &[]);
    assert!(back.as_str().unwrap().contains(" to ") && back != first, "{back}");
}

#[test]
fn every_control_has_a_name_and_both_themes_are_readable() {
    let (ui, browser) = (Ui::shop(), Browser::start());
    open(&browser, &ui.url);
    for tab in ["map", "matrix", "policies", "whatif", "flows", "drops"] {
        browser.click(&format!("#tab-{tab}"));
        browser
            .wait("return document.getElementById('view').getAttribute('aria-busy') === 'false'");
        let unnamed = browser.run(
            "return [...document.querySelectorAll('button, input, select, textarea, [role=gridcell]')] \
             .filter((node) => !(node.getAttribute('aria-label') || node.textContent.trim() || node.labels?.length)) \
             .map((node) => node.outerHTML)",
            &[],
        );
        assert_eq!(unnamed, serde_json::json!([]), "{tab}");
    }
    for theme in ["light", "dark"] {
        let is_current = format!("return document.documentElement.dataset.theme === '{theme}'");
        if browser.run(&is_current, &[]) == false {
            browser.click("#theme");
            browser.wait(&is_current);
        }
        let contrast = browser.run(CONTRAST, &[]);
        for (pair, ratio) in contrast.as_object().unwrap() {
            assert!(ratio.as_f64().unwrap() >= 4.5, "{theme}: {pair} has {ratio}");
        }
        assert_eq!(contrast.as_object().unwrap().len(), 10);
    }
    browser.click("#tab-map");
    browser.wait("return document.querySelector('.edge')");
    browser.picture("map-dark");
    browser.click("#tab-matrix");
    browser.wait("return document.querySelector('table.matrix')");
    browser.click("td[aria-label^='shop/deployment/web to shop/statefulset/db:']");
    browser.wait_for_text("#panel .explanation", "denied");
    browser.picture("matrix-dark");
}

/// The contrast of each text colour on each background, as WCAG defines it.
const CONTRAST: &str = "
    const style = getComputedStyle(document.documentElement);
    const light = (name) => {
        const hex = style.getPropertyValue(name).trim();
        const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
        const [r, g, b] = parts.map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const pairs = [['--text', '--back'], ['--text', '--surface'], ['--text', '--raised'], ['--faint', '--surface'], ['--faint', '--back'],
        ['--good', '--good-soft'], ['--some', '--some-soft'], ['--bad', '--bad-soft'], ['--accent', '--surface'], ['--accent-text', '--accent']];
    return Object.fromEntries(pairs.map(([one, two]) => {
        const [a, b] = [light(one), light(two)].sort((x, y) => y - x);
        return [`${one} ${two}`, (a + 0.05) / (b + 0.05)];
    }));";

#[test]
fn the_page_loads_nothing_from_elsewhere_and_cannot() {
    let (ui, browser) = (Ui::shop(), Browser::start());
    open(&browser, &ui.url);
    browser.click("#tab-matrix");
    browser.wait("return document.querySelector('table.matrix')");
    browser.click("td.cell.none");
    browser.wait("return document.querySelector('#panel .verdict')");
    let requests = browser.requests();
    assert!(requests.iter().any(|url| url.ends_with("/app.js")), "{requests:?}");
    assert!(requests.iter().all(|url| url.starts_with(ui.origin())), "{requests:?}");
    assert!(requests.iter().all(|url| !url.contains(ui.token()) || url.contains("#token=")));
    assert_eq!(browser.console(), Vec::<String>::new());

    // Code in the page can neither send data nor run a text.
    let other = browser.run_async("fetch('http://127.0.0.1:1/')");
    assert!(other.as_str().unwrap().starts_with("rejected"), "{other}");
    let inline = "const node = document.createElement('div'); \
                  try { node.innerHTML = '<b>x</b>'; return 'allowed' } catch { return 'refused' }";
    assert_eq!(browser.run(inline, &[]), "refused");
    let console = browser.console().join("\n");
    assert!(console.contains(VIOLATION), "{console}");
}

#[test]
fn another_tab_or_site_without_the_token_gets_no_data() {
    let (ui, browser) = (Ui::shop(), Browser::start());
    browser.open(ui.origin());
    let message = browser.wait_for_text("#message", "token");
    assert!(message.contains("open the address"), "{message}");
    // A page of another origin has the token, and the browser still refuses.
    let other = Ui::shop();
    open(&browser, &other.url);
    let script = format!(
        "fetch('{}/api', {{method: 'POST', headers: {{'Content-Type': 'application/json', 'Weir-Token': '{}'}}, body: '{{}}'}})",
        ui.origin(),
        ui.token()
    );
    let refused = browser.run_async(&script);
    assert!(refused.as_str().unwrap().starts_with("rejected"), "{refused}");
    // A name of another site that resolves to loopback reaches the server, which rejects it.
    let address = ui.origin().strip_prefix("http://").unwrap();
    let port = address.rsplit(':').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: rebound.example:{port}\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 421"), "{response}");
}

#[test]
fn a_reload_reads_the_manifests_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pods.yaml");
    let pod = |name: &str| {
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop}}\n---\n")
    };
    std::fs::write(&file, pod("one") + &pod("two")).unwrap();
    let ui = Ui::start(&["-f", folder.path().to_str().unwrap()]);
    let browser = Browser::start();
    open(&browser, &ui.url);
    std::fs::write(&file, pod("one") + &pod("three")).unwrap();
    browser.click("#reload");
    browser.wait("return document.querySelector('.node.row[title=\"shop/three\"]')");
    // A file that cannot be read leaves the last state on the page, with a message.
    std::fs::write(&file, "kind: [").unwrap();
    browser.click("#reload");
    browser.wait_for_text("#message", "unreadable");
    assert_ne!(
        browser.run("return document.querySelector('.node.row[title=\"shop/three\"]')", &[]),
        Value::Null
    );
}

#[test]
fn an_exported_page_needs_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        weir(&["ui", "-f", "examples/shop/manifests", "--export"]).arg(folder.path()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = String::from_utf8(output.stdout).unwrap();
    let browser = Browser::start();
    open(&browser, &format!("file://{}", page.trim()));
    browser.click("#tab-matrix");
    browser.wait("return document.querySelector('table.matrix')");
    browser.click("td[aria-label^='shop/deployment/web to shop/statefulset/db:']");
    let text = browser.wait_for_text("#panel .explanation", "denied");
    assert!(text.contains("Smallest fix"), "{text}");
    browser.click("#tab-policies");
    browser.wait_for_text("#view", "7 policies");
    assert_eq!(browser.console(), Vec::<String>::new());
    let requests = browser.requests();
    assert!(requests.iter().all(|url| url.starts_with("file://")), "{requests:?}");
}
