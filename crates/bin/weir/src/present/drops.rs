//! Dropped packets: two lines for each, so that they fit into a terminal.

use std::io::{self, Write};

use super::{
    plain::Plain,
    style::{FAINT, Painted, SOME, STRONG},
    wrap,
};
use crate::drops::Dropped;

/// Writes all drops.
pub(crate) fn write(out: &mut dyn Write, drops: &[Dropped]) -> io::Result<()> {
    for drop in drops {
        let name = |pod: &Option<String>, address: &str| match pod {
            Some(pod) => format!("{pod} ({address})"),
            None => address.to_owned(),
        };
        let mut port = match drop.to_port {
            Some(port) => format!(" {port}/{}", drop.protocol),
            None => format!(" {}", drop.protocol),
        };
        if !drop.to_names.is_empty() {
            port.push_str(&format!(" ({})", drop.to_names.join(", ")));
        }
        let (from, to) = (name(&drop.from_pod, &drop.from), name(&drop.to_pod, &drop.to));
        let passed = if drop.passed { Painted(SOME, " passed (audit)") } else { Painted(SOME, "") };
        let node = drop.node.as_ref().map(|node| format!(" {}", Plain(node))).unwrap_or_default();
        let head = format!(
            "{}{node} {}{passed} {}",
            Painted(FAINT, &drop.time),
            Plain(&drop.direction),
            Painted(STRONG, format!("{from} → {to}{port}"))
        );
        wrap::write(out, &head, 0)?;
        wrap::write(out, &Plain(policies(drop)).to_string(), 2)?;
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
    fn each_drop_has_two_lines_that_fit_into_a_terminal() {
        let drop = |json: &str| serde_json::from_str::<Dropped>(json).unwrap();
        let drops = [
            drop(
                r#"{"number": 1, "time": "2026-01-02T03:04:05.678Z", "direction": "ingress", "from": "10.0.0.3", "fromPod": "shop/job", "fromPort": 40000, "to": "10.0.0.1", "toPod": "shop/web", "toPort": 80, "protocol": "TCP", "policies": ["NetworkPolicy shop/web"], "passed": true}"#,
            ),
            drop(
                r#"{"number": 2, "time": "2026-01-02T03:04:06.678Z", "direction": "egress", "from": "10.0.0.1", "fromPod": "shop/\u001b[31mweb", "fromPort": null, "to": "203.0.113.7", "toPod": null, "toPort": null, "protocol": "ICMP", "policies": ["NetworkPolicy shop/a", "NetworkPolicy shop/b"], "morePolicies": 7}"#,
            ),
        ];
        let mut out = Vec::new();
        write(&mut out, &drops).unwrap();
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out).unwrap()).to_string();
        expect![[r#"
            2026-01-02T03:04:05.678Z ingress passed (audit) shop/job (10.0.0.3) → shop/web
              (10.0.0.1) 80/TCP
              NetworkPolicy shop/web
            2026-01-02T03:04:06.678Z egress shop/\u{1b}[31mweb (10.0.0.1) → 203.0.113.7 ICMP
              NetworkPolicy shop/a, NetworkPolicy shop/b and 7 more
        "#]]
        .assert_eq(&text);
    }
}
