//! Addresses to serve HTTP on.

use std::net::SocketAddr;

/// An address to serve HTTP on; `None` if HTTP is off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Http(pub(crate) Option<SocketAddr>);

/// Parses an address with a port, or `off`.
pub(crate) fn http(text: &str) -> Result<Http, String> {
    match text {
        "off" => Ok(Http(None)),
        address => match address.parse() {
            Ok(address) => Ok(Http(Some(address))),
            Err(_) => {
                Err("expected an address with a port, as in 127.0.0.1:9640, or `off`".to_owned())
            }
        },
    }
}
