use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use serde_json::{Value, json};
use weir_datapath::Shortfall;
use weir_model::{Direction, Flow, PodId, Program, Verdict};

use crate::{Acl, AclLimits, Rendered, evaluate, render::RenderedChains};

/// The ACLs of all pods of a program.
#[derive(Clone, Debug)]
pub struct Acls {
    pods: BTreeMap<PodId, (Vec<IpAddr>, Rendered)>,
    owners: BTreeMap<IpAddr, PodId>,
}

impl Acls {
    /// Renders the ACLs of a program.
    pub fn render(program: &Program) -> Self {
        Acls::render_within(program, &AclLimits::default())
    }

    /// Renders the ACLs of a program within these limits.
    pub fn render_within(program: &Program, limits: &AclLimits) -> Self {
        let mut acls = Acls { pods: BTreeMap::new(), owners: BTreeMap::new() };
        let mut chains = RenderedChains::new(program, limits.clone());
        for (id, endpoint) in &program.endpoints {
            let own = endpoint
                .addresses
                .iter()
                .filter(|address| program.owner(**address).is_some_and(|(owner, _)| owner == id));
            let own: Vec<IpAddr> = own.copied().collect();
            acls.owners.extend(own.iter().map(|address| (*address, id.clone())));
            let rendered = chains.render(id, endpoint, &BTreeSet::new());
            acls.pods.insert(id.clone(), (own, rendered));
        }
        acls
    }

    /// Evaluates a flow against the ACLs at both ends. If an end has ACLs and none matches, the
    /// flow is denied.
    pub fn verdict(&self, flow: &Flow) -> Verdict {
        let side = |direction| {
            let (here, _) = flow.ends(direction);
            let acls = self.at(here);
            let closed = if acls.is_empty() { Verdict::Allow } else { Verdict::Deny };
            evaluate(acls, flow, direction).unwrap_or(closed)
        };
        Direction::BOTH.into_iter().map(side).fold(Verdict::Allow, Verdict::and)
    }

    /// The first shortfall that can make the ACLs between two addresses stricter than the policies.
    pub fn shortfall(&self, flow: &Flow) -> Option<&Shortfall> {
        let ends = [flow.to, flow.from].into_iter();
        let pods = ends.filter_map(|address| self.pods.get(self.owners.get(&address)?));
        pods.flat_map(|(_, rendered)| &rendered.shortfalls).next()
    }

    /// The policies of each pod's endpoint, in the format of HNS.
    pub fn to_json(&self) -> Value {
        let pods = self.pods.iter().map(|(id, (addresses, rendered))| {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let policies: Vec<Value> = rendered.acls.iter().map(Acl::policy).collect();
            let mut pod =
                json!({"Pod": id.to_string(), "IpAddresses": addresses, "Policies": policies});
            if !rendered.shortfalls.is_empty() {
                let shortfalls = rendered.shortfalls.iter().map(ToString::to_string);
                pod["Shortfalls"] = shortfalls.collect::<Vec<String>>().into();
            }
            pod
        });
        pods.collect()
    }

    fn at(&self, address: IpAddr) -> &[Acl] {
        let pod = self.owners.get(&address).and_then(|pod| self.pods.get(pod));
        pod.map_or(&[], |(_, rendered)| &rendered.acls)
    }
}

/// The ACLs of each pod's endpoint, one per line.
impl fmt::Display for Acls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, (addresses, Rendered { acls, shortfalls })) in &self.pods {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let count = match acls.len() {
                0 => "no ACLs, because no policy selects it".to_owned(),
                count => format!("{count} ACLs"),
            };
            writeln!(f, "{id} ({}): {count}", addresses.join(", "))?;
            acls.iter().try_for_each(|acl| writeln!(f, "  {acl}"))?;
            shortfalls.iter().try_for_each(|shortfall| writeln!(f, "  ! {shortfall}"))?;
        }
        Ok(())
    }
}
