use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use axum::routing::get;

use super::*;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);
const GENEROUS: HttpLimits = HttpLimits { connections: 8, request_timeout: LONG, lifetime: LONG };

/// A server with `/`, which answers immediately, and `/slow`, which takes longer than `SHORT`.
fn start(limits: HttpLimits) -> SocketAddr {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let slow = async || {
        sleep(3 * SHORT).await;
        "slow"
    };
    let router = Router::new().route("/", get(async || "ok")).route("/slow", get(slow));
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(serve_within(listener, router, limits))
    });
    address
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn send(stream: &mut TcpStream, path: &str) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).unwrap();
}

/// The bytes of one response: empty if the server has closed the connection, `timeout` if none came
/// in time.
fn receive(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 1024];
    match stream.read(&mut bytes) {
        Ok(count) => String::from_utf8_lossy(&bytes[..count]).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => "timeout".into(),
        Err(_) => String::new(),
    }
}

#[test]
fn a_client_that_sends_no_complete_request_is_disconnected() {
    let address = start(HttpLimits { request_timeout: SHORT, ..GENEROUS });
    let begin = Instant::now();
    let (mut silent, mut partial) = (connect(address), connect(address));
    partial.write_all(b"GET / HTTP/1.1\r\nHost: te").unwrap();
    assert_eq!((receive(&mut silent), receive(&mut partial)), (String::new(), String::new()));
    assert!((SHORT..10 * SHORT).contains(&begin.elapsed()), "{:?}", begin.elapsed());
}

#[test]
fn the_request_timeout_does_not_cut_off_a_slow_response() {
    let address = start(HttpLimits { request_timeout: SHORT, ..GENEROUS });
    let mut client = connect(address);
    send(&mut client, "/slow");
    assert!(receive(&mut client).ends_with("slow"));
    // The response starts the timeout of the next request.
    send(&mut client, "/");
    assert!(receive(&mut client).ends_with("ok"));
    assert_eq!(receive(&mut client), "");
}

#[test]
fn a_connection_ends_after_its_lifetime_even_if_it_is_busy() {
    let address = start(HttpLimits { lifetime: 2 * SHORT, ..GENEROUS });
    let (mut client, begin) = (connect(address), Instant::now());
    let request = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    while client.write_all(request).is_ok() && !receive(&mut client).is_empty() {
        assert!(begin.elapsed() < 20 * SHORT, "the connection is still open");
        thread::sleep(SHORT / 10);
    }
    assert!(begin.elapsed() >= 2 * SHORT, "{:?}", begin.elapsed());
}

#[test]
fn a_client_beyond_the_limit_waits_for_a_free_slot() {
    let address = start(HttpLimits { connections: 1, ..GENEROUS });
    let mut first = connect(address);
    send(&mut first, "/");
    assert!(receive(&mut first).ends_with("ok"));
    let mut second = connect(address);
    send(&mut second, "/");
    second.set_read_timeout(Some(SHORT)).unwrap();
    assert_eq!(receive(&mut second), "timeout", "one slot serves two connections");
    drop(first);
    second.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert!(receive(&mut second).ends_with("ok"));
}
