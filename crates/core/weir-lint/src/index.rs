//! The pods of a world, by namespace and label.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    rc::Rc,
};

use weir_model::{Name, Pod, PodId, Requirement, Scope, Selector, World};

use crate::select;

/// Finds pods and namespaces by selector. Each distinct query is evaluated once.
pub(crate) struct Index<'w> {
    pub(crate) world: &'w World,
    /// The DNS servers of pods with their own.
    pub(crate) resolvers: &'w BTreeMap<PodId, Vec<IpAddr>>,
    selectable: PodTable<'w>,
    hosts: PodTable<'w>,
    namespaces: RefCell<HashMap<Selector, Rc<BTreeSet<&'w Name>>>>,
    by_address: Vec<(IpAddr, &'w Pod)>,
}

/// Pods sorted by id, so that the pods of a namespace are adjacent.
struct PodTable<'w> {
    pods: Rc<[&'w Pod]>,
    /// The indexes in `pods` of the pods with a label: in one namespace, or (without a namespace)
    /// in all.
    labelled: HashMap<(Option<&'w str>, &'w str, &'w str), Vec<u32>>,
    spans: BTreeMap<&'w str, std::ops::Range<u32>>,
    cache: RefCell<HashMap<Query, Rc<[&'w Pod]>>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Query {
    In(Name, Selector),
    Across(Selector, Selector),
}

impl<'w> Index<'w> {
    pub(crate) fn new(world: &'w World, resolvers: &'w BTreeMap<PodId, Vec<IpAddr>>) -> Self {
        let selectable: Rc<[&Pod]> =
            world.pods.values().filter(|pod| !pod.finished && !pod.host_network).collect();
        let hosts = world.pods.values().filter(|pod| !pod.finished && pod.host_network).collect();
        let mut by_address: Vec<(IpAddr, &Pod)> = selectable
            .iter()
            .flat_map(|pod| pod.own_addresses().iter().map(|address| (*address, *pod)))
            .collect();
        by_address.sort_by(|a, b| (a.0, &a.1.id).cmp(&(b.0, &b.1.id)));
        Index {
            world,
            resolvers,
            selectable: PodTable::new(selectable),
            hosts: PodTable::new(hosts),
            namespaces: RefCell::default(),
            by_address,
        }
    }

    /// The pods that selectors can match: running, and not on the host network.
    pub(crate) fn all(&self) -> Rc<[&'w Pod]> {
        self.selectable.pods.clone()
    }

    /// The pods that a scope and a selector match, seen from the namespace `own`.
    pub(crate) fn pods(&self, own: &Name, scope: &Scope, pods: &Selector) -> Rc<[&'w Pod]> {
        self.selectable.pods(self, own, scope, pods)
    }

    /// Host network pods whose labels would match; policies ignore them.
    pub(crate) fn hosts(&self, own: &Name, scope: &Scope, pods: &Selector) -> Rc<[&'w Pod]> {
        self.hosts.pods(self, own, scope, pods)
    }

    /// The names of the namespaces that a selector matches.
    pub(crate) fn namespaces(&self, selector: &Selector) -> Rc<BTreeSet<&'w Name>> {
        if let Some(known) = self.namespaces.borrow().get(selector) {
            return known.clone();
        }
        let all = self.world.namespaces.values();
        let found: Rc<BTreeSet<&Name>> = Rc::new(
            all.filter(|n| select::matches(selector, &n.labels)).map(|n| &n.name).collect(),
        );
        self.namespaces.borrow_mut().insert(selector.clone(), found.clone());
        found
    }

    /// The pods of a namespace that selectors can match.
    pub(crate) fn pods_of(&self, namespace: &str) -> &[&'w Pod] {
        let span = self.selectable.spans.get(namespace).cloned().unwrap_or_default();
        &self.selectable.pods[span.start as usize..span.end as usize]
    }

    /// Pods with an address in this range, sorted by address.
    pub(crate) fn between(&self, first: IpAddr, last: IpAddr) -> &[(IpAddr, &'w Pod)] {
        let start = self.by_address.partition_point(|(address, _)| *address < first);
        let end = self.by_address.partition_point(|(address, _)| *address <= last);
        &self.by_address[start..end.max(start)]
    }

    /// All pod addresses with their pods, sorted.
    pub(crate) fn addresses(&self) -> &[(IpAddr, &'w Pod)] {
        &self.by_address
    }
}

impl<'w> PodTable<'w> {
    fn new(pods: Rc<[&'w Pod]>) -> Self {
        let mut labelled: HashMap<_, Vec<u32>> = HashMap::new();
        let mut spans: BTreeMap<&str, std::ops::Range<u32>> = BTreeMap::new();
        for (at, pod) in (0u32..).zip(&*pods) {
            spans.entry(&pod.id.namespace).or_insert(at..at).end = at + 1;
            for (key, value) in pod.labels.iter() {
                for namespace in [None, Some(&*pod.id.namespace)] {
                    labelled.entry((namespace, &**key, &**value)).or_default().push(at);
                }
            }
        }
        PodTable { pods, labelled, spans, cache: RefCell::default() }
    }

    fn pods(
        &self,
        index: &Index<'w>,
        own: &Name,
        scope: &Scope,
        selector: &Selector,
    ) -> Rc<[&'w Pod]> {
        let query = match scope {
            Scope::Own => Query::In(own.clone(), selector.clone()),
            Scope::Matching(namespaces) => Query::Across(namespaces.clone(), selector.clone()),
        };
        if let Some(known) = self.cache.borrow().get(&query) {
            return known.clone();
        }
        let found: Rc<[&Pod]> = match &query {
            Query::In(namespace, selector) => self
                .candidates(Some(namespace), selector)
                .filter(|pod| select::matches(selector, &pod.labels))
                .collect(),
            Query::Across(namespaces, selector) => {
                let namespaces = index.namespaces(namespaces);
                self.candidates(None, selector)
                    .filter(|pod| namespaces.contains(&pod.id.namespace))
                    .filter(|pod| select::matches(selector, &pod.labels))
                    .collect()
            }
        };
        self.cache.borrow_mut().insert(query, found.clone());
        found
    }

    /// The shortest list that contains all pods that the selector matches, in order.
    fn candidates<'a>(
        &'a self,
        namespace: Option<&'a str>,
        selector: &'a Selector,
    ) -> Box<dyn Iterator<Item = &'w Pod> + 'a> {
        let lists = selector.requirements().iter().filter_map(|requirement| match requirement {
            Requirement::In(key, values) => {
                let value = values.first().filter(|_| values.len() == 1)?;
                Some(self.labelled.get(&(namespace, &**key, &**value)).map_or(&[][..], |l| l))
            }
            _ => None,
        });
        match lists.min_by_key(|list| list.len()) {
            Some(list) => Box::new(list.iter().map(|at| self.pods[*at as usize])),
            None => {
                let span = match namespace {
                    None => 0..self.pods.len() as u32,
                    Some(namespace) => self.spans.get(namespace).cloned().unwrap_or_default(),
                };
                Box::new(span.map(|at| self.pods[at as usize]))
            }
        }
    }
}
