use weir_model::{PortMatch, PortRange, PortSpec, Protocol};

use super::{Fields, LowerContext, PROTOCOLS, admin::reason, one_of};
use crate::{
    check,
    document::{Tree, TreeValue, quote},
};

/// One entry of a NetworkPolicy's `ports` (V3, V4, R1 to R10).
pub(crate) fn port(ctx: &mut LowerContext, tree: &Tree) -> Option<PortSpec> {
    let fields = ctx.fields(tree, &["protocol", "port", "endPort"]);
    let protocol = protocol(ctx, fields.get("protocol"));
    let end = fields.get("endPort");
    let ports = match fields.get("port").map(|port| (port, &port.value)) {
        None => {
            if let Some(end) = end {
                let hint = "add `port:`, or remove `endPort:`";
                ctx.at("endPort", |ctx| {
                    ctx.invalid(end.line, "endPort needs a port as the start of the range", hint)
                });
            }
            protocol
                .filter(|_| end.is_none())
                .map(|protocol| PortMatch::Range(PortRange::all(protocol)))
        }
        Some((port, TreeValue::Str(name))) => {
            let name = ctx.at("port", |ctx| named(ctx, port, name));
            if let Some(end) = end {
                let hint = "write the port as a number, or remove `endPort:`";
                ctx.at("endPort", |ctx| {
                    ctx.invalid(end.line, "endPort needs a port number, not a name", hint)
                });
            }
            name.zip(protocol)
                .filter(|_| end.is_none())
                .map(|(name, protocol)| PortMatch::Named { name, protocol: Some(protocol) })
        }
        Some((port, _)) => {
            let first = ctx.at("port", |ctx| ctx.port(port));
            let last = match end {
                None => first,
                Some(end) => ctx.at("endPort", |ctx| {
                    let last = ctx.port(end)?;
                    if first.is_some_and(|first| last < first) {
                        let message =
                            format!("endPort {last} is below the port {}", first.unwrap_or(0));
                        ctx.invalid(end.line, message, "swap the two, or remove `endPort:`");
                        return None;
                    }
                    Some(last)
                }),
            };
            match (protocol, first, last) {
                (Some(protocol), Some(first), Some(last)) => {
                    Some(PortMatch::Range(PortRange { protocol, first, last }))
                }
                _ => None,
            }
        }
    };
    fields.clean.then_some(())?;
    Some(PortSpec { line: tree.line, ports: ports? })
}

/// A protocol; TCP if none is given (R1).
fn protocol(ctx: &mut LowerContext, tree: Option<&Tree>) -> Option<Protocol> {
    match tree {
        None => Some(Protocol::Tcp),
        Some(word) => ctx.at("protocol", |ctx| ctx.word(word, &PROTOCOLS)),
    }
}

/// A port name.
fn named(ctx: &mut LowerContext, tree: &Tree, name: &str) -> Option<weir_model::Name> {
    match check::port_name(name) {
        Ok(()) => Some(ctx.name(name)),
        Err(expected) => {
            let hint = if name.bytes().all(|b| b.is_ascii_digit()) {
                "write a port number without quotes"
            } else {
                "use the name of the container port"
            };
            let message = format!("{} is not a valid port name: expected {expected}", quote(name));
            ctx.invalid(tree.line, message, hint);
            None
        }
    }
}

/// One entry of `ports` of the v1alpha1 kinds (C15).
pub(crate) fn v1alpha1(ctx: &mut LowerContext, tree: &Tree) -> Option<PortSpec> {
    let known = ["portNumber", "namedPort", "portRange"];
    let fields = ctx.fields(tree, &known);
    let one = exactly_one(ctx, &fields, &known);
    let number = fields.get("portNumber").map(|tree| {
        ctx.at("portNumber", |ctx| {
            let fields = ctx.fields(tree, &["protocol", "port"]);
            let protocol = protocol(ctx, fields.get("protocol"));
            let port = required_port(ctx, &fields, "port");
            fields.clean.then_some(())?;
            Some(PortMatch::Range(PortRange::one(protocol?, port?)))
        })
    });
    let range = fields.get("portRange").map(|tree| {
        ctx.at("portRange", |ctx| {
            let fields = ctx.fields(tree, &["protocol", "start", "end"]);
            let protocol = protocol(ctx, fields.get("protocol"));
            let range = start_and_end(ctx, &fields);
            fields.clean.then_some(())?;
            let ((first, last), protocol) = (range?, protocol?);
            Some(PortMatch::Range(PortRange { protocol, first, last }))
        })
    });
    let name = fields.get("namedPort").map(|tree| ctx.at("namedPort", |ctx| any_named(ctx, tree)));
    let ports = number.or(range).or(name).flatten();
    (fields.clean && one).then_some(())?;
    Some(PortSpec { line: tree.line, ports: ports? })
}

/// One entry of `protocols` of v1alpha2 and v1beta1 (C15).
pub(crate) fn v1alpha2(ctx: &mut LowerContext, tree: &Tree) -> Option<PortSpec> {
    let known = ["tcp", "udp", "sctp", "destinationNamedPort"];
    let fields = ctx.fields(tree, &known);
    let one = exactly_one(ctx, &fields, &known);
    let mut ports = None;
    for (field, protocol) in
        [("tcp", Protocol::Tcp), ("udp", Protocol::Udp), ("sctp", Protocol::Sctp)]
    {
        if let Some(tree) = fields.get(field) {
            ports = ctx.at(field, |ctx| destination(ctx, tree, protocol));
        }
    }
    if let Some(tree) = fields.get("destinationNamedPort") {
        ports = ctx.at("destinationNamedPort", |ctx| any_named(ctx, tree));
    }
    (fields.clean && one).then_some(())?;
    Some(PortSpec { line: tree.line, ports: ports? })
}

fn destination(ctx: &mut LowerContext, tree: &Tree, protocol: Protocol) -> Option<PortMatch> {
    let outer = ctx.fields(tree, &["destinationPort"]);
    let Some(tree) = outer.get("destinationPort") else {
        let hint = "add `destinationPort:` with `number:` or `range:`";
        ctx.invalid(outer.line, "expected a destinationPort", hint);
        return None;
    };
    ctx.at("destinationPort", |ctx| {
        let known = ["number", "range"];
        let fields = ctx.fields(tree, &known);
        let one = exactly_one(ctx, &fields, &known);
        let number = fields.get("number").map(|tree| ctx.at("number", |ctx| ctx.port(tree)));
        let range = fields.get("range").map(|tree| {
            ctx.at("range", |ctx| {
                let fields = ctx.fields(tree, &["start", "end"]);
                let range = start_and_end(ctx, &fields);
                range.filter(|_| fields.clean)
            })
        });
        (outer.clean && fields.clean && one).then_some(())?;
        let (first, last) = match (number, range) {
            (Some(number), _) => (number?, number?),
            (None, range) => range??,
        };
        Some(PortMatch::Range(PortRange { protocol, first, last }))
    })
}

fn start_and_end(ctx: &mut LowerContext, fields: &Fields) -> Option<(u16, u16)> {
    let start = required_port(ctx, fields, "start");
    let end = required_port(ctx, fields, "end");
    let (start, end) = (start?, end?);
    if start >= end {
        let line = fields.get("end").map_or(fields.line, |end| end.line);
        let message = format!("{}; {end} is not above {start}", reason::RANGE);
        ctx.at("end", |ctx| ctx.invalid(line, message, "use a single number for one port"));
        return None;
    }
    Some((start, end))
}

fn required_port(ctx: &mut LowerContext, fields: &Fields, field: &'static str) -> Option<u16> {
    ctx.at(field, |ctx| match fields.get(field) {
        Some(port) => ctx.port(port),
        None => {
            ctx.invalid(fields.line, format!("expected `{field}`"), "add it, from 1 to 65535");
            None
        }
    })
}

/// A port name without a protocol.
fn any_named(ctx: &mut LowerContext, tree: &Tree) -> Option<PortMatch> {
    let text = ctx.text(tree)?;
    named(ctx, tree, text).map(|name| PortMatch::Named { name, protocol: None })
}

/// Reports unless exactly one of the fields is given. Unknown fields were reported already.
pub(crate) fn exactly_one(ctx: &mut LowerContext, fields: &Fields, known: &[&str]) -> bool {
    match fields.count(known) {
        1 => true,
        0 if !fields.clean => false,
        0 => {
            let message = format!("expected {}, found none of them", one_of(known));
            ctx.invalid(fields.line, message, "add one of them");
            false
        }
        _ => {
            let message = format!("expected only one of {}", known.join(", "));
            ctx.invalid(fields.line, message, "keep one of them");
            false
        }
    }
}
