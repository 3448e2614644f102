use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
};

use serde_json::{Value, json};

use super::*;

struct Fixed;

impl PageData for Fixed {
    fn answer(&self, request: &PageRequest) -> Result<Value, PageError> {
        match request {
            PageRequest::Overview => Ok(json!({"title": "test"})),
            _ => Err(PageError { error: "failed".into(), hint: "a hint".into() }),
        }
    }
}

/// A running server: its address and its token.
fn start() -> (SocketAddr, String) {
    let server = Server::bind(0).unwrap();
    let address = server.listener.local_addr().unwrap();
    let token = server.url().split_once("#token=").unwrap().1.to_owned();
    thread::spawn(move || server.run(Arc::new(Fixed)));
    (address, token)
}

/// The response to a request with these lines after `Host`.
fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    // The server can reset the connection instead of reading all of the request.
    _ = stream.read_to_end(&mut response);
    String::from_utf8_lossy(&response).into_owned()
}

fn post(address: SocketAddr, lines: &str, body: &str) -> String {
    let length = body.len();
    let head = format!("POST /api HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n");
    ask(address, &format!("{head}{lines}\r\n{body}"))
}

fn status(response: &str) -> &str {
    response.get(9..12).unwrap_or_default()
}

#[test]
fn files_need_no_token_and_carry_the_policy() {
    let (address, token) = start();
    let response = ask(address, &format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n"));
    assert_eq!(status(&response), "200");
    assert!(response.contains("content-security-policy: default-src 'none'; script-src 'self'"));
    assert!(response.contains("<title>weir</title>") && !response.contains(&token));
    let missing = ask(address, &format!("GET /secret HTTP/1.1\r\nHost: {address}\r\n\r\n"));
    assert_eq!(status(&missing), "404");
}

#[test]
fn another_host_gets_nothing() {
    let (address, token) = start();
    let port = address.port();
    let get = format!("GET / HTTP/1.1\r\nHost: rebound.example:{port}\r\n\r\n");
    assert_eq!(status(&ask(address, &get)), "421");
    let post = format!(
        "POST /api HTTP/1.1\r\nHost: rebound.example:{port}\r\nWeir-Token: {token}\r\n\
         Content-Type: application/json\r\nContent-Length: 19\r\n\r\n{{\"kind\":\"overview\"}}"
    );
    assert_eq!(status(&ask(address, &post)), "421");
}

#[test]
fn data_needs_the_token() {
    let (address, token) = start();
    let overview = r#"{"kind":"overview"}"#;
    let json = "Content-Type: application/json\r\n";
    assert_eq!(status(&post(address, json, overview)), "401");
    let with = format!("{json}Weir-Token: {token}\r\n");
    let response = post(address, &with, overview);
    assert_eq!(status(&response), "200");
    assert!(response.ends_with(r#"{"title":"test"}"#), "{response}");
    let foreign = format!("{with}Origin: http://other.example\r\n");
    assert_eq!(status(&post(address, &foreign, overview)), "403");
}

#[test]
fn a_failure_has_a_hint_and_a_bad_request_a_reason() {
    let (address, token) = start();
    let head = format!("Content-Type: application/json\r\nWeir-Token: {token}\r\n");
    let response = post(address, &head, r#"{"kind":"policies"}"#);
    assert_eq!(status(&response), "422");
    assert!(response.ends_with(r#"{"error":"failed","hint":"a hint"}"#), "{response}");
    assert_eq!(status(&post(address, &head, "{")), "400");
    assert_eq!(status(&post(address, &head, r#"{"kind":"delete"}"#)), "400");
}

#[test]
fn a_body_that_is_too_large_is_rejected() {
    let (address, token) = start();
    let head = format!("Content-Type: application/json\r\nWeir-Token: {token}\r\n");
    let text = "x".repeat(MAX_BODY_BYTES + 1);
    assert_eq!(status(&post(address, &head, &text)), "413");
}

#[test]
fn every_rejected_request_says_why() {
    let (address, token) = start();
    let get = |path: &str, host: &str| {
        ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    };
    let own = address.to_string();
    let json = "Content-Type: application/json\r\n";
    let with_token = format!("{json}Weir-Token: {token}\r\n");
    let large = "x".repeat(MAX_BODY_BYTES + 1);
    let responses = [
        ("421", get("/", "rebound.example")),
        ("404", get("/secret", &own)),
        ("405", get("/api", &own)),
        ("401", post(address, json, "{}")),
        ("415", post(address, "", "{}")),
        ("403", post(address, &format!("{json}Origin: http://other.example\r\n"), "{}")),
        ("400", post(address, &with_token, "{")),
        ("413", post(address, &with_token, &large)),
    ];
    for (expected, response) in responses {
        assert_eq!(status(&response), expected, "{response}");
        let (_, body) = response.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{response}"));
        assert_ne!(body["error"], "", "{response}");
        assert_ne!(body["hint"], "", "{response}");
        assert!(!response.contains(&token));
    }
}

#[test]
fn the_server_listens_on_loopback_only() {
    let server = Server::bind(0).unwrap();
    assert!(server.listener.local_addr().unwrap().ip().is_loopback());
}
