//! The nftables table that diverts the DNS packets of some pods to a queue.
//!
//! ```text
//!   forward, input, output ─► to port 53?   ─► questions: from a pod of the set? queue
//!                          ─► from port 53? ─► answers:   to a pod of the set?   queue
//! ```
//!
//! The chains run after those of policies, so a question that a policy denies is never seen. The
//! table belongs to the socket: no other program can change it, and it disappears when the process
//! ends. Then DNS works without it, and no address of a name becomes known.
//!
//! Both Linux backends use this table. iptables on a kernel without nf_tables cannot.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use rustix::io::Errno;
use weir_model::IpFamily;
use weir_netlink::{
    Body, Header, MessageWriter, Messages, NetlinkError, NetlinkProtocol, Socket, TooLong, kind,
};

/// The number of the queue: "we" in ASCII.
pub(crate) const QUEUE: u16 = 0x7765;

const TABLE: &str = "weir-names";
const QUESTIONS: &str = "questions";
const ANSWERS: &str = "answers";
/// The port of resolvers.
const DNS: u16 = 53;
/// The hooks, with priorities after the chains of policies.
const HOOKS: [(&str, u32, i32); 3] = [("forward", 2, 10), ("input", 1, 110), ("output", 3, 10)];

/// The most elements in a message.
const ELEMENTS_PER_MESSAGE: usize = 1000;

/// The table.
#[derive(Debug)]
pub(crate) struct DnsRules {
    socket: Socket,
    buffer: Vec<u8>,
    /// The pods in the sets; none while the table does not exist.
    pods: Option<BTreeSet<IpAddr>>,
}

/// How a rule sends a packet to the queue. A kernel has one or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueBy {
    /// The target `NFQUEUE` of iptables.
    Target,
    /// The expression of nftables.
    Expression,
}

/// Why the table cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RulesError {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

impl DnsRules {
    /// Opens nftables of the calling thread's network namespace. It writes nothing.
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        let socket = Socket::open(NetlinkProtocol::Netfilter)
            .map_err(|source| NetlinkError::Socket { what: "open nftables", source })?;
        Ok(DnsRules { socket, buffer: vec![0; 64 * 1024], pods: None })
    }

    /// Diverts the DNS packets of exactly these pods.
    pub(crate) fn divert(&mut self, pods: &BTreeSet<IpAddr>) -> Result<(), RulesError> {
        match &self.pods {
            None if pods.is_empty() => return Ok(()),
            Some(installed) if installed == pods => return Ok(()),
            Some(_) if pods.is_empty() => {
                self.send(|batch| batch.table(NFT_MSG_DELTABLE, 0, |_| ()))?;
                self.pods = None;
                return Ok(());
            }
            Some(_) => self.send(|batch| {
                IpFamily::BOTH.into_iter().try_for_each(|family| batch.flush(family))?;
                batch.pods(pods)
            })?,
            None => {
                let written = self.send(|batch| batch.whole(QueueBy::Target, pods));
                match written {
                    Err(RulesError::Netlink(NetlinkError::Rejected(rejection)))
                        if rejection.errno() == Some(Errno::NOENT) =>
                    {
                        self.send(|batch| batch.whole(QueueBy::Expression, pods))?;
                    }
                    written => written?,
                }
            }
        }
        self.pods = Some(pods.clone());
        Ok(())
    }

    /// Sends a batch. The kernel replies while it handles the batch, so no reply means success.
    fn send(
        &mut self,
        write: impl FnOnce(&mut Batch) -> Result<(), TooLong>,
    ) -> Result<(), RulesError> {
        let mut batch = Batch(MessageWriter::default());
        batch.message(NFNL_MSG_BATCH_BEGIN, 0, |body| _ = body.fixed(&BATCH))?;
        write(&mut batch)?;
        batch.message(NFNL_MSG_BATCH_END, 0, |body| _ = body.fixed(&BATCH))?;
        let failed = |what| move |source| NetlinkError::Socket { what, source };
        self.socket.send(batch.0.bytes()).map_err(failed("send"))?;
        let mut first = Ok(());
        let now = Some(Duration::ZERO);
        while let Some(received) =
            self.socket.receive(&mut self.buffer, now).map_err(failed("receive"))?
        {
            for message in Messages::new(received) {
                let message = message.map_err(NetlinkError::from)?;
                if let (Ok(()), Some(Err(rejection))) = (&first, message.verdict()) {
                    first = Err(NetlinkError::from(rejection).into());
                }
            }
        }
        first
    }
}

/// Messages of one transaction.
struct Batch(MessageWriter);

impl Batch {
    fn message(
        &mut self,
        number: u16,
        flags: u16,
        body: impl FnOnce(&mut Body<'_>),
    ) -> Result<(), TooLong> {
        self.0.message(Header { kind: number, flags: kind::REQUEST | flags, sequence: 0 }, body)
    }

    /// A message about an object of the table. The table's name is its first attribute.
    fn table(
        &mut self,
        number: u16,
        flags: u16,
        body: impl FnOnce(&mut Body<'_>),
    ) -> Result<(), TooLong> {
        self.message(number, flags, |message| {
            message.fixed(&INET).text(NAME, TABLE);
            body(message);
        })
    }

    fn whole(&mut self, queue: QueueBy, pods: &BTreeSet<IpAddr>) -> Result<(), TooLong> {
        self.table(NFT_MSG_NEWTABLE, kind::CREATE, |body| {
            body.be_u32(NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
        })?;
        for (number, family) in (1..).zip(IpFamily::BOTH) {
            let (key_type, length) = address(family);
            self.table(NFT_MSG_NEWSET, kind::CREATE, |body| {
                body.text(NFTA_SET_NAME, set_of(family))
                    .be_u32(NFTA_SET_FLAGS, 0)
                    .be_u32(NFTA_SET_KEY_TYPE, key_type)
                    .be_u32(NFTA_SET_KEY_LEN, length)
                    .be_u32(NFTA_SET_ID, number);
            })?;
        }
        for chain in [QUESTIONS, ANSWERS] {
            self.table(NFT_MSG_NEWCHAIN, kind::CREATE, |body| {
                _ = body.text(NFTA_CHAIN_NAME, chain)
            })?;
        }
        for (chain, hook, priority) in HOOKS {
            self.table(NFT_MSG_NEWCHAIN, kind::CREATE, |body| {
                body.text(NFTA_CHAIN_NAME, chain);
                body.nest(NFTA_CHAIN_HOOK, |body| {
                    body.be_u32(NFTA_HOOK_HOOKNUM, hook)
                        .bytes(NFTA_HOOK_PRIORITY, &priority.to_be_bytes());
                });
                body.be_u32(NFTA_CHAIN_POLICY, NF_ACCEPT).text(NFTA_CHAIN_TYPE, "filter");
            })?;
            for (port_at, target) in [(DESTINATION_PORT, QUESTIONS), (SOURCE_PORT, ANSWERS)] {
                self.rule(chain, |rule| {
                    payload(rule, NFT_PAYLOAD_TRANSPORT_HEADER, port_at, 2);
                    compare(rule, &DNS.to_be_bytes());
                    goto(rule, target);
                })?;
            }
        }
        for family in IpFamily::BOTH {
            let [source, destination] = address_offsets(family);
            for (chain, at) in [(QUESTIONS, source), (ANSWERS, destination)] {
                for protocol in [UDP, TCP] {
                    self.rule(chain, |rule| {
                        meta(rule, NFT_META_NFPROTO);
                        compare(rule, &[nfproto(family)]);
                        meta(rule, NFT_META_L4PROTO);
                        compare(rule, &[protocol]);
                        payload(rule, NFT_PAYLOAD_NETWORK_HEADER, at, address(family).1);
                        lookup(rule, set_of(family));
                        queue_packet(rule, queue);
                    })?;
                }
            }
        }
        self.pods(pods)
    }

    fn rule(&mut self, chain: &str, rule: impl FnOnce(&mut Body<'_>)) -> Result<(), TooLong> {
        self.table(NFT_MSG_NEWRULE, kind::CREATE | kind::APPEND, |body| {
            body.text(NFTA_RULE_CHAIN, chain).nest(NFTA_RULE_EXPRESSIONS, rule);
        })
    }

    fn flush(&mut self, family: IpFamily) -> Result<(), TooLong> {
        self.table(NFT_MSG_DELSETELEM, 0, |body| {
            body.text(NFTA_SET_ELEM_LIST_SET, set_of(family));
        })
    }

    fn pods(&mut self, pods: &BTreeSet<IpAddr>) -> Result<(), TooLong> {
        for family in IpFamily::BOTH {
            let of_family = pods.iter().filter(|pod| IpFamily::from(**pod) == family);
            let of_family: Vec<&IpAddr> = of_family.collect();
            for some in of_family.chunks(ELEMENTS_PER_MESSAGE) {
                self.table(NFT_MSG_NEWSETELEM, kind::CREATE, |body| {
                    body.text(NFTA_SET_ELEM_LIST_SET, set_of(family));
                    body.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
                        for pod in some {
                            list.nest(NFTA_LIST_ELEM, |element| {
                                element.nest(NFTA_SET_ELEM_KEY, |key| {
                                    _ = match pod {
                                        IpAddr::V4(v4) => key.bytes(NFTA_DATA_VALUE, &v4.octets()),
                                        IpAddr::V6(v6) => key.bytes(NFTA_DATA_VALUE, &v6.octets()),
                                    };
                                });
                            });
                        }
                    });
                })?;
            }
        }
        Ok(())
    }
}

fn set_of(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "pods4",
        IpFamily::V6 => "pods6",
    }
}

/// The type of an address for the nft program, and its length.
fn address(family: IpFamily) -> (u32, u32) {
    match family {
        IpFamily::V4 => (7, 4),
        IpFamily::V6 => (8, 16),
    }
}

/// The offsets of the source and the destination address in the IP header.
fn address_offsets(family: IpFamily) -> [u32; 2] {
    match family {
        IpFamily::V4 => [12, 16],
        IpFamily::V6 => [8, 24],
    }
}

fn nfproto(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => crate::nfnetlink::IPV4,
        IpFamily::V6 => crate::nfnetlink::IPV6,
    }
}

fn expression(rule: &mut Body<'_>, name: &str, data: impl FnOnce(&mut Body<'_>)) {
    rule.nest(NFTA_LIST_ELEM, |expression| {
        expression.text(NFTA_EXPR_NAME, name).nest(NFTA_EXPR_DATA, data);
    });
}

fn meta(rule: &mut Body<'_>, key: u32) {
    expression(rule, "meta", |data| _ = data.be_u32(1, NFT_REG_1).be_u32(2, key));
}

fn payload(rule: &mut Body<'_>, base: u32, offset: u32, length: u32) {
    expression(rule, "payload", |data| {
        data.be_u32(1, NFT_REG_1).be_u32(2, base).be_u32(3, offset).be_u32(4, length);
    });
}

fn compare(rule: &mut Body<'_>, value: &[u8]) {
    expression(rule, "cmp", |data| {
        data.be_u32(1, NFT_REG_1).be_u32(2, NFT_CMP_EQ);
        data.nest(3, |body| _ = body.bytes(NFTA_DATA_VALUE, value));
    });
}

fn lookup(rule: &mut Body<'_>, set: &str) {
    expression(rule, "lookup", |data| _ = data.text(1, set).be_u32(2, NFT_REG_1));
}

fn goto(rule: &mut Body<'_>, chain: &str) {
    expression(rule, "immediate", |data| {
        data.be_u32(1, NFT_REG_VERDICT).nest(2, |body| {
            body.nest(NFTA_DATA_VERDICT, |verdict| {
                verdict.bytes(1, &NFT_GOTO.to_be_bytes()).text(2, chain);
            });
        });
    });
}

/// Sends the packet to the queue; if it has no reader, the packet passes.
fn queue_packet(rule: &mut Body<'_>, by: QueueBy) {
    match by {
        QueueBy::Target => expression(rule, "target", |data| {
            // `xt_NFQ_info_v3`: the first queue, the number of queues, the flags, padding.
            let [queue, count, flags] = [QUEUE, 1, NFQ_FLAG_BYPASS].map(u16::to_ne_bytes);
            let info = [queue, count, flags, [0; 2]].concat();
            data.text(1, "NFQUEUE").be_u32(2, 3).bytes(3, &info);
        }),
        QueueBy::Expression => expression(rule, "queue", |data| {
            data.be_u16(1, QUEUE).be_u16(2, 1).be_u16(3, NFQ_FLAG_BYPASS);
        }),
    }
}

// Numbers, as in `linux/netfilter/nf_tables.h` and `linux/netfilter/nfnetlink.h`.
const BATCH: [u8; 4] = [0, 0, 0, 10];
const INET: [u8; 4] = [1, 0, 0, 0];
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFT_MSG_NEWTABLE: u16 = 0xa00;
const NFT_MSG_DELTABLE: u16 = 0xa02;
const NFT_MSG_NEWCHAIN: u16 = 0xa03;
const NFT_MSG_NEWRULE: u16 = 0xa06;
const NFT_MSG_NEWSET: u16 = 0xa09;
const NFT_MSG_NEWSETELEM: u16 = 0xa0c;
const NFT_MSG_DELSETELEM: u16 = 0xa0e;
const NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFT_TABLE_F_OWNER: u32 = 2;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_FLAGS: u16 = 3;
const NFTA_SET_KEY_TYPE: u16 = 4;
const NFTA_SET_KEY_LEN: u16 = 5;
const NFTA_SET_ID: u16 = 10;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFT_REG_VERDICT: u32 = 0;
const NFT_REG_1: u32 = 1;
const NFT_CMP_EQ: u32 = 0;
const NFT_GOTO: i32 = -4;
const NF_ACCEPT: u32 = 1;
const NFT_META_NFPROTO: u32 = 15;
const NFT_META_L4PROTO: u32 = 16;
const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
const SOURCE_PORT: u32 = 0;
const DESTINATION_PORT: u32 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const NFQ_FLAG_BYPASS: u16 = 1;
