//! A world, as it was read.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
};

use weir_api::{HostReference, IgnoreAnnotation, Manifests, Route, RouteId};
use weir_engine::Locality;
use weir_model::{
    Attachments, Finding, Name, ObjectRef, PodId, PolicyId, PortRange, Severity, World,
};
use weir_reach::ReachState;

use crate::failure::{Failure, nearest};

/// A world, and the facts about it that only the input has.
#[derive(Clone)]
pub struct Loaded {
    /// The cluster.
    pub world: World,
    /// The findings from reading the input.
    pub findings: Vec<Finding>,
    /// The findings about objects that are missing from the world because they could not be read.
    pub missing: Vec<Finding>,
    /// The outermost known workload of each pod, as `namespace/deployment/name`.
    pub owners: BTreeMap<PodId, String>,
    /// The ports that the containers of each pod declare.
    pub declared: BTreeMap<PodId, Vec<PortRange>>,
    /// The pods of each workload, under all of its names.
    pub workloads: BTreeMap<String, Vec<PodId>>,
    /// The policies that a controller created, with the object that owns them.
    pub generated_for: BTreeMap<PolicyId, Name>,
    /// The synthetic addresses of pods whose manifest has none.
    pub synthetic: BTreeSet<IpAddr>,
    /// The annotations that ask `weir lint` to ignore findings.
    pub ignores: Vec<IgnoreAnnotation>,
    /// The pods with networks other than the cluster network.
    pub attachments: BTreeMap<PodId, Attachments>,
    /// The DNS servers of pods with their own.
    pub resolvers: BTreeMap<PodId, Vec<IpAddr>>,
    /// The hosts that containers name, if the command needs them.
    pub hosts: BTreeMap<PodId, Vec<HostReference>>,
    /// The Ingresses and Gateway routes.
    pub routes: BTreeMap<RouteId, Route>,
    /// The `apiVersion` of the input's ClusterNetworkPolicies.
    pub cluster_policy_version: Option<Name>,
}

impl Loaded {
    /// The lint findings about the world, without synthetic addresses. Warnings about policies that
    /// a controller created are dropped: lint reports on the object that owns them.
    pub fn lint(&self) -> Vec<Finding> {
        let generated: BTreeSet<ObjectRef> =
            self.generated_for.keys().map(ObjectRef::from).collect();
        let mut findings = weir_lint::lint_with(&self.without_synthetic(), &self.resolvers);
        findings.retain(|finding| {
            finding.severity == Severity::Error
                || finding.object.as_ref().is_none_or(|object| !generated.contains(object))
        });
        findings
    }

    /// The world without synthetic addresses.
    pub fn without_synthetic(&self) -> Cow<'_, World> {
        if self.synthetic.is_empty() {
            return Cow::Borrowed(&self.world);
        }
        let mut world = self.world.clone();
        for pod in world.pods.values_mut() {
            pod.addresses.retain(|address| !self.synthetic.contains(address));
        }
        Cow::Owned(world)
    }

    /// Removes the synthetic addresses from the world.
    pub fn drop_synthetic(&mut self) {
        let synthetic = mem::take(&mut self.synthetic);
        for pod in self.world.pods.values_mut().filter(|_| !synthetic.is_empty()) {
            pod.addresses.retain(|address| !synthetic.contains(address));
        }
    }

    /// Fails for a namespace that does not occur in the input.
    pub fn check_namespace(&self, namespace: &str) -> Result<(), Failure> {
        // All objects of the namespace may be unreadable.
        let has_finding = self.findings.iter().any(|finding| is_about(finding, namespace));
        if self.world.namespaces.contains_key(namespace) || has_finding || !self.missing.is_empty()
        {
            return Ok(());
        }
        let known: Vec<&str> = self.world.namespaces.keys().map(|name| &**name).collect();
        let hint = match nearest(namespace, &known).as_slice() {
            [] => "the input has no namespaces".to_owned(),
            near => format!("did you mean {}?", near.join(" or ")),
        };
        Err(Failure::new(format!("there is no namespace {namespace}"), hint))
    }
}

/// Compiles a world for all nodes.
pub fn compile(world: World) -> ReachState {
    let program = weir_engine::compile(&world, Locality::Everywhere);
    ReachState { world, program }
}

/// Whether a finding is about an object of the namespace.
pub fn is_about(finding: &Finding, namespace: &str) -> bool {
    finding.object.as_ref().is_some_and(|object| *object.namespace == *namespace)
}

impl From<Manifests> for Loaded {
    fn from(manifests: Manifests) -> Self {
        let missing = manifests.missing().cloned().collect();
        let Manifests {
            objects,
            findings,
            owners,
            declared,
            generated_for,
            synthetic,
            ignores,
            unjudged: attachments,
            resolvers,
            hosts,
            routes,
            cluster_policy_version,
            ..
        } = manifests;
        let mut names: BTreeMap<PodId, String> = BTreeMap::new();
        let mut workloads = BTreeMap::new();
        for (owner, pods) in owners {
            let name = format!("{}/{}/{}", owner.namespace, owner.kind, owner.name);
            for id in &pods {
                let known = names.entry(id.clone()).or_insert_with(|| name.clone());
                // Prefer the Deployment to its ReplicaSet.
                if known.contains("/replicaset/") {
                    known.clone_from(&name);
                }
            }
            workloads.insert(name, pods);
        }
        let world = World::from(objects);
        Loaded {
            world,
            findings,
            missing,
            owners: names,
            declared,
            workloads,
            generated_for,
            synthetic,
            ignores,
            attachments,
            resolvers,
            hosts,
            routes,
            cluster_policy_version,
        }
    }
}
