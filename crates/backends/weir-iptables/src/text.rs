//! Rules in the format of iptables-save, and sets in that of `ipset save`.

use std::fmt;

use weir_datapath::ANSWERS_PER_SECOND;
use weir_model::{IpFamily, Protocol};
use weir_netfilter::report;

use crate::{
    ChainsAndSets, Entry, Hook, IpSet, IpSetKind, IptablesRule, IptablesTarget, Match, SrcDst,
    name, skeleton,
};

/// The number of the protocol IGMP.
const IGMP: &str = "2";
/// The names that some systems have for protocols.
const PROTOCOLS: [(&str, &str); 5] =
    [("igmp", IGMP), ("ipencap", "4"), ("ipip", "4"), ("ipv6", "41"), ("gre", "47")];

/// The rule of a built-in chain that jumps to ours, as kube-router writes it.
pub(crate) fn jump(hook: Hook) -> String {
    let words = ["-m", "comment", "--comment", "kube-router netpol", "-j", hook.chain()];
    let id = name::id(&format!("{}{}", hook.name(), words.concat()));
    format!("-m comment --comment \"kube-router netpol - {id}\" -j {}", hook.chain())
}

/// The last rule of FORWARD, which accepts packets of pods.
pub(crate) fn tail_jump() -> String {
    format!("-j {}", skeleton::tail())
}

impl fmt::Display for IptablesRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IptablesRule { matches, target, comment } = self;
        for one in matches {
            write!(f, "{one} ")?;
        }
        if !comment.is_empty() {
            write!(f, "-m comment --comment \"{comment}\" ")?;
        }
        target.fmt(f)
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::At(SrcDst::Source, net) => write!(f, "-s {net}"),
            Match::At(SrcDst::Destination, net) => write!(f, "-d {net}"),
            Match::To(protocol, ports) => {
                let protocol = protocol_name(*protocol);
                let list: Vec<String> =
                    ports
                        .iter()
                        .map(|(first, last)| {
                            if first == last {
                                first.to_string()
                            } else {
                                format!("{first}:{last}")
                            }
                        })
                        .collect();
                match &list[..] {
                    [] => write!(f, "-p {protocol}"),
                    [one] => write!(f, "-p {protocol} -m {protocol} --dport {one}"),
                    several => {
                        write!(f, "-p {protocol} -m multiport --dports {}", several.join(","))
                    }
                }
            }
            Match::Icmp6 => f.write_str("-p ipv6-icmp"),
            Match::NeighbourDiscovery(number) => {
                write!(f, "-p ipv6-icmp -m icmp6 --icmpv6-type {number} -m hl --hl-eq 255")
            }
            Match::Icmp6Type(number) => {
                write!(f, "-p ipv6-icmp -m icmp6 --icmpv6-type {number}")
            }
            Match::Igmp => write!(f, "-p {IGMP}"),
            Match::Udp { from, to } => write!(f, "-p udp -m udp --sport {from} --dport {to}"),
            Match::ToStations => f.write_str("-m pkttype ! --pkt-type unicast"),
            Match::Established => f.write_str("-m conntrack --ctstate RELATED,ESTABLISHED"),
            Match::In(set, sides) => {
                let sides: Vec<String> = sides.iter().map(SrcDst::to_string).collect();
                write!(f, "-m set --match-set {set} {}", sides.join(","))
            }
            Match::NotIn(set, sides) => {
                let sides: Vec<String> = sides.iter().map(SrcDst::to_string).collect();
                write!(f, "-m set ! --match-set {set} {}", sides.join(","))
            }
            Match::Link(link) => write!(f, "-i {link}"),
            Match::BridgePort(port) => write!(f, "-m physdev --physdev-in {port}"),
            Match::Protocol(number) => write!(f, "-p {number}"),
            Match::Reply => f.write_str("-m conntrack --ctdir REPLY"),
            Match::Forwarded => f.write_str("-m addrtype ! --src-type LOCAL"),
            Match::Itself(family) => {
                write!(f, "-m bpf --bytecode \"{}\" -m conntrack --ctstate DNAT", itself(*family))
            }
            Match::WithinAnswers => {
                write!(
                    f,
                    "-m limit --limit {ANSWERS_PER_SECOND}/sec --limit-burst {ANSWERS_PER_SECOND}"
                )
            }
            Match::Unmarked(mask) => write!(f, "-m mark --mark 0x0/{mask:#x}"),
            Match::Marked(mask) => write!(f, "-m mark --mark {mask:#x}/{mask:#x}"),
        }
    }
}

impl fmt::Display for SrcDst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SrcDst::Source => "src",
            SrcDst::Destination => "dst",
        })
    }
}

impl fmt::Display for IptablesTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IptablesTarget::Accept => f.write_str("-j ACCEPT"),
            IptablesTarget::Drop => f.write_str("-j DROP"),
            IptablesTarget::Reset => f.write_str("-j REJECT --reject-with tcp-reset"),
            IptablesTarget::Prohibited(IpFamily::V4) => {
                f.write_str("-j REJECT --reject-with icmp-admin-prohibited")
            }
            IptablesTarget::Prohibited(IpFamily::V6) => {
                f.write_str("-j REJECT --reject-with icmp6-adm-prohibited")
            }
            IptablesTarget::Return => f.write_str("-j RETURN"),
            IptablesTarget::Jump(chain) => write!(f, "-j {chain}"),
            IptablesTarget::Goto(chain) => write!(f, "-g {chain}"),
            IptablesTarget::Mark { value, mask } => {
                write!(f, "-j MARK --set-xmark {value:#x}/{mask:#x}")
            }
            IptablesTarget::LogSome(cause) => write!(
                f,
                "-m limit --limit {}/sec --limit-burst {} -j NFLOG --nflog-prefix \"{}\" --nflog-group {} --nflog-size {}",
                report::PER_SECOND,
                report::BURST,
                report::prefix(*cause),
                report::GROUP,
                report::SNAPLEN
            ),
            IptablesTarget::AddSource(set) => write!(
                f,
                "-m limit --limit {0}/sec --limit-burst {0} -j SET --add-set {set} src",
                report::NEW_SOURCES_PER_SECOND
            ),
            IptablesTarget::Log(cause) => write!(
                f,
                "-m hashlimit --hashlimit-upto {}/sec --hashlimit-burst {} --hashlimit-mode srcip --hashlimit-name weir-{cause} --hashlimit-htable-max {} --hashlimit-htable-expire {} -j NFLOG --nflog-prefix \"{}\" --nflog-group {} --nflog-size {}",
                report::PER_SECOND,
                report::BURST,
                // An entry may outlive that in the set of sources.
                2 * report::MAX_SOURCES,
                1000 * report::SOURCE_TIMEOUT_SECONDS,
                report::prefix(*cause),
                report::GROUP,
                report::SNAPLEN
            ),
        }
    }
}

/// A classic BPF program that compares the two addresses word by word.
fn itself(family: IpFamily) -> String {
    let (source, destination, words) = match family {
        IpFamily::V4 => (12, 16, 1),
        IpFamily::V6 => (8, 24, 4),
    };
    let mut code = Vec::new();
    for word in 0..words {
        // Load, store, load, compare. If the words differ, jump to the last line.
        let otherwise = 4 * (words - word - 1) + 1;
        code.push(format!("32 0 0 {}", source + 4 * word));
        code.push("7 0 0 0".to_owned());
        code.push(format!("32 0 0 {}", destination + 4 * word));
        code.push(format!("29 0 {otherwise} 0"));
    }
    code.push("6 0 0 1".to_owned());
    code.push("6 0 0 0".to_owned());
    format!("{},{}", code.len(), code.join(","))
}

pub(crate) fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

impl IpSetKind {
    /// The type name of ipset.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            IpSetKind::Pods
            | IpSetKind::Isolated
            | IpSetKind::Addresses
            | IpSetKind::Ipvs
            | IpSetKind::Policies
            | IpSetKind::Sources => "hash:ip",
            IpSetKind::Ports | IpSetKind::Records => "hash:ip,port",
            IpSetKind::Links => "hash:net,iface",
            IpSetKind::Grants | IpSetKind::Cut => "hash:ip,port,ip",
            IpSetKind::Blocks => "hash:net",
            IpSetKind::BlockPorts => "hash:net,port",
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Address(address) => address.fmt(f),
            Entry::Port(address, protocol, port) => {
                write!(f, "{address},{}:{port}", protocol_name(*protocol))
            }
            Entry::Grant(address, protocol, port, peer) => {
                write!(f, "{address},{}:{port},{peer}", protocol_name(*protocol))
            }
            Entry::Pair(address, protocol, peer) => write!(f, "{address},{protocol}:0,{peer}"),
            Entry::Block(net) => net.fmt(f),
            Entry::Link(net, link) => write!(f, "{net},{link}"),
            Entry::BlockPort(net, protocol, port) => {
                write!(f, "{net},{}:{port}", protocol_name(*protocol))
            }
            Entry::Except(net) => write!(f, "{net} nomatch"),
            Entry::ExceptPort(net, protocol, port) => {
                write!(f, "{net},{}:{port} nomatch", protocol_name(*protocol))
            }
        }
    }
}

/// The `ipset restore` command that creates a set.
pub(crate) fn create(name: &str, kind: IpSetKind, family: IpFamily) -> String {
    let inet = match family {
        IpFamily::V4 => "inet",
        IpFamily::V6 => "inet6",
    };
    let rest = match kind.timeout() {
        _ if kind.is_commented() => " comment".to_owned(),
        Some(seconds) => format!(" timeout {seconds}"),
        None => String::new(),
    };
    let (type_name, max) = (kind.type_name(), kind.max_entries());
    format!("create {name} {type_name} family {inet} maxelem {max}{rest}")
}

/// The `ipset restore` command that adds an entry.
pub(crate) fn add(name: &str, entry: &Entry, comment: &str) -> String {
    match comment {
        "" => format!("add {name} {entry}"),
        comment => format!("add {name} {entry} comment \"{comment}\""),
    }
}

/// The input of `ipset restore`, `iptables-restore --noflush` and `ip6tables-restore --noflush`,
/// part by part.
impl fmt::Display for ChainsAndSets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# ipset save")?;
        for (name, IpSet { kind, family, entries }) in &self.sets {
            writeln!(f, "{}", create(name, *kind, *family))?;
            for (entry, comment) in entries {
                writeln!(f, "{}", add(name, entry, comment))?;
            }
        }
        for family in IpFamily::BOTH {
            let program = match family {
                IpFamily::V4 => "iptables-save",
                IpFamily::V6 => "ip6tables-save",
            };
            writeln!(f, "\n# {program} -t filter\n*filter")?;
            let ours = || self.chains.iter().filter(|((of, _), _)| *of == family);
            for ((_, name), _) in ours() {
                writeln!(f, ":{name} - [0:0]")?;
            }
            for hook in Hook::ALL {
                writeln!(f, "-A {} {}", hook.name(), jump(hook))?;
            }
            for ((_, name), rules) in ours() {
                for rule in rules {
                    writeln!(f, "-A {name} {rule}")?;
                }
            }
            writeln!(f, "COMMIT")?;
        }
        Ok(())
    }
}

/// Splits an iptables rule into words without quotes. The comment moves to the end. The names of some
/// protocols become numbers: iptables-save prints the names only where `/etc/protocols` has them.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '\\' if quoted => word.get_or_insert_default().extend(letters.next()),
            ' ' if !quoted => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    for at in 1..words.len() {
        let protocol = PROTOCOLS.iter().find(|(name, _)| *name == words[at]);
        if let Some((_, number)) = protocol.filter(|_| words[at - 1] == "-p") {
            words[at] = (*number).to_owned();
        }
    }
    if let Some(at) = words.windows(3).position(|w| w[0] == "-m" && w[1] == "comment") {
        let end = words.len().min(at + 4);
        let comment: Vec<String> = words.drain(at..end).collect();
        words.extend(comment);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jumps_match_those_of_kube_router() {
        assert_eq!(
            jump(Hook::Input),
            "-m comment --comment \"kube-router netpol - 4IA2OSFRMVNDXBVV\" -j KUBE-ROUTER-INPUT"
        );
        assert!(jump(Hook::Forward).contains("TEMCG2JMHZYE7H7T"));
        assert!(jump(Hook::Output).contains("VEAAIY32XVBHCSCY"));
    }

    #[test]
    fn rules_are_split_with_any_quotes_and_comment_position() {
        assert_eq!(
            words("-A C -m comment --comment \"it\\'s  \\\"so\\\"\" -p tcp  -j X"),
            ["-A", "C", "-p", "tcp", "-j", "X", "-m", "comment", "--comment", "it's  \"so\""]
        );
    }

    #[test]
    fn igmp_has_a_name_on_some_systems() {
        assert_eq!(words("-p igmp -j RETURN"), words(&format!("{} -j RETURN", Match::Igmp)));
        assert_eq!(words("-p ip -j igmp"), ["-p", "ip", "-j", "igmp"]);
    }

    #[test]
    fn the_comparison_of_addresses_stops_at_the_first_difference() {
        assert_eq!(itself(IpFamily::V4), "6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 1,6 0 0 0");
        assert!(itself(IpFamily::V6).starts_with("18,32 0 0 8,7 0 0 0,32 0 0 24,29 0 13 0,"));
    }
}
