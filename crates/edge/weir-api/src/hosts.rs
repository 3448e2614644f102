//! The hosts that containers name in their environment, command and arguments.

use std::collections::BTreeMap;

use weir_model::{Location, Name};

use crate::{document::Tree, lower::Lowered};

/// The most hosts that are kept of an object.
const MAX_HOSTS: usize = 1000;
/// The longest text that is searched.
const MAX_TEXT_BYTES: usize = 64 * 1024;
/// The deepest nesting that is searched for containers.
const MAX_DEPTH: usize = 32;

/// A host that a container names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostReference {
    /// The name or the address, in lower case.
    pub host: Name,
    /// The port beside it.
    pub port: Option<u16>,
    /// The port that the scheme of a URL implies.
    pub scheme_port: Option<u16>,
    /// Whether the text says that it is a host: by a scheme, a port, or the name of the variable.
    /// Without it, the host has at least one dot.
    pub is_certain: bool,
    /// Where it is, such as `env DATABASE_URL`.
    pub field: Name,
    /// The line.
    pub location: Option<Location>,
}

/// Adds the hosts of an object to the pods that it describes.
pub(crate) fn add(lowered: &mut Lowered, file: &Name, tree: &Tree) {
    let traits: Vec<_> = match lowered {
        Lowered::Pod { traits, .. } => vec![traits],
        Lowered::Template(template) => {
            template.pods.iter_mut().map(|pod| &mut pod.traits).collect()
        }
        _ => return,
    };
    let mut search = Search { file, found: Vec::new() };
    if let Some(spec) = tree.get("spec") {
        search.containers(spec, 0);
    }
    for traits in traits {
        traits.hosts.clone_from(&search.found);
    }
}

struct Search<'a> {
    file: &'a Name,
    found: Vec<HostReference>,
}

impl Search<'_> {
    /// Searches all containers below a value.
    fn containers(&mut self, tree: &Tree, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        for entry in tree.entries() {
            match &*entry.key {
                "containers" | "initContainers" => {
                    entry.value.items().iter().for_each(|container| self.container(container));
                }
                _ => self.containers(&entry.value, depth + 1),
            }
        }
        tree.items().iter().for_each(|item| self.containers(item, depth + 1));
    }

    fn container(&mut self, container: &Tree) {
        let env = container.get("env").map_or(&[][..], Tree::items);
        let values: BTreeMap<&str, &Tree> = env
            .iter()
            .filter_map(|item| Some((item.get("name")?.text()?, item.get("value")?)))
            .collect();
        for (name, value) in &values {
            let Some(text) = value.text() else { continue };
            let before = self.found.len();
            self.text(text, value.line, &format!("env {name}"), is_host_name(name));
            // DB_HOST and DB_PORT belong together.
            let port = port_variable(name).and_then(|port| number(values.get(&*port)?));
            if let [only] = &mut self.found[before..]
                && only.port.is_none()
            {
                only.port = port;
            }
        }
        for field in ["command", "args"] {
            let mut is_value = false;
            for item in container.get(field).map_or(&[][..], Tree::items) {
                let Some(text) = item.text() else { continue };
                // `--db-host=db`, and `--db-host` before `db`.
                let (flag, value) = text.split_once('=').unwrap_or(("", text));
                let is_flag = text.starts_with('-');
                let is_host = is_value && !is_flag || is_flag && is_host_name(flag);
                self.text(if is_flag { value } else { text }, item.line, field, is_host);
                is_value = is_flag && !text.contains('=') && is_host_name(text);
            }
        }
    }

    /// Adds the hosts of a text. `is_host` says that a text of one word is a host.
    fn text(&mut self, text: &str, line: u32, field: &str, is_host: bool) {
        if text.len() > MAX_TEXT_BYTES {
            return;
        }
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
        let bytes = text.as_bytes();
        let mut start = 0;
        while start < bytes.len() && self.found.len() < MAX_HOSTS {
            if !is_part(bytes[start]) {
                start += 1;
                continue;
            }
            let length = bytes[start..].iter().take_while(|byte| is_part(**byte)).count();
            let end = start + length;
            // Only ASCII bytes are parts, so these are boundaries of characters.
            let (word, before, after) = (&text[start..end], &text[..start], &text[end..]);
            let host = word.trim_matches('.');
            let is_address = host.parse::<std::net::Ipv4Addr>().is_ok();
            let is_name = host.bytes().any(|byte| byte.is_ascii_alphabetic())
                && !host.starts_with('-')
                && !host.ends_with('-')
                && host.len() <= 253;
            // A scheme, or a user before `@` or `:`, is not a host.
            let is_scheme = after.starts_with("://");
            let port = after.strip_prefix(':').and_then(leading_number);
            // A user can stand between the scheme and the host.
            let with_user =
                || before.strip_suffix('@')?.rsplit_once("://").map(|(scheme, _)| scheme);
            let scheme = before.strip_suffix("://").or_else(with_user);
            let is_url = scheme.is_some();
            let is_certain =
                is_url && !is_user(after) || port.is_some() || is_host && length == text.len();
            let is_path = before.ends_with('/') && scheme.is_none();
            if (is_name || is_address && is_certain)
                && !is_scheme
                && !is_path
                && !is_user(after)
                && (is_certain || host.contains('.'))
            {
                self.found.push(HostReference {
                    host: host.to_ascii_lowercase().into(),
                    port,
                    scheme_port: scheme.and_then(scheme_port),
                    is_certain,
                    field: field.into(),
                    location: Some(Location { file: self.file.clone(), line }),
                });
            }
            start = end;
        }
    }
}

/// Whether a word is the user of a URL: `@` follows, before the path begins.
fn is_user(after: &str) -> bool {
    let authority = after.split(['/', ' ', ',', '?']).next().unwrap_or_default();
    authority.contains('@')
}

/// The words in the names of variables and flags whose values are hosts.
const HOST_WORDS: [&str; 12] = [
    "HOST", "ADDR", "SERVER", "URL", "URI", "ENDPOINT", "SERVICE", "UPSTREAM", "BACKEND", "BROKER",
    "DSN", "TARGET",
];

fn is_host_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    HOST_WORDS.iter().any(|word| name.contains(word))
}

/// The variable with the port for a variable with a host.
fn port_variable(name: &str) -> Option<String> {
    let stem = name.strip_suffix("HOST").or_else(|| name.strip_suffix("ADDR"))?;
    Some(format!("{stem}PORT"))
}

fn number(tree: &&Tree) -> Option<u16> {
    tree.written()?.parse().ok().filter(|port| *port > 0)
}

/// The number at the start of a text, as a port.
fn leading_number(text: &str) -> Option<u16> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().ok().filter(|port| *port > 0)
}

/// The port that a scheme implies. `before` ends with the scheme.
fn scheme_port(before: &str) -> Option<u16> {
    let start = before.rfind(|c: char| !c.is_ascii_alphanumeric()).map_or(0, |at| at + 1);
    match before.get(start..)? {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        "postgres" | "postgresql" => Some(5432),
        "mysql" => Some(3306),
        "redis" => Some(6379),
        "mongodb" => Some(27017),
        "amqp" => Some(5672),
        "nats" => Some(4222),
        "ldap" => Some(389),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use crate::{ManifestReader, PodDetails};

    fn hosts(details: PodDetails, container: &str) -> String {
        let mut reader = ManifestReader::new().with_pod_details(details);
        let text = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: api, namespace: shop}}\n\
             spec:\n  selector: {{matchLabels: {{app: api}}}}\n  template:\n    \
             metadata: {{labels: {{app: api}}}}\n    spec:\n      containers:\n      - name: main\n{container}"
        );
        reader.read_file("api.yaml".into(), text.as_bytes());
        let manifests = reader.finish();
        let all = manifests.hosts.values().flatten().map(|one| {
            let line = one.location.as_ref().map(|location| location.line).unwrap_or_default();
            let port = one.port.map(|port| format!(":{port}")).unwrap_or_default();
            let scheme =
                one.scheme_port.map(|port| format!(" (scheme: {port})")).unwrap_or_default();
            let sure = if one.is_certain { "" } else { " perhaps" };
            format!("{line} {}: {}{port}{scheme}{sure}\n", one.field, one.host)
        });
        all.collect()
    }

    #[test]
    fn hosts_are_found_in_variables_and_arguments() {
        let container = "        env:
        - {name: DATABASE_URL, value: 'postgres://user:secret@db:5432/shop?host=x'}
        - {name: CACHE_HOST, value: Cache.Payments}
        - {name: QUEUE_HOST, value: queue}
        - {name: QUEUE_PORT, value: 5672}
        - {name: API, value: 'http://api/v1,https://pay.payments.svc.cluster.local'}
        - {name: PLAIN, value: db}
        - {name: LEVEL, value: info}
        - {name: FROM, valueFrom: {secretKeyRef: {name: db, key: x}}}
        command: [/bin/server, db]
        args: ['--db-host=db', --cache-addr, 'cache:6379', --verbose, log.format=json, '10.0.0.5:80', '1.2.3']
";
        expect![[r#"
            16 env API: api (scheme: 80)
            16 env API: pay.payments.svc.cluster.local (scheme: 443)
            13 env CACHE_HOST: cache.payments
            12 env DATABASE_URL: db:5432 (scheme: 5432)
            14 env QUEUE_HOST: queue:5672
            21 args: db
            21 args: cache:6379
            21 args: log.format perhaps
            21 args: 10.0.0.5:80
        "#]]
        .assert_eq(&hosts(PodDetails::PortsAndHosts, container));
        assert_eq!(hosts(PodDetails::Ports, container), "");
    }

    #[test]
    fn no_text_causes_a_panic() {
        for text in ["://", "@", "a:", "ü.é:80", ":80", "http://", "-", "a@b@c", "....", "http://ü"]
        {
            let container = format!("        args: [\"{text}\"]\n");
            hosts(PodDetails::PortsAndHosts, &container);
        }
    }

    #[test]
    fn the_number_of_hosts_is_bounded() {
        let many = "a.b ".repeat(5000);
        let found = hosts(PodDetails::PortsAndHosts, &format!("        args: [\"{many}\"]\n"));
        assert_eq!(found.lines().count(), super::MAX_HOSTS);
    }
}
