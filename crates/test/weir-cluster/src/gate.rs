use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    thread,
};

const FORWARDING: u8 = 0;
const CLOSED: u8 = 1;
const SILENT: u8 = 2;
const DROPPED: u8 = 3;

/// A TCP proxy to a server that a test can interrupt for one client.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: AtomicU8,
    /// The number of bytes that clients received.
    received_bytes: AtomicU64,
    connections: Mutex<Vec<TcpStream>>,
}

/// Who receives the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiver {
    Server,
    Client,
}

impl Gate {
    /// A proxy to this address.
    pub(crate) fn to(server: SocketAddr) -> io::Result<Self> {
        Gate::from(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, server)
    }

    /// A proxy from a listener, which can be in another network namespace.
    pub fn from(listener: TcpListener, server: SocketAddr) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner {
            state: AtomicU8::new(FORWARDING),
            received_bytes: AtomicU64::new(0),
            connections: Mutex::default(),
        });
        let shared = inner.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                match shared.state.load(Ordering::SeqCst) {
                    DROPPED => return,
                    CLOSED => drop(client),
                    _ => _ = shared.connect(&client, server),
                }
            }
        });
        Ok(Gate { address, inner })
    }

    /// The address that the proxy listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of bytes that clients received so far.
    pub fn received_bytes(&self) -> u64 {
        self.inner.received_bytes.load(Ordering::Relaxed)
    }

    /// Closes all connections and rejects new ones.
    pub fn shut(&self) {
        self.inner.state.store(CLOSED, Ordering::SeqCst);
        self.inner.cut();
    }

    /// Keeps all connections open but forwards nothing, like a network that drops packets.
    pub fn silence(&self) {
        self.inner.state.store(SILENT, Ordering::SeqCst);
    }

    /// Forwards new connections. Silenced connections stay silent.
    pub fn open(&self) {
        self.inner.state.store(FORWARDING, Ordering::SeqCst);
    }
}

impl Inner {
    fn connect(self: &Arc<Self>, client: &TcpStream, server: SocketAddr) -> io::Result<()> {
        let server = TcpStream::connect(server)?;
        // Disable Nagle's algorithm: small events would wait for an acknowledgement, which a watching client
        // delays.
        [client, &server].into_iter().try_for_each(|stream| stream.set_nodelay(true))?;
        for (from, to, receiver) in
            [(client, &server, Receiver::Server), (&server, client, Receiver::Client)]
        {
            let (from, to) = (from.try_clone()?, to.try_clone()?);
            let shared = self.clone();
            thread::spawn(move || shared.forward(from, to, receiver));
        }
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.extend([client.try_clone()?, server]);
        Ok(())
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream, receiver: Receiver) {
        let mut buffer = vec![0; 64 << 10];
        let mut is_lost = false;
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if receiver == Receiver::Client {
                self.received_bytes.fetch_add(length as u64, Ordering::Relaxed);
            }
            is_lost |= self.state.load(Ordering::SeqCst) == SILENT;
            if !is_lost && to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        _ = to.shutdown(Shutdown::Both);
    }

    fn cut(&self) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for connection in connections.drain(..) {
            _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.inner.state.store(DROPPED, Ordering::SeqCst);
        self.inner.cut();
        // Wakes the thread that accepts connections.
        _ = TcpStream::connect(self.address);
    }
}
