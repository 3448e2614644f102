//! Rules that change the destination of packets, as kube-proxy does for Services.

use std::{
    fmt, fs, io,
    time::{Duration, Instant},
};

use rustix::io::Errno;
use weir_netlink::{
    Attributes, Header, Malformed, MessageWriter, NetlinkError, NetlinkProtocol, Socket, kind,
};

use crate::legacy;

/// What changes the destination of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Translation {
    /// A chain of nftables, or of iptables-nft, with rules.
    Chain {
        /// The table.
        table: String,
        /// The chain.
        chain: String,
    },
    /// The table `nat` of iptables-legacy.
    Legacy,
    /// IPVS.
    Ipvs,
}

impl fmt::Display for Translation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Translation::Chain { table, chain } => {
                write!(f, "the chain {chain} of the table {table}")
            }
            Translation::Legacy => f.write_str("the table nat of iptables-legacy"),
            Translation::Ipvs => f.write_str("IPVS"),
        }
    }
}

/// Searches a network namespace for such rules.
#[derive(Debug)]
pub struct TranslationWatch {
    socket: Socket,
    /// When to list the rules of iptables-legacy, for which it starts a program.
    list_legacy_at: Instant,
}

/// The interval in which the rules of iptables-legacy are listed.
const LEGACY_INTERVAL: Duration = Duration::from_secs(10);

impl TranslationWatch {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::open(NetlinkProtocol::Netfilter)?;
        Ok(TranslationWatch { socket, list_legacy_at: Instant::now() })
    }

    /// What translates packets now, as far as it is known. The calling thread must be in the network
    /// namespace.
    pub fn find(&mut self) -> io::Result<Option<Translation>> {
        if let Some(chain) = self.find_chain()? {
            return Ok(Some(chain));
        }
        if has_ipvs(&fs::read_to_string(IPVS).unwrap_or_default()) {
            return Ok(Some(Translation::Ipvs));
        }
        let now = Instant::now();
        if now < self.list_legacy_at {
            return Ok(None);
        }
        self.list_legacy_at = now + LEGACY_INTERVAL;
        Ok(legacy::has_translation().then_some(Translation::Legacy))
    }

    /// The first chain of type nat with rules for packets before they are routed.
    fn find_chain(&mut self) -> io::Result<Option<Translation>> {
        let mut writer = MessageWriter::default();
        let header =
            Header { kind: NFT_MSG_GETCHAIN, flags: kind::REQUEST | kind::DUMP, sequence: 1 };
        let written = writer.message(header, |message| _ = message.fixed(&[0; NFGENMSG_LENGTH]));
        written.expect("the request fits into a message");
        let (mut found, mut malformed) = (None, None);
        let listed = self.socket.query(writer.bytes(), |message| {
            match parse_chain(message.attributes(NFGENMSG_LENGTH)) {
                Ok(chain) if found.is_none() => found = chain,
                Ok(_) => (),
                Err(error) => malformed = Some(error),
            }
        });
        match listed {
            // An interrupted list is repeated at the next call.
            Ok(()) | Err(NetlinkError::Interrupted) => (),
            // The kernel has no nf_tables.
            Err(NetlinkError::Rejected(rejection))
                if matches!(rejection.errno(), Some(Errno::OPNOTSUPP | Errno::INVAL)) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
        match malformed {
            Some(error) => Err(io::Error::other(error)),
            None => Ok(found),
        }
    }
}

/// The chain in a message, if its rules can change the destination of packets. Rules of a chain count
/// as its uses.
fn parse_chain(attributes: Attributes<'_>) -> Result<Option<Translation>, Malformed> {
    let (mut table, mut chain, mut is_nat, mut uses, mut hook) = ("", "", false, 0, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_TABLE => table = attribute.text()?,
            NFTA_CHAIN_NAME => chain = attribute.text()?,
            NFTA_CHAIN_TYPE => is_nat = attribute.text()? == "nat",
            NFTA_CHAIN_USE => uses = attribute.be_u32()?,
            NFTA_CHAIN_HOOK => {
                for inner in attribute.attributes() {
                    let inner = inner?;
                    if inner.kind == NFTA_HOOK_HOOKNUM {
                        hook = Some(inner.be_u32()?);
                    }
                }
            }
            _ => (),
        }
    }
    let is_early = matches!(hook, Some(NF_INET_PRE_ROUTING | NF_INET_LOCAL_OUT));
    let (table, chain) = (table.to_owned(), chain.to_owned());
    Ok((is_nat && is_early && uses > 0).then_some(Translation::Chain { table, chain }))
}

/// Whether the list of IPVS has services: lines that begin with a protocol.
fn has_ipvs(list: &str) -> bool {
    let starts = ["TCP ", "UDP ", "SCTP ", "FWM "];
    list.lines().any(|line| starts.iter().any(|start| line.starts_with(start)))
}

const IPVS: &str = "/proc/thread-self/net/ip_vs";

// From `linux/netfilter/nf_tables.h` and `linux/netfilter.h`.
const NFT_MSG_GETCHAIN: u16 = 10 << 8 | 4;
const NFGENMSG_LENGTH: usize = 4;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_USE: u16 = 6;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NF_INET_PRE_ROUTING: u32 = 0;
const NF_INET_LOCAL_OUT: u32 = 3;

#[cfg(test)]
mod tests {
    use weir_netlink::Messages;

    use super::*;

    fn parse(name: &str, hook: u32, uses: u32) -> Option<Translation> {
        let mut writer = MessageWriter::default();
        let written = writer.message(Header { kind: 0, flags: 0, sequence: 1 }, |body| {
            body.text(NFTA_CHAIN_TABLE, "t").text(NFTA_CHAIN_NAME, "c");
            body.text(NFTA_CHAIN_TYPE, name).bytes(NFTA_CHAIN_USE, &uses.to_be_bytes());
            body.nest(NFTA_CHAIN_HOOK, |inner| {
                _ = inner.bytes(NFTA_HOOK_HOOKNUM, &hook.to_be_bytes());
            });
        });
        written.expect("it fits");
        let message = Messages::new(writer.bytes()).next().expect("a message").expect("valid");
        parse_chain(message.attributes(0)).expect("valid")
    }

    #[test]
    fn only_chains_that_can_translate_destinations_count() {
        let found = Translation::Chain { table: "t".into(), chain: "c".into() };
        assert_eq!(parse("nat", NF_INET_PRE_ROUTING, 1), Some(found.clone()));
        assert_eq!(parse("nat", NF_INET_LOCAL_OUT, 2), Some(found));
        assert_eq!(parse("nat", NF_INET_PRE_ROUTING, 0), None, "without rules");
        assert_eq!(parse("nat", 4, 1), None, "masquerading");
        assert_eq!(parse("filter", NF_INET_PRE_ROUTING, 1), None);
    }

    #[test]
    fn services_of_ipvs_are_recognized() {
        let header = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
        assert!(!has_ipvs(header));
        assert!(has_ipvs(&format!("{header}TCP  0A600001:01BB rr\n")));
    }
}
