//! The page without a server: static files, with the answers from WebAssembly.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

use crate::{VIOLATION, root, webdriver::Browser};

/// A server of static files on loopback, which does nothing else.
struct StaticSite {
    url: String,
    /// The paths of all requests.
    requested: Arc<Mutex<Vec<String>>>,
    _folder: tempfile::TempDir,
}

impl StaticSite {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut xtask = Command::new(env!("CARGO"));
        xtask.current_dir(root()).args(["xtask", "playground"]).arg(folder.path());
        let output = xtask.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let requested = Arc::new(Mutex::new(Vec::new()));
        let (path, log) = (folder.path().to_owned(), Arc::clone(&requested));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (path, log) = (path.clone(), Arc::clone(&log));
                // A browser can open a connection without a request.
                thread::spawn(move || serve(stream.unwrap(), &path, &log));
            }
        });
        StaticSite { url, requested, _folder: folder }
    }
}

fn serve(mut stream: TcpStream, folder: &Path, log: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(request)) = lines.next() else { return };
    lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
    let path = request.split(' ').nth(1).unwrap_or("/").trim_start_matches('/').to_owned();
    log.lock().unwrap().push(path.clone());
    let name = if path.is_empty() { "index.html" } else { &path };
    let kind = match name.rsplit('.').next() {
        Some("html") => "text/html",
        Some("css") => "text/css",
        Some("js") => "text/javascript",
        _ => "image/svg+xml",
    };
    let (status, body) = match std::fs::read(folder.join(name)) {
        Ok(body) => ("200 OK", body),
        Err(_) => ("404 Not Found", Vec::new()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    // The browser can close the connection.
    _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
}

const MANIFESTS: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"}}
---
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db", "namespace": "shop", "labels": {"app": "db"}},
 "spec": {"containers": [{"name": "db", "ports": [{"containerPort": 5432}]}]}}
---
{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "lock", "namespace": "shop"},
 "spec": {"podSelector": {"matchLabels": {"app": "db"}}}}
"#;

#[test]
fn the_playground_needs_no_server_and_shares_by_link() {
    let (site, browser) = (StaticSite::start(), Browser::start());
    browser.open(&site.url);
    browser.wait("return document.getElementById('manifests')");
    browser.wait_for_text(".result", "stay in this browser");
    let loaded = site.requested.lock().unwrap().len();

    // Paste: the same views as with a server.
    browser.type_into("#manifests", MANIFESTS);
    browser.wait_for_text(".result", "2 workloads, 2 pods, 1 policy");
    browser.picture("playground-light");
    browser.click_button("Show the map");
    browser.wait("return document.querySelectorAll('.edge').length > 0");
    browser.click("#tab-matrix");
    browser.wait("return document.querySelector('table.matrix')");
    browser.click("td[aria-label^='shop/web to shop/db:']");
    let text = browser.wait_for_text("#panel .explanation", "denied");
    assert!(text.contains("Smallest fix") && text.contains("manifests:6"), "{text}");
    browser.click_button("Try it");
    let effect = browser.wait_for_text(".result", "Opened");
    assert!(effect.contains("shop/web") && effect.contains("5432/TCP"), "{effect}");
    browser.click("#tab-policies");
    browser.wait_for_text("#view", "1 policy");

    // Share: another browser with the link has the same input.
    browser.click("#tab-input");
    browser.wait("return document.getElementById('manifests').value.includes('lock')");
    browser.click_button("Share");
    let link = browser.wait("return document.getElementById('link')?.value");
    let link = link.as_str().unwrap();
    assert!(link.starts_with(&format!("{}#m=", site.url)), "{link}");
    let other = Browser::start();
    other.open(link);
    other.wait_for_text(".result", "2 workloads, 2 pods, 1 policy");
    let shown = other.run("return document.getElementById('manifests').value", &[]);
    assert_eq!(shown, MANIFESTS);

    // The server saw requests for its files alone, and none after the page was loaded.
    let requested = site.requested.lock().unwrap().clone();
    assert_eq!(requested.len(), 2 * loaded, "{requested:?}");
    assert!(requested.iter().all(|path| !path.contains(['?', '#', '='])), "{requested:?}");
    assert_eq!(browser.console(), Vec::<String>::new());
    assert_eq!(other.console(), Vec::<String>::new());
    let refused = browser.run_async("fetch('/index.html')");
    assert!(refused.as_str().unwrap().starts_with("rejected"), "{refused}");
    assert!(browser.console().join("\n").contains(VIOLATION));
}

#[test]
fn the_playground_reports_what_it_cannot_read() {
    let (site, browser) = (StaticSite::start(), Browser::start());
    browser.open(&format!("{}#m=AAAA", site.url));
    browser.wait_for_text(".result", "the link is damaged");
    browser.type_into("#manifests", "kind: [");
    browser.wait_for_text(".result", "line 1");

    // A dropped file is added to the text.
    let drop = "const data = new DataTransfer(); \
        data.items.add(new File([arguments[0]], 'shop.yaml')); \
        document.getElementById('view').dispatchEvent(new DragEvent('drop', {dataTransfer: data, cancelable: true}))";
    browser.click_button("Clear");
    browser.wait_for_text(".result", "stay in this browser");
    browser.run(drop, &[MANIFESTS.into()]);
    browser.wait_for_text(".result", "1 policy");
    let text = browser.run("return document.getElementById('manifests').value", &[]);
    assert!(text.as_str().unwrap().starts_with("# shop.yaml\n{"), "{text}");

    // Nested too deeply for any parser.
    browser.click_button("Clear");
    let deep = format!("kind: {}", "[".repeat(100_000));
    browser.run(drop, &[deep.into()]);
    browser.wait("return document.querySelector('.result .bad')");
    browser.click_button("Clear");
    browser.click_button("Example");
    browser.wait_for_text(".result", "7 policies");
}
