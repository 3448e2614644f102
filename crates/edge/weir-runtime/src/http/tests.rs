use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    thread,
    time::Instant,
};

use axum::routing::get;
use tokio::net::TcpSocket;

use super::*;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);
const GENEROUS: HttpLimits = HttpLimits {
    connections: 8,
    per_client: 8,
    request_timeout: LONG,
    write_timeout: LONG,
    lifetime: LONG,
};
static LARGE: [u8; 16 << 20] = [b'x'; 16 << 20];
const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
const GET_LARGE: &str = "GET /large HTTP/1.1\r\nHost: test\r\n\r\n";

/// A server with `/`, which answers immediately, `/slow`, which takes longer than `SHORT`,
/// `/medium`, whose response is as large as some metrics, and `/large`, whose response fits into no
/// buffer of the kernel.
fn start(limits: HttpLimits) -> SocketAddr {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let slow = async || {
        sleep(3 * SHORT).await;
        "slow"
    };
    let router = Router::new()
        .route("/", get(async || "ok"))
        .route("/slow", get(slow))
        .route("/medium", get(async || &LARGE[..32 << 10]))
        .route("/large", get(async || &LARGE[..]));
    thread::spawn(move || {
        let runtime = runtime();
        runtime.block_on(serve_within(listener, router, limits))
    });
    address
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// Connects from a loopback address.
fn connect_from(client: &str, address: SocketAddr) -> TcpStream {
    let connect = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(client.parse().unwrap(), 0))?;
        socket.connect(address).await?.into_std()
    };
    let stream = runtime().block_on(connect).unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// Everything that the server sends until it closes the connection.
fn receive(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => "timeout".into(),
        _ => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(GET.as_bytes()).unwrap();
    receive(stream)
}

fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn a_client_that_sends_no_complete_request_is_disconnected() {
    let address = start(HttpLimits { request_timeout: SHORT, ..GENEROUS });
    let (mut silent, mut partial) = (connect(address), connect(address));
    partial.write_all(b"GET / HTTP/1.1\r\nHost: te").unwrap();
    assert_eq!((receive(&mut silent), receive(&mut partial)), (String::new(), String::new()));
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let address = start(HttpLimits { write_timeout: SHORT, ..GENEROUS });
    let mut client = connect(address);
    client.write_all(GET_LARGE.as_bytes()).unwrap();
    let begin = Instant::now();
    // The server reads nothing after the request, but resets the connection.
    while client.write_all(b"x").is_ok() {
        assert!(begin.elapsed() < LONG / 2, "the connection is still open");
        thread::sleep(SHORT / 10);
    }
}

#[test]
fn a_client_that_reads_a_large_response_gets_all_of_it() {
    let address = start(HttpLimits { write_timeout: SHORT, ..GENEROUS });
    let mut client = connect(address);
    client.write_all(GET_LARGE.as_bytes()).unwrap();
    assert!(receive(&mut client).len() > LARGE.len());
}

#[test]
fn neither_timeout_cuts_off_a_slow_response() {
    let limits = HttpLimits { request_timeout: SHORT, write_timeout: SHORT, ..GENEROUS };
    let mut client = connect(start(limits));
    client.write_all(b"GET /slow HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    assert!(receive(&mut client).ends_with("slow"));
}

#[test]
fn a_connection_ends_after_its_lifetime() {
    let mut client = connect(start(HttpLimits { lifetime: SHORT, ..GENEROUS }));
    client.write_all(b"GET /slow HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    assert_eq!(receive(&mut client), "");
}

#[test]
fn a_connection_serves_one_request() {
    let mut client = connect(start(GENEROUS));
    client.write_all(GET.repeat(3).as_bytes()).unwrap();
    let mut answer = Vec::new();
    // The server may reset the connection, because it does not read the other requests.
    _ = client.read_to_end(&mut answer);
    assert_eq!(String::from_utf8_lossy(&answer).matches("HTTP/1.1 200").count(), 1);
}

#[test]
fn a_request_that_is_too_large_is_rejected() {
    let mut client = connect(start(GENEROUS));
    let request = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(2 * MAX_REQUEST_BYTES));
    client.write_all(request.as_bytes()).unwrap();
    let mut head = [0; 12];
    client.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 431");
}

#[test]
fn a_client_with_too_many_connections_loses_its_oldest() {
    let address = start(HttpLimits { per_client: 2, ..GENEROUS });
    let other = connect_from("127.0.0.2", address);
    let [mut first, second, mut third] = [(); 3].map(|()| connect(address));
    assert_eq!(receive(&mut first), "");
    assert!(ask(&mut third).ends_with("ok"));
    assert!(is_open(&second) && is_open(&other));
}

#[test]
fn a_full_server_closes_a_connection_of_the_client_with_the_most() {
    let address = start(HttpLimits { connections: 3, ..GENEROUS });
    let probe = connect_from("127.0.0.2", address);
    let [mut first, second] = [(); 2].map(|()| connect(address));
    let mut late = connect_from("127.0.0.3", address);
    assert!(ask(&mut late).ends_with("ok"));
    assert_eq!(receive(&mut first), "");
    assert!(is_open(&second) && is_open(&probe));
}

#[test]
fn clients_that_pipeline_and_never_read_cannot_block_a_probe() {
    let address = start(LIMITS);
    let requests = "GET /medium HTTP/1.1\r\nHost: test\r\n\r\n".repeat(1000);
    let mut hostile = Vec::new();
    for _ in 0..700 {
        let mut stream = connect(address);
        stream.set_nonblocking(true).unwrap();
        // The server may already have reset the connection.
        _ = stream.write(requests.as_bytes());
        hostile.push(stream);
    }
    for stream in hostile.iter_mut().step_by(20) {
        _ = stream.write(requests.as_bytes());
        assert!(ask(&mut connect(address)).ends_with("ok"));
    }
}
