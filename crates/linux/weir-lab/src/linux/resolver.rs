use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::net::listen;
use weir_model::Protocol;

use super::{lab::Lab, socket::open};
use crate::LabError;

/// A DNS server of a lab, over UDP and TCP, until it is dropped.
#[derive(Debug)]
pub struct Resolver {
    is_stopping: Arc<AtomicBool>,
}

/// The answers to a question, in the order in which the server sends them.
pub type Answers = dyn Fn(&[u8]) -> Vec<Vec<u8>> + Send + Sync;

/// The interval of checks whether to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(100);
/// The most connections that wait to be accepted.
const MAX_WAITING_CONNECTIONS: i32 = 128;
/// The longest question.
const MAX_QUESTION_BYTES: usize = 4096;

impl Resolver {
    /// Starts a server at an address of a pod, a node or the outside.
    pub fn start(lab: &Lab, at: SocketAddr, answers: Arc<Answers>) -> Result<Resolver, LabError> {
        let failed = |source| LabError::Resolver { at, source };
        let bind = || {
            let datagrams = UdpSocket::from(open(Protocol::Udp, at.ip(), at.port())?);
            let connections = open(Protocol::Tcp, at.ip(), at.port())?;
            listen(&connections, MAX_WAITING_CONNECTIONS)?;
            io::Result::Ok((datagrams, TcpListener::from(connections)))
        };
        let (datagrams, connections) = lab.at(at.ip(), bind)?.map_err(failed)?;
        datagrams.set_nonblocking(false).map_err(failed)?;
        datagrams.set_read_timeout(Some(STOP_INTERVAL)).map_err(failed)?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (stop, with) = (is_stopping.clone(), answers.clone());
        thread::spawn(move || {
            let mut question = [0; MAX_QUESTION_BYTES];
            while !stop.load(Ordering::Relaxed) {
                let Ok((length, from)) = datagrams.recv_from(&mut question) else { continue };
                for answer in with(&question[..length]) {
                    // An answer that does not fit into a datagram is not sent.
                    _ = datagrams.send_to(&answer, from);
                }
            }
        });
        let stop = is_stopping.clone();
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match connections.accept() {
                    Ok((stream, _)) => {
                        let answers = answers.clone();
                        // A client that hangs up ends its thread.
                        thread::spawn(move || _ = serve(stream, &*answers));
                    }
                    Err(_) => thread::sleep(STOP_INTERVAL / 10),
                }
            }
        });
        Ok(Resolver { is_stopping })
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }
}

/// Answers the questions of a connection.
fn serve(mut stream: TcpStream, answers: &Answers) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    loop {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut question)?;
        for answer in answers(&question) {
            let length = u16::try_from(answer.len()).unwrap_or(u16::MAX);
            stream.write_all(&length.to_be_bytes())?;
            stream.write_all(&answer[..usize::from(length)])?;
        }
    }
}
