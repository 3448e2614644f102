//! A relay that sends what a test wants, and a client that is no agent.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use weir_kube::SyncPoint;

use crate::{api, process::Files};

/// A server with a valid certificate. It closes each connection soon after its frames.
pub(crate) struct Liar {
    pub(crate) address: SocketAddr,
    listener: Option<TcpListener>,
    config: Arc<ServerConfig>,
    answers: Arc<AtomicUsize>,
    /// How long it keeps a connection after its frames.
    pub(crate) linger: Duration,
}

impl Liar {
    /// A server that does not answer yet.
    pub(crate) fn new(files: &Files) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| files.path(name));
        let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
            .unwrap();
        let (listener, answers) = (Some(listener), Arc::default());
        Liar { address, listener, config: Arc::new(config), answers, linger: Duration::ZERO }
    }

    /// Sends these frames to agents from now on. They depend on what the agent has seen.
    pub(crate) fn tell(&mut self, frames: impl Fn(&SyncPoint) -> Vec<u8> + Send + 'static) {
        let listener = self.listener.take().unwrap();
        let (config, answers, linger) = (self.config.clone(), self.answers.clone(), self.linger);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if serve(stream, config.clone(), &frames, linger).is_ok() {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }

    /// The number of requests that it has answered.
    pub(crate) fn answers(&self) -> usize {
        self.answers.load(Ordering::Relaxed)
    }
}

fn serve(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    frames: &impl Fn(&SyncPoint) -> Vec<u8>,
    linger: Duration,
) -> io::Result<()> {
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut reader = BufReader::new(StreamOwned::new(connection, stream));
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let seen = first.split([' ', '=']).find_map(|word| word.parse().ok()).unwrap_or_default();
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let stream = reader.get_mut();
    stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
    stream.write_all(&frames(&seen))?;
    stream.flush()?;
    thread::sleep(linger);
    stream.conn.send_close_notify();
    stream.flush()
}

/// Requests the objects of a node from a relay. Returns the status code of the answer.
pub(crate) fn request(
    address: SocketAddr,
    files: &Files,
    node: &str,
    token: &str,
    seen: &str,
) -> io::Result<u16> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(files.path("tls.crt")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::from(address.ip());
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(15)))?;
    let mut stream = StreamOwned::new(connection, stream);
    write!(
        stream,
        "GET /v1/nodes/{node}/objects?reached={seen} HTTP/1.1\r\nHost: relay\r\nAuthorization: Bearer {}\r\n\r\n",
        api::token(token)
    )?;
    let mut start = [0; 12];
    stream.read_exact(&mut start)?;
    let code = std::str::from_utf8(&start[9..]).ok().and_then(|code| code.parse().ok());
    code.ok_or_else(|| io::Error::other("the answer is not HTTP"))
}
