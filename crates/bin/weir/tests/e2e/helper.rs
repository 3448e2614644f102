//! Programs that run in the pods of the tests.

use std::{
    env, io,
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

/// The CNI plugin.
pub(crate) fn run_plugin() -> ExitCode {
    ExitCode::from(weir_cni::run(weir_cni::Call {
        arguments: env::args().skip(1).collect(),
        variable: &|name| env::var(name).ok(),
        input: &mut io::stdin(),
        output: &mut io::stdout(),
        messages: &mut io::stderr(),
    }))
}

/// A helper, by its first argument.
pub(crate) fn run() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", port] => serve(port.parse().unwrap()),
        ["first", name, target] => send_first(name, target.parse().unwrap()),
        ["collect", address] => collect(address.parse().unwrap()),
        ["steady", allowed, denied] => steady(allowed.parse().unwrap(), denied.parse().unwrap()),
        _ => panic!("unknown helper {words:?}"),
    }
}

/// Accepts connections on all addresses.
fn serve(port: u16) -> ! {
    let listener = TcpListener::bind(("::", port)).unwrap();
    loop {
        drop(listener.accept());
    }
}

/// Sends datagrams from the first instant on. Each says how old the process is.
fn send_first(name: &str, target: SocketAddr) -> ! {
    let start = Instant::now();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    for _ in 0..300 {
        // Without a route or with a filter, the kernel reports errors.
        _ = socket.send_to(format!("{name} {}", start.elapsed().as_millis()).as_bytes(), target);
        thread::sleep(Duration::from_millis(5));
    }
    loop {
        thread::park();
    }
}

/// Prints each datagram that arrives.
fn collect(address: SocketAddr) -> ! {
    let socket = UdpSocket::bind(address).unwrap();
    println!("ready");
    let mut bytes = [0; 512];
    loop {
        let (length, _) = socket.recv_from(&mut bytes).unwrap();
        println!("{}", String::from_utf8_lossy(&bytes[..length]));
        io::stdout().flush().unwrap();
    }
}

/// Connects again and again: to an address that must be reachable once it was, and to one that must never
/// be. It prints a line for each wrong verdict, and the counts every second.
fn steady(allowed: SocketAddr, denied: SocketAddr) -> ! {
    const PATIENCE: Duration = Duration::from_secs(4);
    thread::spawn(move || {
        loop {
            // The kernel repeats the first packet after 1 s.
            if TcpStream::connect_timeout(&denied, Duration::from_millis(1200)).is_ok() {
                println!("WRONG {denied} was reached");
            }
        }
    });
    // The node of the server may not know the address of this pod yet.
    while TcpStream::connect_timeout(&allowed, PATIENCE).is_err() {}
    let (mut count, start) = (1, Instant::now());
    let mut reported = start;
    loop {
        match TcpStream::connect_timeout(&allowed, PATIENCE) {
            Ok(_) => count += 1,
            Err(error) => {
                let age = start.elapsed().as_secs();
                println!(
                    "WRONG {allowed} was not reached at {age} s, after {count} times: {error}"
                );
            }
        }
        if reported.elapsed() > Duration::from_secs(1) {
            println!("count {count}");
            reported = Instant::now();
        }
        thread::sleep(Duration::from_millis(20));
    }
}
