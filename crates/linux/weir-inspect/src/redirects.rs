//! Traffic control at the links of pods, which can forward packets before netfilter.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use weir_netlink::{Attribute, Attributes, Body, Malformed, kind};

use crate::node_links::{Link, RouteSocket, word};

/// A filter for packets that a link receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IngressFilter {
    /// An eBPF program.
    Program,
    /// A redirect to the link with this index.
    Redirect(u32),
    /// A filter that only classifies or drops.
    Harmless,
}

/// Finds the veth links at which eBPF programs or redirects of tc handle packets before netfilter.
pub fn find_redirecting_links() -> io::Result<BTreeSet<String>> {
    let mut socket = RouteSocket::open()?;
    let with_ingress = links_with_ingress(&mut socket)?;
    if with_ingress.is_empty() {
        return Ok(BTreeSet::new());
    }
    let links = socket.links()?;
    let mut found = BTreeSet::new();
    for index in with_ingress {
        let Some(link) = links.get(&index).filter(|link| link.kind == "veth") else { continue };
        let filters = ingress_filters(&mut socket, index)?;
        if filters.into_iter().any(|filter| is_bypass(filter, &links)) {
            found.insert(link.name.clone());
        }
    }
    Ok(found)
}

/// Whether packets can bypass netfilter. An ifb link returns them, as for limits of bandwidth.
fn is_bypass(filter: IngressFilter, links: &BTreeMap<u32, Link>) -> bool {
    match filter {
        IngressFilter::Program => true,
        IngressFilter::Redirect(to) => links.get(&to).is_none_or(|link| link.kind != "ifb"),
        IngressFilter::Harmless => false,
    }
}

/// The links that can have filters for received packets.
fn links_with_ingress(socket: &mut RouteSocket) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    let body = |body: &mut Body<'_>| _ = body.fixed(&[0; TCMSG_LENGTH]);
    socket.query(RTM_GETQDISC, kind::DUMP, body, |message| {
        let name = text(message.attributes(TCMSG_LENGTH), TCA_KIND)?;
        if matches!(name, Some("clsact" | "ingress")) {
            found.extend(word(message, 4));
        }
        Ok(())
    })?;
    Ok(found)
}

fn ingress_filters(socket: &mut RouteSocket, link: u32) -> io::Result<Vec<IngressFilter>> {
    let mut header = [0; TCMSG_LENGTH];
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[12..16].copy_from_slice(&TC_H_CLSACT_INGRESS.to_ne_bytes());
    let mut filters = Vec::new();
    let body = |body: &mut Body<'_>| _ = body.fixed(&header);
    socket.query(RTM_GETTFILTER, kind::DUMP, body, |message| {
        filters.push(parse_filter(message.attributes(TCMSG_LENGTH))?);
        Ok(())
    })?;
    Ok(filters)
}

fn parse_filter(attributes: Attributes<'_>) -> Result<IngressFilter, Malformed> {
    // The attribute of the actions, by the kind of the filter.
    let actions = match text(attributes.clone(), TCA_KIND)? {
        Some("bpf") => return Ok(IngressFilter::Program),
        Some("matchall") => 2,
        Some("flower" | "basic") => 3,
        Some("fw") => 4,
        Some("u32") => 7,
        _ => return Ok(IngressFilter::Harmless),
    };
    let options = find(attributes, TCA_OPTIONS)?;
    let Some(options) = options else { return Ok(IngressFilter::Harmless) };
    let Some(actions) = find(options.attributes(), actions)? else {
        return Ok(IngressFilter::Harmless);
    };
    for action in actions.attributes() {
        let action = action?;
        match text(action.attributes(), TCA_ACT_KIND)? {
            Some("bpf") => return Ok(IngressFilter::Program),
            Some("mirred") => (),
            _ => continue,
        }
        let Some(options) = find(action.attributes(), TCA_ACT_OPTIONS)? else { continue };
        let Some(parameters) = find(options.attributes(), TCA_MIRRED_PARMS)? else { continue };
        let number = |at: usize| -> Option<u32> {
            parameters.value.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
        };
        if let (Some(TCA_EGRESS_REDIR | TCA_INGRESS_REDIR), Some(to)) = (number(20), number(24)) {
            return Ok(IngressFilter::Redirect(to));
        }
    }
    Ok(IngressFilter::Harmless)
}

fn find(attributes: Attributes<'_>, kind: u16) -> Result<Option<Attribute<'_>>, Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(Some(attribute));
        }
    }
    Ok(None)
}

fn text(attributes: Attributes<'_>, kind: u16) -> Result<Option<&str>, Malformed> {
    find(attributes, kind)?.map(|attribute| attribute.text()).transpose()
}

// From `linux/rtnetlink.h`, `linux/pkt_sched.h`, `linux/pkt_cls.h` and `linux/tc_act/tc_mirred.h`.
const RTM_GETQDISC: u16 = 38;
const RTM_GETTFILTER: u16 = 46;
const TCMSG_LENGTH: usize = 20;
const TC_H_CLSACT_INGRESS: u32 = 0xffff_fff2;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TCA_EGRESS_REDIR: u32 = 1;
const TCA_INGRESS_REDIR: u32 = 3;

#[cfg(test)]
mod tests {
    use weir_netlink::{Header, MessageWriter, Messages};

    use super::*;

    fn parse(body: impl FnOnce(&mut Body<'_>)) -> IngressFilter {
        let mut writer = MessageWriter::default();
        writer.message(Header { kind: 44, flags: 0, sequence: 1 }, body).expect("it fits");
        let message = Messages::new(writer.bytes()).next().expect("a message").expect("valid");
        parse_filter(message.attributes(0)).expect("valid")
    }

    fn redirect(kind: &str, actions: u16, action: u32, to: u32) -> IngressFilter {
        let mut parameters = [0; 28];
        parameters[20..24].copy_from_slice(&action.to_ne_bytes());
        parameters[24..28].copy_from_slice(&to.to_ne_bytes());
        parse(|body| {
            body.text(TCA_KIND, kind).nest(TCA_OPTIONS, |options| {
                options.nest(actions, |actions| {
                    actions.nest(1, |action| {
                        action.text(TCA_ACT_KIND, "mirred").nest(TCA_ACT_OPTIONS, |options| {
                            options.bytes(TCA_MIRRED_PARMS, &parameters);
                        });
                    });
                });
            });
        })
    }

    #[test]
    fn programs_and_redirects_are_recognized() {
        assert_eq!(parse(|body| _ = body.text(TCA_KIND, "bpf")), IngressFilter::Program);
        assert_eq!(parse(|body| _ = body.text(TCA_KIND, "u32")), IngressFilter::Harmless);
        assert_eq!(redirect("matchall", 2, TCA_EGRESS_REDIR, 7), IngressFilter::Redirect(7));
        assert_eq!(redirect("u32", 7, TCA_INGRESS_REDIR, 8), IngressFilter::Redirect(8));
        assert_eq!(redirect("matchall", 2, 2, 7), IngressFilter::Harmless, "a mirror");
    }

    #[test]
    fn limits_of_bandwidth_are_no_bypass() {
        let link = |kind: &str| Link { name: kind.into(), kind: kind.into(), ..Link::default() };
        let links = [(7, link("ifb")), (8, link("veth"))].into();
        assert!(!is_bypass(IngressFilter::Redirect(7), &links));
        assert!(is_bypass(IngressFilter::Redirect(8), &links));
        assert!(is_bypass(IngressFilter::Program, &links));
    }
}
