use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use weir_model::{Block, DomainPattern, Peers, Program, RuleSet, SetId, SetKey};

/// The pods whose questions count, the names that policies mention, and the trusted resolvers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsScope {
    /// The addresses of the pods with a rule about a name.
    pub pods: BTreeSet<IpAddr>,
    /// The names in these rules.
    pub patterns: BTreeSet<DomainPattern>,
    /// The addresses of resolvers whose answers count.
    pub resolvers: BTreeSet<IpAddr>,
    /// Further networks whose resolvers' answers count.
    pub resolver_networks: Vec<Block>,
}

impl DnsScope {
    /// The pods of a program with a rule about a name, and these names. No resolver is trusted.
    pub fn from_program(program: &Program) -> Self {
        let is_domain = |set: &SetId| matches!(**set, SetKey::Domain(_));
        // Most programs have no names. Their sets are ordered by kind.
        let first = SetId::new(SetKey::Domain(DomainPattern::Exact("".into())));
        let names = program.sets.range(first..).map(|(set, _)| set);
        let patterns: BTreeSet<DomainPattern> = names
            .take_while(|set| is_domain(set))
            .filter_map(|set| match &**set {
                SetKey::Domain(pattern) => Some(pattern.clone()),
                _ => None,
            })
            .collect();
        let mut pods = BTreeSet::new();
        if !patterns.is_empty() {
            let mut judged: BTreeMap<*const RuleSet, bool> = BTreeMap::new();
            for endpoint in program.endpoints.values() {
                let has_names = judged.entry(Arc::as_ptr(&endpoint.rules)).or_insert_with(|| {
                    let mut rules = endpoint.rules.egress.rules();
                    rules.any(|rule| matches!(&rule.peers, Peers::Set(set) if is_domain(set)))
                });
                if *has_names {
                    pods.extend(&endpoint.addresses);
                }
            }
        }
        DnsScope { pods, patterns, ..DnsScope::default() }
    }

    /// Whether a rule mentions the name.
    pub fn has_name(&self, name: &str) -> bool {
        let exact = DomainPattern::Exact(name.into());
        let mut parents = name.match_indices('.').map(|(at, _)| &name[at + 1..]);
        self.patterns.contains(&exact)
            || parents.any(|parent| self.patterns.contains(&DomainPattern::Under(parent.into())))
    }

    /// Whether answers from an address count.
    pub(crate) fn trusts(&self, resolver: IpAddr) -> bool {
        self.resolvers.contains(&resolver)
            || self.resolver_networks.iter().any(|network| network.contains(resolver))
    }
}
