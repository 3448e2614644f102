//! An API server that makes its objects on request: a list of a million pods needs no memory here.

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, BufWriter, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use anyhow::{Context, Result};

use super::world::RealisticWorld;

/// The version of every list.
const VERSION: &str = "1000000000";

/// Serves a world until the process ends. Returns the address.
pub(super) fn serve(world: RealisticWorld) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || converse(stream, world));
        }
    });
    Ok(address)
}

/// Answers the requests of one connection. An error ends the connection.
fn converse(stream: TcpStream, world: RealisticWorld) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut lines = BufReader::new(stream).lines();
    loop {
        let request = lines.next()?.ok()?;
        while !lines.next()?.ok()?.is_empty() {}
        let target = request.split(' ').nth(1)?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let argument = |name: &str| {
            let mut arguments = query.split('&').filter_map(|pair| pair.split_once('='));
            arguments.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let Some(list) = ObjectList::of_path(path, world) else {
            // The details of a list that is not served name no object.
            let (parent, name) = path.rsplit_once('/')?;
            let name = if parent.ends_with("customresourcedefinitions") { name } else { "" };
            answer(&mut out, "404 Not Found", &status(404, "NotFound", name))?;
            continue;
        };
        match argument("watch") {
            Some(_) if argument("sendInitialEvents").is_some() => {
                answer(&mut out, "422 Unprocessable Entity", &status(422, "Invalid", ""))?;
            }
            // Nothing ever changes.
            Some(_) => {
                out.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
                out.flush().ok()?;
            }
            None => {
                let limit = argument("limit").and_then(|limit| limit.parse().ok());
                let start = argument("continue").and_then(|token| token.parse().ok());
                list.send(&mut out, start.unwrap_or(0), limit.unwrap_or(usize::MAX))?;
            }
        }
    }
}

/// A failure. Its details name the object that does not exist.
fn status(code: u16, reason: &str, name: &str) -> String {
    format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{reason}","reason":"{reason}","details":{{"name":"{name}"}},"code":{code}}}"#
    )
}

fn answer(out: &mut TcpStream, status: &str, body: &str) -> Option<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    out.write_all((head + body).as_bytes()).ok()
}

/// The objects of one kind.
struct ObjectList {
    version: &'static str,
    kind: &'static str,
    count: usize,
    world: RealisticWorld,
    object: fn(RealisticWorld, usize) -> String,
}

impl ObjectList {
    fn of_path(path: &str, world: RealisticWorld) -> Option<Self> {
        let (version, kind, count, object): (_, _, _, fn(RealisticWorld, usize) -> String) =
            match path {
                "/api/v1/pods" => ("v1", "PodList", world.pods, RealisticWorld::pod),
                "/api/v1/namespaces" => {
                    ("v1", "NamespaceList", world.namespaces(), RealisticWorld::namespace)
                }
                "/api/v1/nodes" => ("v1", "NodeList", world.nodes(), RealisticWorld::node),
                "/apis/networking.k8s.io/v1/networkpolicies" => {
                    let version = "networking.k8s.io/v1";
                    (version, "NetworkPolicyList", world.policies(), RealisticWorld::policy)
                }
                _ => return None,
            };
        Some(ObjectList { version, kind, count, world, object })
    }

    /// Sends a page, object by object.
    fn send(&self, out: &mut TcpStream, start: usize, limit: usize) -> Option<()> {
        let end = self.count.min(start.saturating_add(limit));
        let (version, kind) = (self.version, self.kind);
        let mut out = BufWriter::with_capacity(64 << 10, out);
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
        write!(out, "{head}Transfer-Encoding: chunked\r\n\r\n").ok()?;
        let mut chunk = format!(
            r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{{"resourceVersion":"{VERSION}""#
        );
        if end < self.count {
            let rest = self.count - end;
            _ = write!(chunk, r#","continue":"{end}","remainingItemCount":{rest}"#);
        }
        chunk.push_str(r#"},"items":["#);
        for at in start..end {
            chunk.push_str(if at == start { "" } else { "," });
            chunk.push_str(&(self.object)(self.world, at));
            write!(out, "{:x}\r\n{chunk}\r\n", chunk.len()).ok()?;
            chunk.clear();
        }
        chunk.push_str("]}");
        write!(out, "{:x}\r\n{chunk}\r\n0\r\n\r\n", chunk.len()).ok()?;
        out.flush().ok()
    }
}
