//! A small WebDriver client for Chromium: only what these tests need.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// The longest wait for a state of the page, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Chromium without a sandbox, because tests can run as root, and without connections of its own.
const ARGUMENTS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,860",
    "--hide-scrollbars",
];

/// A key that is not a character, in WebDriver's numbering.
pub(crate) enum Key {
    Tab,
    Enter,
    Escape,
    Right,
    Down,
}

impl Key {
    fn code(&self) -> &'static str {
        match self {
            Key::Tab => "\u{e004}",
            Key::Enter => "\u{e007}",
            Key::Escape => "\u{e00c}",
            Key::Right => "\u{e014}",
            Key::Down => "\u{e015}",
        }
    }
}

/// A browser with one tab.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser.
    pub(crate) fn start() -> Self {
        let mut driver = Command::new("chromedriver")
            .args(["--port=0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver; install Debian's package chromium-driver");
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let started = "was started successfully on port ";
        let port = lines.by_ref().map(Result::unwrap).find_map(|line| {
            let port = line.split_once(started)?.1.trim_end_matches('.');
            port.parse().ok()
        });
        let port = port.expect("chromedriver prints its port");
        // The driver must not block on a full pipe.
        thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Browser { driver, port, session: String::new(), _profile: profile };
        let mut arguments: Vec<String> = ARGUMENTS.map(str::to_owned).to_vec();
        arguments.push(format!("--user-data-dir={}", browser._profile.path().display()));
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
        }}});
        let started = browser.request("POST", "/session", Some(&capabilities));
        browser.session = started["sessionId"].as_str().expect("a session").to_owned();
        // The first tab has requests of its own.
        browser.open("about:blank");
        browser.requests();
        browser
    }

    /// Opens a page.
    pub(crate) fn open(&self, url: &str) {
        self.command("POST", "/url", Some(&json!({"url": url})));
    }

    /// The result of a script; `arguments` in it are these.
    pub(crate) fn run(&self, script: &str, arguments: &[Value]) -> Value {
        self.command("POST", "/execute/sync", Some(&json!({"script": script, "args": arguments})))
    }

    /// The result of a script that returns a promise.
    pub(crate) fn run_async(&self, script: &str) -> Value {
        let script = format!(
            "const done = arguments[0]; ({script}).then(done, (error) => done(`rejected: ${{error}}`));"
        );
        self.command("POST", "/execute/async", Some(&json!({"script": script, "args": []})))
    }

    /// Waits until a script returns something other than null, false and the empty string.
    pub(crate) fn wait(&self, script: &str) -> Value {
        let start = Instant::now();
        loop {
            let value = self.run(script, &[]);
            if !matches!(&value, Value::Null | Value::Bool(false)) && value != "" {
                return value;
            }
            let page = || self.run("return document.body.innerText", &[]);
            assert!(start.elapsed() < TIMEOUT, "timed out: {script}\n{}", page());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the text of an element contains a text, and returns the former.
    pub(crate) fn wait_for_text(&self, selector: &str, text: &str) -> String {
        let quoted = |text: &str| Value::from(text).to_string();
        let value = self.wait(&format!(
            "const node = document.querySelector({}); \
             return node && !node.closest('[aria-busy=true]') && node.innerText.includes({}) && node.innerText",
            quoted(selector),
            quoted(text)
        ));
        value.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks the first element that matches a selector, as a user does.
    pub(crate) fn click(&self, selector: &str) {
        let element = self.element("css selector", selector);
        self.command("POST", &format!("/element/{element}/click"), Some(&json!({})));
    }

    /// Clicks the first button with exactly this text.
    pub(crate) fn click_button(&self, text: &str) {
        let element = self.element("xpath", &format!("//button[normalize-space()='{text}']"));
        self.command("POST", &format!("/element/{element}/click"), Some(&json!({})));
    }

    /// Types into the first element that matches a selector.
    pub(crate) fn type_into(&self, selector: &str, text: &str) {
        let element = self.element("css selector", selector);
        self.command("POST", &format!("/element/{element}/value"), Some(&json!({"text": text})));
    }

    fn element(&self, using: &str, value: &str) -> String {
        let found =
            self.command("POST", "/element", Some(&json!({"using": using, "value": value})));
        let id = found.as_object().and_then(|map| map.values().next()).and_then(Value::as_str);
        id.expect("an element").to_owned()
    }

    /// Presses keys, wherever the focus is.
    pub(crate) fn press(&self, keys: &[Key]) {
        let actions = keys.iter().flat_map(|key| {
            let value = key.code();
            [json!({"type": "keyDown", "value": value}), json!({"type": "keyUp", "value": value})]
        });
        let source =
            json!({"type": "key", "id": "keyboard", "actions": actions.collect::<Vec<_>>()});
        self.command("POST", "/actions", Some(&json!({"actions": [source]})));
    }

    /// Clicks at a point of the window.
    pub(crate) fn click_at(&self, x: i64, y: i64) {
        let actions = json!([
            {"type": "pointerMove", "duration": 0, "x": x, "y": y, "origin": "viewport"},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]);
        let source = json!({"type": "pointer", "id": "mouse", "actions": actions});
        self.command("POST", "/actions", Some(&json!({"actions": [source]})));
    }

    /// The messages of the console since the last call.
    pub(crate) fn console(&self) -> Vec<String> {
        let log = self.command("POST", "/se/log", Some(&json!({"type": "browser"})));
        let entries = log.as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| entry["message"].to_string()).collect()
    }

    /// The addresses of all requests since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        let log = self.command("POST", "/se/log", Some(&json!({"type": "performance"})));
        let entries = log.as_array().cloned().unwrap_or_default();
        let messages = entries.iter().filter_map(|entry| entry["message"].as_str());
        let messages = messages.filter_map(|text| serde_json::from_str::<Value>(text).ok());
        let sent = messages.filter(|m| m["message"]["method"] == "Network.requestWillBeSent");
        let urls = sent.map(|message| message["message"]["params"]["request"]["url"].clone());
        urls.filter_map(|url| url.as_str().map(str::to_owned)).collect()
    }

    /// Writes a picture of the window into a folder, if `WEIR_SCREENSHOTS` names one.
    pub(crate) fn picture(&self, name: &str) {
        let Some(folder) = std::env::var_os("WEIR_SCREENSHOTS") else { return };
        let data = self.command("GET", "/screenshot", None);
        let bytes = decode_base64(data.as_str().unwrap_or_default());
        let path = std::path::Path::new(&folder).join(format!("{name}.png"));
        std::fs::write(path, bytes).unwrap();
    }

    fn command(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        self.request(method, &format!("/session/{}{path}", self.session), body)
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Length: {length}\r\n\
             Content-Type: application/json\r\nConnection: close\r\n\r\n",
            self.port
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let (text, body) = response(stream);
        let value: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{text}{body}"));
        assert!(text.starts_with("HTTP/1.1 200"), "{method} {path}: {value}");
        value["value"].clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !thread::panicking() {
            self.command("DELETE", "", None);
        } else if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
            let session = &self.session;
            _ = write!(
                stream,
                "DELETE /session/{session} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
            );
            _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            _ = stream.read(&mut [0; 64]);
        }
        _ = self.driver.kill();
        _ = self.driver.wait();
    }
}

/// The head and the body of a response. The driver keeps the connection open.
fn response(stream: TcpStream) -> (String, String) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut stream = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
        head += &line;
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

fn decode_base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter_map(|byte| ALPHABET.iter().position(|known| *known == byte));
    let (mut bytes, mut value, mut bits) = (Vec::new(), 0_usize, 0);
    for digit in digits {
        value = (value << 6 | digit) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((value >> bits & 0xff) as u8);
        }
    }
    bytes
}
