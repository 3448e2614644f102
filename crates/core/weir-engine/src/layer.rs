//! The rules in force, and the rules as they would be with all staged policies enforced.
//!
//! Both are compiled from one `Cluster`, so staged policies need memory only for policies, sets and
//! the rules of the pods that they select.

use std::{collections::BTreeSet, net::IpAddr};

use smallvec::SmallVec;
use weir_model::{Delta, Name, Policy, PolicyId, Program};

use crate::{
    Budget,
    cluster::Cluster,
    endpoints::Endpoints,
    nodes::NodeId,
    policies::{Policies, Touched},
    sets::{Memberships, Sets},
};

/// Policies, and the rules that they result in.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    pub(crate) policies: Policies,
    pub(crate) sets: Sets,
    pub(crate) endpoints: Endpoints,
}

/// The layers of an engine.
#[derive(Debug)]
pub(crate) struct Layers {
    /// The rules in force.
    pub(crate) enforced: Layer,
    /// Whether the rules with staged policies are compiled.
    pub(crate) compiles_staged: bool,
    pub(crate) staged_policies: BTreeSet<PolicyId>,
    /// The rules with staged policies; they exist only while a policy is staged.
    staged: Option<Box<StagedLayer>>,
}

#[derive(Debug)]
struct StagedLayer {
    /// All policies, and the endpoints that a staged one selects.
    layer: Layer,
    program: Program,
}

/// The memberships in the sets of each layer.
type LayerMemberships = SmallVec<[Memberships; 2]>;

impl Layer {
    fn put_policy(&mut self, policy: &Policy, cluster: &mut Cluster) {
        let touched = self.policies.put(policy, cluster);
        touched.iter().for_each(|touched| self.touch(touched, cluster));
    }

    fn remove_policy(&mut self, id: &PolicyId, cluster: &mut Cluster) {
        let touched = self.policies.remove(id, cluster);
        touched.into_iter().for_each(|touched| self.touch(&touched, cluster));
    }

    fn touch(&mut self, touched: &Touched, cluster: &Cluster) {
        let Layer { policies, endpoints, .. } = self;
        let (Touched::Rules(group) | Touched::Subject(group)) = *touched;
        endpoints.mark_classes(policies.classes_of(group));
        if let Touched::Subject(_) = touched {
            endpoints.mark_members(policies.classes_of(group));
            for pod in policies.subjects(group, cluster) {
                endpoints.mark(cluster.pod_id(pod));
            }
        }
    }

    fn compute_delta(&mut self, cluster: &mut Cluster) -> Delta {
        let Layer { policies, sets, endpoints } = self;
        let endpoints = endpoints.recompute(cluster, policies, sets);
        policies.release_unused(sets, cluster);
        Delta { endpoints, sets: sets.take_changes().collect() }
    }
}

impl StagedLayer {
    /// The policies in force, without endpoints: none of these policies is staged.
    fn new(enforced: &Policies, cluster: &mut Cluster) -> Self {
        let endpoints = Endpoints::only_staged();
        let mut layer = Layer { policies: enforced.emptied(), sets: Sets::default(), endpoints };
        for known in enforced.iter() {
            let (id, location) = (known.id.clone(), known.location.clone());
            let policy = Policy { id, location, spec: known.spec.clone(), staged: false };
            layer.policies.put(&policy, cluster);
        }
        StagedLayer { layer, program: Program::default() }
    }

    /// Releases everything that the layer holds in the cluster.
    fn release(mut self, cluster: &mut Cluster) {
        let all: Vec<PolicyId> = self.layer.policies.iter().map(|known| known.id.clone()).collect();
        all.iter().for_each(|id| self.layer.remove_policy(id, cluster));
        self.layer.compute_delta(cluster);
    }
}

impl Layers {
    pub(crate) fn new(budget: Budget) -> Self {
        Layers {
            enforced: Layer { policies: Policies::new(budget), ..Layer::default() },
            compiles_staged: false,
            staged_policies: BTreeSet::new(),
            staged: None,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Layer> {
        [&self.enforced].into_iter().chain(self.staged.as_ref().map(|staged| &staged.layer))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Layer> {
        let staged = self.staged.as_mut().map(|staged| &mut staged.layer);
        [&mut self.enforced].into_iter().chain(staged)
    }

    pub(crate) fn staged_program(&self) -> Option<&Program> {
        self.staged.as_ref().map(|staged| &staged.program)
    }

    pub(crate) fn put_policy(&mut self, policy: &Policy, cluster: &mut Cluster) {
        if policy.staged {
            self.enforced.remove_policy(&policy.id, cluster);
            self.staged_policies.insert(policy.id.clone());
            if self.compiles_staged && self.staged.is_none() {
                let staged = StagedLayer::new(&self.enforced.policies, cluster);
                self.staged = Some(Box::new(staged));
            }
        } else {
            self.enforced.put_policy(policy, cluster);
            self.staged_policies.remove(&policy.id);
        }
        if let Some(staged) = &mut self.staged {
            staged.layer.put_policy(policy, cluster);
        }
    }

    pub(crate) fn remove_policy(&mut self, id: &PolicyId, cluster: &mut Cluster) {
        self.staged_policies.remove(id);
        self.iter_mut().for_each(|layer| layer.remove_policy(id, cluster));
    }

    /// Recompiles what changed, and returns the changes of the rules in force.
    pub(crate) fn compute_delta(&mut self, cluster: &mut Cluster) -> Delta {
        let is_unused = self.staged_policies.is_empty();
        if let Some(staged) = self.staged.take_if(|_| is_unused) {
            staged.release(cluster);
        }
        if let Some(StagedLayer { layer, program }) = self.staged.as_deref_mut() {
            program.apply(layer.compute_delta(cluster));
        }
        self.enforced.compute_delta(cluster)
    }

    pub(crate) fn memberships_of_pods(
        &self,
        addresses: &[IpAddr],
        cluster: &Cluster,
    ) -> LayerMemberships {
        self.iter().map(|layer| layer.sets.memberships_of_pods(addresses, cluster)).collect()
    }

    pub(crate) fn memberships_of_nodes(
        &self,
        nodes: &[NodeId],
        addresses: &[IpAddr],
        cluster: &Cluster,
    ) -> LayerMemberships {
        let all = self.iter();
        all.map(|layer| layer.sets.memberships_of_nodes(nodes, addresses, cluster)).collect()
    }

    pub(crate) fn memberships_of_domains(
        &self,
        name: &Name,
        addresses: &[IpAddr],
        cluster: &Cluster,
    ) -> LayerMemberships {
        let all = self.iter();
        all.map(|layer| layer.sets.memberships_of_domains(name, addresses, cluster)).collect()
    }

    pub(crate) fn record_difference(&mut self, before: LayerMemberships, now: LayerMemberships) {
        for (layer, (before, now)) in self.iter_mut().zip(before.into_iter().zip(now)) {
            layer.sets.record_difference(before, now);
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.staged.is_none() && self.enforced.policies.is_empty()
    }
}
