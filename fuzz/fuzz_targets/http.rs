//! Whatever a client sends, the HTTP server answers the next health check.
#![no_main]

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::LazyLock,
    thread,
    time::Duration,
};

use axum::{Router, routing::get};
use libfuzzer_sys::fuzz_target;

/// The address of a server in this process.
static SERVER: LazyLock<SocketAddr> = LazyLock::new(|| {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = weir_runtime::http::bind(loopback).expect("a port of loopback is free");
    let address = listener.local_addr().expect("a bound socket has an address");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let router = Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/metrics", get(async || "a_metric 1\n".repeat(1000)));
        let runtime = runtime.expect("a runtime can be built");
        runtime.block_on(weir_runtime::http::serve(listener, router));
    });
    address
});

fuzz_target!(|bytes: &[u8]| {
    let mut client = connect();
    // The server may close the connection before it has read everything.
    _ = client.write_all(bytes);
    _ = client.shutdown(Shutdown::Write);
    read_answer(client);

    let mut probe = connect();
    let request = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    probe.write_all(request).expect("the server reads a health check");
    let answer = read_answer(probe);
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&answer));
});

fn connect() -> TcpStream {
    let stream = TcpStream::connect(*SERVER).expect("the server accepts connections");
    stream.set_read_timeout(Some(Duration::from_secs(8))).expect("the timeout is not zero");
    stream
}

/// Reads until the server closes the connection.
fn read_answer(stream: TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    _ = stream.take(1 << 20).read_to_end(&mut answer);
    answer
}
