//! The numbers of the kernel's nf_tables, under the names that the kernel gives them.
//!
//! They come from `linux/netfilter/nf_tables.h`, `linux/netfilter/nfnetlink.h` and their
//! neighbours. The last group belongs to the nft program, which stores types and comments as opaque
//! data.

// The families and the header of a message: `nfgenmsg`.
pub(crate) const NFPROTO_UNSPEC: u8 = 0;
pub(crate) const NFPROTO_INET: u8 = 1;
pub(crate) const NFPROTO_IPV4: u8 = 2;
pub(crate) const NFPROTO_BRIDGE: u8 = 7;
pub(crate) const NFPROTO_IPV6: u8 = 10;
pub(crate) const NFNETLINK_V0: u8 = 0;
pub(crate) const NFNL_SUBSYS_NFTABLES: u8 = 10;
/// The length of the header before the attributes.
pub(crate) const NFGENMSG_LENGTH: usize = 4;

// Message types.
pub(crate) const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
pub(crate) const NFNL_MSG_BATCH_END: u16 = 0x11;
pub(crate) const NFT_MSG_NEWTABLE: u16 = message(0);
pub(crate) const NFT_MSG_GETTABLE: u16 = message(1);
pub(crate) const NFT_MSG_DELTABLE: u16 = message(2);
pub(crate) const NFT_MSG_NEWCHAIN: u16 = message(3);
pub(crate) const NFT_MSG_GETCHAIN: u16 = message(4);
pub(crate) const NFT_MSG_DELCHAIN: u16 = message(5);
pub(crate) const NFT_MSG_NEWRULE: u16 = message(6);
pub(crate) const NFT_MSG_GETRULE: u16 = message(7);
pub(crate) const NFT_MSG_DELRULE: u16 = message(8);
pub(crate) const NFT_MSG_NEWSET: u16 = message(9);
pub(crate) const NFT_MSG_GETSET: u16 = message(10);
pub(crate) const NFT_MSG_DELSET: u16 = message(11);
pub(crate) const NFT_MSG_NEWSETELEM: u16 = message(12);
pub(crate) const NFT_MSG_GETSETELEM: u16 = message(13);
pub(crate) const NFT_MSG_DELSETELEM: u16 = message(14);
pub(crate) const NFT_MSG_NEWGEN: u16 = message(15);
pub(crate) const NFT_MSG_GETGEN: u16 = message(16);
pub(crate) const NFT_MSG_GETOBJ: u16 = message(19);
pub(crate) const NFT_MSG_GETFLOWTABLE: u16 = message(23);

/// The multicast group of all changes to nf_tables.
pub(crate) const NFNLGRP_NFTABLES: u32 = 7;

// Batches and generations.
pub(crate) const NFNL_BATCH_GENID: u16 = 1;
pub(crate) const NFTA_GEN_ID: u16 = 1;

/// An element of any nested list.
pub(crate) const NFTA_LIST_ELEM: u16 = 1;

// Tables.
pub(crate) const NFTA_TABLE_NAME: u16 = 1;
pub(crate) const NFTA_TABLE_FLAGS: u16 = 2;

// Chains.
pub(crate) const NFTA_CHAIN_TABLE: u16 = 1;
pub(crate) const NFTA_CHAIN_NAME: u16 = 3;
pub(crate) const NFTA_CHAIN_HOOK: u16 = 4;
pub(crate) const NFTA_CHAIN_POLICY: u16 = 5;
pub(crate) const NFTA_CHAIN_TYPE: u16 = 7;
pub(crate) const NFTA_HOOK_HOOKNUM: u16 = 1;
pub(crate) const NFTA_HOOK_PRIORITY: u16 = 2;
/// Also the number of `NF_BR_PRE_ROUTING`.
pub(crate) const NF_INET_PRE_ROUTING: u32 = 0;
pub(crate) const NF_INET_LOCAL_IN: u32 = 1;
pub(crate) const NF_INET_FORWARD: u32 = 2;
pub(crate) const NF_INET_LOCAL_OUT: u32 = 3;
pub(crate) const NF_IP_PRI_RAW: i32 = -300;
pub(crate) const NF_IP_PRI_FILTER: i32 = 0;
pub(crate) const NF_IP_PRI_NAT_SRC: i32 = 100;

// Rules.
pub(crate) const NFTA_RULE_TABLE: u16 = 1;
pub(crate) const NFTA_RULE_CHAIN: u16 = 2;
pub(crate) const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub(crate) const NFTA_RULE_COMPAT: u16 = 5;
pub(crate) const NFTA_RULE_USERDATA: u16 = 7;

// Sets.
pub(crate) const NFTA_SET_TABLE: u16 = 1;
pub(crate) const NFTA_SET_NAME: u16 = 2;
pub(crate) const NFTA_SET_FLAGS: u16 = 3;
pub(crate) const NFTA_SET_KEY_TYPE: u16 = 4;
pub(crate) const NFTA_SET_KEY_LEN: u16 = 5;
pub(crate) const NFTA_SET_DATA_TYPE: u16 = 6;
pub(crate) const NFTA_SET_DESC: u16 = 9;
pub(crate) const NFTA_SET_ID: u16 = 10;
pub(crate) const NFTA_SET_TIMEOUT: u16 = 11;
pub(crate) const NFTA_SET_USERDATA: u16 = 13;
pub(crate) const NFTA_SET_EXPR: u16 = 17;
pub(crate) const NFTA_SET_EXPRESSIONS: u16 = 18;
pub(crate) const NFTA_SET_DESC_SIZE: u16 = 1;
pub(crate) const NFTA_SET_DESC_CONCAT: u16 = 2;
pub(crate) const NFTA_SET_FIELD_LEN: u16 = 1;
pub(crate) const NFT_SET_ANONYMOUS: u32 = 0x1;
pub(crate) const NFT_SET_INTERVAL: u32 = 0x4;
pub(crate) const NFT_SET_MAP: u32 = 0x8;
pub(crate) const NFT_SET_TIMEOUT: u32 = 0x10;
/// The rules may add elements.
pub(crate) const NFT_SET_EVAL: u32 = 0x20;
pub(crate) const NFT_SET_CONCAT: u32 = 0x80;
/// The data type of a verdict map.
pub(crate) const NFT_DATA_VERDICT: u32 = 0xffff_ff00;

// Elements of sets.
pub(crate) const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
pub(crate) const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub(crate) const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub(crate) const NFTA_SET_ELEM_LIST_SET_ID: u16 = 4;
pub(crate) const NFTA_SET_ELEM_KEY: u16 = 1;
pub(crate) const NFTA_SET_ELEM_DATA: u16 = 2;
pub(crate) const NFTA_SET_ELEM_FLAGS: u16 = 3;
pub(crate) const NFTA_SET_ELEM_TIMEOUT: u16 = 4;
pub(crate) const NFTA_SET_ELEM_USERDATA: u16 = 6;
pub(crate) const NFTA_SET_ELEM_EXPR: u16 = 7;
pub(crate) const NFTA_SET_ELEM_OBJREF: u16 = 9;
pub(crate) const NFTA_SET_ELEM_KEY_END: u16 = 10;
pub(crate) const NFTA_SET_ELEM_EXPRESSIONS: u16 = 11;
/// The element ends the interval that the element before it began.
pub(crate) const NFT_SET_ELEM_INTERVAL_END: u32 = 0x1;

// Data and verdicts.
pub(crate) const NFTA_DATA_VALUE: u16 = 1;
pub(crate) const NFTA_DATA_VERDICT: u16 = 2;
pub(crate) const NFTA_VERDICT_CODE: u16 = 1;
pub(crate) const NFTA_VERDICT_CHAIN: u16 = 2;
pub(crate) const NF_DROP: i32 = 0;
pub(crate) const NF_ACCEPT: i32 = 1;
pub(crate) const NFT_JUMP: i32 = -3;
pub(crate) const NFT_GOTO: i32 = -4;
pub(crate) const NFT_RETURN: i32 = -5;

// Registers: four of 16 bytes, which overlay sixteen of 4 bytes.
pub(crate) const NFT_REG_VERDICT: u32 = 0;
pub(crate) const NFT_REG_1: u32 = 1;
pub(crate) const NFT_REG_4: u32 = 4;
pub(crate) const NFT_REG32_00: u32 = 8;
pub(crate) const NFT_REG32_15: u32 = 23;

// Expressions.
pub(crate) const NFTA_EXPR_NAME: u16 = 1;
pub(crate) const NFTA_EXPR_DATA: u16 = 2;
pub(crate) const NFTA_META_DREG: u16 = 1;
pub(crate) const NFTA_META_KEY: u16 = 2;
pub(crate) const NFT_META_PROTOCOL: u32 = 1;
pub(crate) const NFT_META_MARK: u32 = 3;
pub(crate) const NFT_META_IIF: u32 = 4;
pub(crate) const NFT_META_IIFNAME: u32 = 6;
pub(crate) const NFT_META_NFPROTO: u32 = 15;
pub(crate) const NFT_META_L4PROTO: u32 = 16;
pub(crate) const NFT_META_PKTTYPE: u32 = 19;
/// The `pkttype` of a frame to this node, from `linux/if_packet.h`.
pub(crate) const PACKET_HOST: u8 = 0;
pub(crate) const NFTA_PAYLOAD_DREG: u16 = 1;
pub(crate) const NFTA_PAYLOAD_BASE: u16 = 2;
pub(crate) const NFTA_PAYLOAD_OFFSET: u16 = 3;
pub(crate) const NFTA_PAYLOAD_LEN: u16 = 4;
pub(crate) const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
pub(crate) const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
pub(crate) const NFTA_CT_DREG: u16 = 1;
pub(crate) const NFTA_CT_KEY: u16 = 2;
pub(crate) const NFTA_CT_DIRECTION: u16 = 3;
pub(crate) const NFT_CT_STATE: u32 = 0;
pub(crate) const NFT_CT_DIRECTION: u32 = 1;
pub(crate) const NFT_CT_STATUS: u32 = 2;
pub(crate) const IP_CT_DIR_REPLY: u8 = 1;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`.
pub(crate) const CT_STATE_ESTABLISHED: u32 = 1 << 1;
/// `NF_CT_STATE_BIT(IP_CT_RELATED)`.
pub(crate) const CT_STATE_RELATED: u32 = 1 << 2;
pub(crate) const IPS_DST_NAT: u32 = 1 << 5;
pub(crate) const NFTA_BITWISE_SREG: u16 = 1;
pub(crate) const NFTA_BITWISE_DREG: u16 = 2;
pub(crate) const NFTA_BITWISE_LEN: u16 = 3;
pub(crate) const NFTA_BITWISE_MASK: u16 = 4;
pub(crate) const NFTA_BITWISE_XOR: u16 = 5;
pub(crate) const NFTA_BITWISE_OP: u16 = 6;
pub(crate) const NFT_BITWISE_BOOL: u32 = 0;
pub(crate) const NFTA_BYTEORDER_SREG: u16 = 1;
pub(crate) const NFTA_BYTEORDER_DREG: u16 = 2;
pub(crate) const NFTA_BYTEORDER_OP: u16 = 3;
pub(crate) const NFTA_BYTEORDER_LEN: u16 = 4;
pub(crate) const NFTA_BYTEORDER_SIZE: u16 = 5;
pub(crate) const NFT_BYTEORDER_HTON: u32 = 1;
pub(crate) const NFTA_CMP_SREG: u16 = 1;
pub(crate) const NFTA_CMP_OP: u16 = 2;
pub(crate) const NFTA_CMP_DATA: u16 = 3;
pub(crate) const NFT_CMP_EQ: u32 = 0;
pub(crate) const NFT_CMP_NEQ: u32 = 1;
pub(crate) const NFT_CMP_LTE: u32 = 3;
pub(crate) const NFT_CMP_GTE: u32 = 5;
pub(crate) const NFTA_LOOKUP_SET: u16 = 1;
pub(crate) const NFTA_LOOKUP_SREG: u16 = 2;
pub(crate) const NFTA_LOOKUP_DREG: u16 = 3;
pub(crate) const NFTA_LOOKUP_FLAGS: u16 = 5;
pub(crate) const NFT_LOOKUP_F_INV: u32 = 1;
pub(crate) const NFTA_DYNSET_SET_NAME: u16 = 1;
pub(crate) const NFTA_DYNSET_OP: u16 = 3;
pub(crate) const NFTA_DYNSET_SREG_KEY: u16 = 4;
pub(crate) const NFTA_DYNSET_EXPR: u16 = 7;
pub(crate) const NFT_DYNSET_OP_ADD: u32 = 0;
pub(crate) const NFTA_IMMEDIATE_DREG: u16 = 1;
pub(crate) const NFTA_IMMEDIATE_DATA: u16 = 2;
pub(crate) const NFTA_LIMIT_RATE: u16 = 1;
pub(crate) const NFTA_LIMIT_UNIT: u16 = 2;
pub(crate) const NFTA_LIMIT_BURST: u16 = 3;
pub(crate) const NFTA_LIMIT_TYPE: u16 = 4;
pub(crate) const NFTA_LIMIT_FLAGS: u16 = 5;
pub(crate) const NFT_LIMIT_PKTS: u32 = 0;
/// The limit matches the packets beyond it.
pub(crate) const NFT_LIMIT_F_INV: u32 = 1;
pub(crate) const NFTA_COUNTER_PACKETS: u16 = 2;
pub(crate) const NFTA_REJECT_TYPE: u16 = 1;
pub(crate) const NFTA_REJECT_ICMP_CODE: u16 = 2;
pub(crate) const NFT_REJECT_TCP_RST: u32 = 1;
pub(crate) const NFT_REJECT_ICMPX_UNREACH: u32 = 2;
pub(crate) const NFT_REJECT_ICMPX_ADMIN_PROHIBITED: u8 = 3;

pub(crate) const NFTA_LOG_GROUP: u16 = 1;
pub(crate) const NFTA_LOG_PREFIX: u16 = 2;
pub(crate) const NFTA_LOG_SNAPLEN: u16 = 3;

// The nft program: types of keys, and the tags of its opaque data.
pub(crate) const TYPE_NFPROTO: u32 = 2;
pub(crate) const TYPE_IPADDR: u32 = 7;
pub(crate) const TYPE_IP6ADDR: u32 = 8;
pub(crate) const TYPE_MARK: u32 = 19;
pub(crate) const TYPE_IFNAME: u32 = 41;
pub(crate) const TYPE_INET_PROTOCOL: u32 = 12;
pub(crate) const TYPE_INET_SERVICE: u32 = 13;
pub(crate) const TYPE_IFINDEX: u32 = 20;
/// The bits of one type in the type of a concatenation.
pub(crate) const TYPE_BITS: u32 = 6;
pub(crate) const BYTEORDER_INVALID: u32 = 0;
pub(crate) const BYTEORDER_HOST_ENDIAN: u32 = 1;
pub(crate) const BYTEORDER_BIG_ENDIAN: u32 = 2;
/// The tag of a comment of a rule or an element.
pub(crate) const NFTNL_UDATA_COMMENT: u8 = 0;
pub(crate) const NFTNL_UDATA_SET_KEYBYTEORDER: u8 = 0;
pub(crate) const NFTNL_UDATA_SET_COMMENT: u8 = 7;
pub(crate) const NFTNL_UDATA_SET_ELEM_FLAGS: u8 = 1;
pub(crate) const SET_ELEM_F_INTERVAL_OPEN: u32 = 0x1;

const fn message(number: u16) -> u16 {
    (NFNL_SUBSYS_NFTABLES as u16) << 8 | number
}
