//! Decoding any bytes as messages of the kernel does not panic: netlink framing, logged packets,
//! tracked connections, tables of nftables, and sets and rules of iptables.
#![no_main]

use std::time::SystemTime;

use libfuzzer_sys::fuzz_target;
use weir_netfilter::{Connection, Logged};
use weir_netlink::{Attributes, Message, Messages};

/// The length of the header that follows a netlink header in every message of netfilter.
const NFGENMSG_LENGTH: usize = 4;
/// Attributes that are nested deeper are not visited.
const MAX_DEPTH: u8 = 8;

fuzz_target!(|bytes: &[u8]| {
    // A fuzzer seldom finds a valid length field, so the bytes are also the payload of a message.
    decode(&Message { kind: 0, flags: 0, sequence: 0, port: 0, payload: bytes });
    Messages::new(bytes).flatten().for_each(|message| decode(&message));
    weir_iptables::fuzz::parse_saved_rules(&String::from_utf8_lossy(bytes));
});

fn decode(message: &Message<'_>) {
    visit(message.attributes(NFGENMSG_LENGTH), MAX_DEPTH);
    _ = Logged::read(message, SystemTime::UNIX_EPOCH);
    if let Ok(connection) = Connection::read(message) {
        _ = connection.to_string();
    }
    weir_nft::fuzz::decode_objects(message.attributes(NFGENMSG_LENGTH));
    weir_iptables::fuzz::decode_set(message.attributes(NFGENMSG_LENGTH));
}

fn visit(attributes: Attributes<'_>, depth: u8) {
    for attribute in attributes.flatten() {
        _ = attribute.text();
        if depth > 0 {
            visit(attribute.attributes(), depth - 1);
        }
    }
}
