//! Where to listen for HTTP.

use std::net::SocketAddr;

/// Where to listen, if anywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Http(pub(crate) Option<SocketAddr>);

/// Reads an address, or `off`.
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
