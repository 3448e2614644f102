//! A small kubelet: it has chains of CNI plugins make the pods of its node, and says in their
//! status where they are.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
    path::PathBuf,
    thread,
};

use serde_json::{Value, json};
use weir_cluster::{Cluster, Options};
use weir_lab::Lab;

use crate::{
    objects,
    runtime::{Runtime, Sandbox, addresses},
    site::Desk,
};

/// An annotation with the addresses that a pod must have, separated by spaces.
const ADDRESSES: &str = "test/addresses";
/// An annotation of pods whose IPv6 address comes first.
const SIX_FIRST: &str = "test/six-first";

/// The pods that demand addresses may demand any of these.
const ANY: [(&str, &str); 2] = [("10.0.0.0/8", "10.255.255.254"), ("fd00::/16", "fd00:ffff::1")];

/// How pods are joined to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joint {
    /// All by a bridge.
    Bridge,
    /// Each by a link of its own.
    Ptp,
}

/// The kubelet of a node.
pub(crate) struct Kubelet {
    node: &'static str,
    /// The chain for pods that take the addresses they get, and the one for those that demand some.
    pub(crate) usual: Runtime,
    pub(crate) demanding: Runtime,
    /// The pods that run, by their uid.
    running: BTreeMap<String, Sandbox>,
}

impl Kubelet {
    /// The kubelet of the node with this number, whose pods have addresses in networks of that
    /// number.
    pub(crate) fn new(
        lab: &Lab,
        desk: &Desk,
        node: &'static str,
        number: u8,
        joint: Joint,
    ) -> Self {
        let own = [format!("10.77.{number}.0/24"), format!("fd77:{number}::/64")];
        let own = own.map(|subnet| json!([{ "subnet": subnet }]));
        let any = ANY.map(|(subnet, gateway)| json!([{"subnet": subnet, "gateway": gateway}]));
        let chain = |name: &str, joint: Joint, ranges: Value| {
            let folder = desk.path(&format!("{node}-{name}"));
            let ipam = json!({
                "type": "host-local", "dataDir": folder.join("ipam"), "ranges": ranges,
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
            });
            let mut joint = match joint {
                Joint::Bridge => json!({"type": "bridge", "bridge": "cni0", "isGateway": true}),
                Joint::Ptp => json!({"type": "ptp"}),
            };
            (joint["ipam"], joint["capabilities"]) = (ipam, json!({"ips": true}));
            let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
            let ours = json!({"type": "weir-cni", "socket": socket(desk, node), "timeout": 30});
            Runtime::new(&folder, vec![joint, portmap], ours)
        };
        // Nobody waits for addresses of IPv6 to be looked for elsewhere, and links have one of
        // their own, as on any node.
        lab.on_node(node, || set([("accept_dad", "0"), ("addr_gen_mode", "0")])).unwrap();
        Kubelet {
            node,
            usual: chain("usual", joint, json!(own)),
            demanding: chain("demanding", Joint::Ptp, json!(any)),
            running: BTreeMap::new(),
        }
    }

    /// Removes the pods that are gone from the API server, and has those made that are new.
    pub(crate) fn sync(&mut self, cluster: &Cluster, lab: &mut Lab, more: impl Fn() -> String) {
        let pods = cluster.get("/api/v1/pods").unwrap()["items"].take();
        let pods =
            pods.as_array().unwrap().iter().filter(|pod| pod["spec"]["nodeName"] == self.node);
        let pods: BTreeMap<&str, &Value> = pods.map(|pod| (uid(pod), pod)).collect();
        let gone: BTreeSet<String> =
            self.running.keys().filter(|uid| !pods.contains_key(&***uid)).cloned().collect();
        let gone: Vec<Sandbox> = gone.iter().filter_map(|uid| self.running.remove(uid)).collect();
        let new: Vec<&Value> =
            pods.values().filter(|pod| !self.running.contains_key(uid(pod))).copied().collect();
        let this = &*self;
        thread::scope(|scope| {
            for sandbox in &gone {
                let lab = &*lab;
                scope.spawn(move || this.runtime(sandbox).del(lab, sandbox).unwrap());
            }
        });
        let made = thread::scope(|scope| {
            let adding = new.iter().map(|pod| {
                let lab = &*lab;
                scope.spawn(move || this.make(lab, pod))
            });
            let adding: Vec<_> = adding.collect();
            adding.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        for (pod, (sandbox, result)) in new.into_iter().zip(made) {
            let result = result.unwrap_or_else(|why| panic!("{}: {why}\n{}", sandbox.name, more()));
            let mut addresses = addresses(&result);
            let six_first = !pod["metadata"]["annotations"][SIX_FIRST].is_null();
            addresses.sort_by_key(|address| address.is_ipv6() != six_first);
            lab.adopt(self.node, &addresses, sandbox.namespace.hold()).unwrap();
            objects::runs_at(cluster, &sandbox.group, &sandbox.name, &addresses);
            self.running.insert(sandbox.uid.clone(), sandbox);
        }
    }

    fn runtime(&self, sandbox: &Sandbox) -> &Runtime {
        if sandbox.wishes["ips"].is_null() { &self.usual } else { &self.demanding }
    }

    fn make(&self, lab: &Lab, pod: &Value) -> (Sandbox, Result<Value, Value>) {
        let metadata = &pod["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap().to_owned();
        let demanded = metadata["annotations"][ADDRESSES].as_str();
        let demanded = demanded.map(|words| words.split(' ').collect::<Vec<_>>());
        let sandbox = Sandbox {
            group: text("namespace"),
            node: self.node.into(),
            wishes: demanded.map_or(json!({}), |ips| json!({ "ips": ips })),
            ..Sandbox::new(&text("name"), uid(pod))
        };
        sandbox.namespace.run(|| set([("accept_dad", "0")]));
        let result = self.runtime(&sandbox).add(lab, &sandbox);
        (sandbox, result)
    }
}

/// An API server whose pods have addresses of both families. Younger ones need not be told.
pub(crate) fn dual_stack() -> Options {
    Options { flags: vec!["--feature-gates=IPv6DualStack=true".into()] }
}

/// Lets a pod have this address, and one of the other family after it.
pub(crate) fn demand(pod: &mut Value, address: IpAddr) {
    let other = match address {
        IpAddr::V4(address) => format!("fd00:77::{address}").parse().unwrap(),
        IpAddr::V6(address) => {
            let [.., group, _, _, _, last] = address.segments();
            IpAddr::from([10, 78, group as u8, last as u8])
        }
    };
    pod["metadata"]["annotations"][ADDRESSES] = format!("{address} {other}").into();
    prefer(pod, address);
}

/// Lets a pod have the address first that is of the same family as this one.
pub(crate) fn prefer(pod: &mut Value, address: IpAddr) {
    if address.is_ipv6() {
        pod["metadata"]["annotations"][SIX_FIRST] = "yes".into();
    }
}

/// Where the agent of a node listens to the plugins.
pub(crate) fn socket(desk: &Desk, node: &str) -> PathBuf {
    desk.path(&format!("{node}.sock"))
}

/// The addresses of a pod in its status.
pub(crate) fn addresses_of(pod: &Value) -> Vec<IpAddr> {
    let ips = pod["status"]["podIPs"].as_array().into_iter().flatten();
    ips.map(|one| one["ip"].as_str().unwrap().parse().unwrap()).collect()
}

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap()
}

/// Sets what links of IPv6 begin with, in the network that this thread is in.
fn set<const N: usize>(settings: [(&str, &str); N]) {
    for (name, value) in settings {
        fs::write(format!("/proc/sys/net/ipv6/conf/default/{name}"), value).unwrap();
    }
}
