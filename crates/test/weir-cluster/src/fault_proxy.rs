use std::{
    collections::BTreeMap,
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures::StreamExt;
use http::header::{ACCEPT, CONTENT_TYPE};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::Value;

use crate::{
    Access,
    api::{self, BoxError},
};

/// A request that the proxy received.
#[derive(Clone, Debug)]
pub struct ProxyRequest {
    /// The HTTP method.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The parameters of the query.
    pub query: BTreeMap<String, String>,
    /// When the request arrived.
    pub at: Instant,
}

/// A change of a response.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Another response. 429 demands a pause of a second.
    Answer(u16, String),
    /// The first part of the response, with a correct length.
    Cut,
    /// The response with another JSON document.
    Edit(fn(&mut Value)),
    /// A response that starts and never continues.
    Silence,
    /// A watch with this delay before each byte.
    Trickle(Duration),
    /// A watch without its events, apart from bookmarks.
    DropEvents,
}

const JSON: &str = "application/json";

/// What ends the body of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    /// Its Content-Length.
    Length,
    /// The end of the connection.
    Close,
}

type Chooser = Box<dyn FnMut(&ProxyRequest) -> Option<Fault> + Send>;

/// An HTTP proxy to an API server that changes or replaces responses.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// Without a token: requests keep their own credentials.
    server: Access,
    chooser: Mutex<Option<Chooser>>,
    log: Mutex<Vec<ProxyRequest>>,
    connections: Mutex<Vec<TcpStream>>,
    is_stopped: AtomicBool,
}

impl ProxyRequest {
    /// Whether this is a list, and not a watch or the request of a single object.
    pub fn is_list(&self) -> bool {
        let is_limited =
            ["limit", "resourceVersion"].iter().any(|key| self.query.contains_key(*key));
        self.method == "GET" && !self.is_watch() && is_limited
    }

    /// Whether this is a watch.
    pub fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|watch| watch == "true")
    }

    /// Whether the path ends with this plural.
    pub fn is_of(&self, plural: &str) -> bool {
        self.path.rsplit('/').next() == Some(plural)
    }
}

impl FaultProxy {
    /// A proxy to this API server. Requests keep their own credentials.
    pub(crate) fn to(server: &Access) -> io::Result<Self> {
        FaultProxy::from(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, server)
    }

    /// A proxy from a listener, which can be in another network namespace.
    pub(crate) fn from(listener: TcpListener, server: &Access) -> io::Result<Self> {
        let server = Access { token: String::new(), ..server.clone() };
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server,
            chooser: Mutex::default(),
            log: Mutex::default(),
            connections: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        });
        let proxy = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if proxy.is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                let proxy = proxy.clone();
                thread::spawn(move || {
                    _ = proxy.serve(&client);
                    _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        Ok(FaultProxy { address, shared })
    }

    /// The same credentials, through this proxy.
    pub fn access(&self, access: &Access) -> Access {
        Access { url: format!("http://{}", self.address), ..access.clone() }
    }

    /// Sets a function that chooses the fault of each request.
    pub fn inject(&self, chooser: impl FnMut(&ProxyRequest) -> Option<Fault> + Send + 'static) {
        *lock(&self.shared.chooser) = Some(Box::new(chooser));
    }

    /// Forwards everything from now on. Responses that have started keep their faults.
    pub fn heal(&self) {
        *lock(&self.shared.chooser) = None;
    }

    /// Closes all connections. New ones are possible.
    pub fn cut(&self) {
        for connection in lock(&self.shared.connections).drain(..) {
            _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// The requests so far that match.
    pub fn requests(&self, matches: impl Fn(&ProxyRequest) -> bool) -> Vec<ProxyRequest> {
        lock(&self.shared.log).iter().filter(|request| matches(request)).cloned().collect()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the thread that accepts connections.
        _ = TcpStream::connect(self.address);
    }
}

impl fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultProxy at {}", self.address)
    }
}

impl Shared {
    /// Serves the requests of a connection, until a response has no known length.
    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        // Each connection has its own thread.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let server = runtime
            .block_on(api::client_without_retries(&self.server))
            .map_err(io::Error::other)?;
        lock(&self.connections).push(client.try_clone()?);
        let mut reader = BufReader::new(client.try_clone()?);
        while let Some((request, upstream)) = read_request(&mut reader)? {
            lock(&self.log).push(request.clone());
            let fault = lock(&self.chooser).as_mut().and_then(|choose| choose(&request));
            match fault {
                Some(Fault::Answer(code, body)) => {
                    write_answer(client, code, JSON, body.as_bytes())?
                }
                Some(Fault::Silence) => {
                    write_head(client, JSON)?;
                    // Until the client or the test closes the connection.
                    _ = reader.read(&mut [0])?;
                    return Ok(());
                }
                fault => {
                    let body = if request.is_watch() { BodyEnd::Close } else { BodyEnd::Length };
                    let work = forward(&server, client, upstream, fault, body);
                    if runtime.block_on(work).map_err(io::Error::other)? == BodyEnd::Close {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Sends a request to the API server, and its response to the client. Returns what ended it.
async fn forward(
    server: &Client,
    mut client: &TcpStream,
    mut request: http::Request<Body>,
    fault: Option<Fault>,
    body: BodyEnd,
) -> Result<BodyEnd, BoxError> {
    if fault.is_some() {
        // Faults are changes of JSON.
        request.headers_mut().remove(ACCEPT);
    }
    let response = server.send(request).await?;
    let code = response.status().as_u16();
    let media = response.headers().get(CONTENT_TYPE).and_then(|media| media.to_str().ok());
    let media = media.unwrap_or(JSON).to_owned();
    if body == BodyEnd::Length || code != 200 {
        let mut body = response.into_body().collect().await?.to_bytes().to_vec();
        match fault {
            Some(Fault::Cut) => body.truncate(body.len().saturating_sub(3)),
            Some(Fault::Edit(edit)) => {
                let mut document: Value = serde_json::from_slice(&body)?;
                edit(&mut document);
                body = document.to_string().into_bytes();
            }
            _ => (),
        }
        write_answer(client, code, &media, &body)?;
        return Ok(BodyEnd::Length);
    }
    write_head(client, &media)?;
    let mut stream = response.into_body().into_data_stream();
    while let Some(bytes) = stream.next().await {
        let bytes = bytes?;
        match &fault {
            Some(Fault::Trickle(delay)) => {
                for byte in bytes {
                    tokio::time::sleep(*delay).await;
                    client.write_all(&[byte])?;
                }
            }
            // The API server sends each event as one chunk.
            Some(Fault::DropEvents) if !bytes.starts_with(br#"{"type":"BOOKMARK""#) => (),
            _ => client.write_all(&bytes)?,
        }
    }
    Ok(BodyEnd::Close)
}

/// Reads a request; `None` at the end of the connection.
fn read_request(
    reader: &mut BufReader<TcpStream>,
) -> io::Result<Option<(ProxyRequest, http::Request<Body>)>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let request = ProxyRequest {
        method: method.into(),
        path: path.into(),
        query: pairs.map(|(key, value)| (key.into(), value.into())).collect(),
        at: Instant::now(),
    };
    let mut upstream = http::Request::builder().method(method).uri(target);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        match &*name.to_ascii_lowercase() {
            "content-length" => length = value.trim().parse().map_err(io::Error::other)?,
            "authorization" | "content-type" | "accept" => {
                upstream = upstream.header(name, value.trim());
            }
            _ => (),
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let upstream = upstream.body(Body::from(body)).map_err(io::Error::other)?;
    Ok(Some((request, upstream)))
}

fn write_head(mut client: &TcpStream, media: &str) -> io::Result<()> {
    write!(client, "HTTP/1.1 200 OK\r\nContent-Type: {media}\r\n\r\n")
}

fn write_answer(mut client: &TcpStream, code: u16, media: &str, body: &[u8]) -> io::Result<()> {
    let more = if code == 429 { "Retry-After: 1\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {code} OK\r\n{more}Content-Type: {media}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(&[head.as_bytes(), body].concat())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
