//! Requests for single pods.

use weir_kube::PodClient;

use crate::server::{Reply, Server};

#[test]
fn a_timeout_names_the_server() {
    let server = Server::start();
    server.inject(|_| Some(Reply::silence()));
    let pods = PodClient::new(server.access()).unwrap();
    let text = pods.get("shop", "web").unwrap_err().text();
    assert!(text.starts_with("cannot reach the API server: http://127.0.0.1:"), "{text}");
    assert!(text.ends_with("/: no answer within 5 s"), "{text}");
}
