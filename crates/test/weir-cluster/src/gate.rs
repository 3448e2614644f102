use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    thread,
};

const OPEN: u8 = 0;
const SHUT: u8 = 1;
const SILENT: u8 = 2;
const GONE: u8 = 3;

/// A way to the API server that can be cut, for one client and not for all.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: AtomicU8,
    connections: Mutex<Vec<TcpStream>>,
}

impl Gate {
    /// A way to this address.
    pub(crate) fn to(server: SocketAddr) -> io::Result<Self> {
        Gate::from(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, server)
    }

    /// A way to this address from wherever somebody listens, which may be another network.
    pub(crate) fn from(listener: TcpListener, server: SocketAddr) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner { state: AtomicU8::new(OPEN), connections: Mutex::default() });
        let shared = inner.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                match shared.state.load(Ordering::SeqCst) {
                    GONE => return,
                    SHUT => drop(client),
                    _ => _ = shared.connect(&client, server),
                }
            }
        });
        Ok(Gate { address, inner })
    }

    /// Where it begins.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts all connections and lets nobody in.
    pub fn shut(&self) {
        self.inner.state.store(SHUT, Ordering::SeqCst);
        self.inner.cut();
    }

    /// Keeps all connections and lets nothing through, like a network that lost its way.
    pub fn silence(&self) {
        self.inner.state.store(SILENT, Ordering::SeqCst);
    }

    /// Lets new connections through. Those that were silenced stay so.
    pub fn open(&self) {
        self.inner.state.store(OPEN, Ordering::SeqCst);
    }
}

impl Inner {
    fn connect(self: &Arc<Self>, client: &TcpStream, server: SocketAddr) -> io::Result<()> {
        let server = TcpStream::connect(server)?;
        // What is small goes on at once. Else it would wait until the other end has confirmed what went before, which a client
        // that only listens to a watch does late.
        [client, &server].into_iter().try_for_each(|stream| stream.set_nodelay(true))?;
        for (from, to) in [(client, &server), (&server, client)] {
            let (from, to) = (from.try_clone()?, to.try_clone()?);
            let shared = self.clone();
            thread::spawn(move || shared.pass_on(from, to));
        }
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.extend([client.try_clone()?, server]);
        Ok(())
    }

    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        let mut is_lost = false;
        while let Ok(length @ 1..) = from.read(&mut buffer) {
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
        self.inner.state.store(GONE, Ordering::SeqCst);
        self.inner.cut();
        // Wakes the thread that waits for clients.
        _ = TcpStream::connect(self.address);
    }
}
