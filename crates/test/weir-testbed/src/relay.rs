use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
};

/// Forwards connections until the listener fails. The listener may belong to another network namespace
/// than this process.
pub fn relay(listener: &TcpListener, target: SocketAddr) -> io::Result<()> {
    loop {
        let (client, _) = listener.accept()?;
        thread::spawn(move || {
            let Ok(server) = TcpStream::connect(target) else { return };
            let (Ok(client_end), Ok(server_end)) = (client.try_clone(), server.try_clone()) else {
                return;
            };
            thread::spawn(move || copy(client_end, server_end));
            copy(server, client);
        });
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    _ = io::copy(&mut from, &mut to);
    _ = to.shutdown(Shutdown::Both);
    _ = from.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn bytes_pass_in_both_directions() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = server.local_addr().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || relay(&listener, target));
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"ping").unwrap();
        let (mut served, _) = server.accept().unwrap();
        let mut text = [0; 4];
        served.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"ping");
        served.write_all(b"pong").unwrap();
        drop(served);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "pong");
    }
}
