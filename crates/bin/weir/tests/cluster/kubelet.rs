//! A small kubelet: it creates the pods of its node with chains of CNI plugins, and writes their
//! addresses to their status.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
    path::PathBuf,
    thread,
};

use serde_json::{Value, json};
use weir_cluster::Cluster;
use weir_lab::Lab;

use crate::{
    objects,
    runtime::{Runtime, Sandbox, addresses},
    site::Scratch,
};

/// The annotation with the required addresses of a pod, separated by spaces.
const ADDRESSES: &str = "test/addresses";
/// The annotation of pods whose IPv6 address comes first.
const SIX_FIRST: &str = "test/six-first";

/// The networks of required addresses.
const ANY: [(&str, &str); 2] = [("10.0.0.0/8", "10.255.255.254"), ("fd00::/16", "fd00:ffff::1")];

/// The way pods are connected to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joint {
    /// By one bridge.
    Bridge,
    /// By one link each.
    Ptp,
}

/// The kubelet of a node.
pub(crate) struct Kubelet {
    node: &'static str,
    /// The chains for pods without and with required addresses.
    pub(crate) usual: Runtime,
    pub(crate) demanding: Runtime,
    /// The running pods, by uid.
    running: BTreeMap<String, Sandbox>,
}

impl Kubelet {
    /// The kubelet of a node. The networks of its pods contain the number of the node.
    pub(crate) fn new(
        lab: &Lab,
        scratch: &Scratch,
        node: &'static str,
        number: u8,
        joint: Joint,
    ) -> Self {
        let own = [format!("10.77.{number}.0/24"), format!("fd77:{number}::/64")];
        let own = own.map(|subnet| json!([{ "subnet": subnet }]));
        let any = ANY.map(|(subnet, gateway)| json!([{"subnet": subnet, "gateway": gateway}]));
        let chain = |name: &str, joint: Joint, ranges: Value| {
            let folder = scratch.path(&format!("{node}-{name}"));
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
            let ours = json!({"type": "weir-cni", "socket": socket(scratch, node), "timeout": 30});
            Runtime::new(&folder, vec![joint, portmap], ours)
        };
        // Skip duplicate address detection for IPv6, and keep link-local addresses, as on any node.
        lab.on_node(node, || set([("accept_dad", "0"), ("addr_gen_mode", "0")])).unwrap();
        Kubelet {
            node,
            usual: chain("usual", joint, json!(own)),
            demanding: chain("demanding", Joint::Ptp, json!(any)),
            running: BTreeMap::new(),
        }
    }

    /// Removes deleted pods and creates new ones.
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

/// Requires an address for a pod, followed by one of the other family.
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

/// Puts the address of the same family as this one first.
pub(crate) fn prefer(pod: &mut Value, address: IpAddr) {
    if address.is_ipv6() {
        pod["metadata"]["annotations"][SIX_FIRST] = "yes".into();
    }
}

/// The CNI socket of the agent of a node.
pub(crate) fn socket(scratch: &Scratch, node: &str) -> PathBuf {
    scratch.path(&format!("{node}.sock"))
}

/// The addresses of a pod in its status.
pub(crate) fn addresses_of(pod: &Value) -> Vec<IpAddr> {
    let ips = pod["status"]["podIPs"].as_array().into_iter().flatten();
    ips.map(|one| one["ip"].as_str().unwrap().parse().unwrap()).collect()
}

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap()
}

/// Sets IPv6 sysctls in the network namespace of this thread.
fn set<const N: usize>(settings: [(&str, &str); N]) {
    for (name, value) in settings {
        fs::write(format!("/proc/sys/net/ipv6/conf/default/{name}"), value).unwrap();
    }
}
