//! Dropped packets, one per line.

use std::io::{self, Write};

use super::{
    plain::Plain,
    style::{FAINT, Painted, STRONG},
};
use crate::drops::Dropped;

/// The minimum widths of the columns, so that lines printed one by one align.
const WIDTHS: [usize; 4] = [24, 9, 24, 34];

/// Writes a header and all drops.
pub(crate) fn write(out: &mut dyn Write, drops: &[Dropped]) -> io::Result<()> {
    head(out)?;
    rows(out, drops)
}

/// Writes the header.
pub(crate) fn head(out: &mut dyn Write) -> io::Result<()> {
    let [time, direction, from, to] = WIDTHS;
    let line = format!(
        "{:time$}  {:direction$}  {:from$}  {:to$}  {}",
        "time", "direction", "from", "to", "policies"
    );
    writeln!(out, "{}", Painted(STRONG, line))
}

/// Writes a line for each drop.
pub(crate) fn rows(out: &mut dyn Write, drops: &[Dropped]) -> io::Result<()> {
    let [_, direction, from, to] = WIDTHS;
    for drop in drops {
        let name = |pod: &Option<String>, address: &str| match pod {
            Some(pod) => format!("{pod} ({address})"),
            None => address.to_owned(),
        };
        let port = match drop.to_port {
            Some(port) => format!(" {port}/{}", drop.protocol),
            None => format!(" {}", drop.protocol),
        };
        writeln!(
            out,
            "{}  {:direction$}  {:from$}  {:to$}  {}",
            Painted(FAINT, &drop.time),
            Plain(&drop.direction).to_string(),
            Plain(name(&drop.from_pod, &drop.from)).to_string(),
            Plain(name(&drop.to_pod, &drop.to) + &port).to_string(),
            Plain(policies(drop)),
        )?;
    }
    Ok(())
}

fn policies(drop: &Dropped) -> String {
    match drop.more_policies {
        0 => drop.policies.join(", "),
        more => format!("{} and {more} more", drop.policies.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn columns_align() {
        let drop = |json: &str| serde_json::from_str::<Dropped>(json).unwrap();
        let drops = [
            drop(
                r#"{"number": 1, "time": "2026-01-02T03:04:05.678Z", "direction": "ingress", "from": "10.0.0.3", "fromPod": "shop/job", "fromPort": 40000, "to": "10.0.0.1", "toPod": "shop/web", "toPort": 80, "protocol": "TCP", "policies": ["NetworkPolicy shop/web"]}"#,
            ),
            drop(
                r#"{"number": 2, "time": "2026-01-02T03:04:06.678Z", "direction": "egress", "from": "10.0.0.1", "fromPod": "shop/\u001b[31mweb", "fromPort": null, "to": "203.0.113.7", "toPod": null, "toPort": null, "protocol": "ICMP", "policies": ["NetworkPolicy shop/a", "NetworkPolicy shop/b"], "morePolicies": 7}"#,
            ),
        ];
        let mut out = Vec::new();
        write(&mut out, &drops).unwrap();
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out).unwrap()).to_string();
        expect![[r#"
            time                      direction  from                      to                                  policies
            2026-01-02T03:04:05.678Z  ingress    shop/job (10.0.0.3)       shop/web (10.0.0.1) 80/TCP          NetworkPolicy shop/web
            2026-01-02T03:04:06.678Z  egress     shop/\u{1b}[31mweb (10.0.0.1)  203.0.113.7 ICMP                    NetworkPolicy shop/a, NetworkPolicy shop/b and 7 more
        "#]].assert_eq(&text);
    }
}
