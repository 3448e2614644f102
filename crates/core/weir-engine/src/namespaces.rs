use std::collections::BTreeSet;

use hashbrown::HashMap;
use smallvec::SmallVec;
use weir_model::{Labels, Name, Scope, Selector};

use crate::{
    anchors::AnchorIndex,
    labels::{LabelTable, PairId},
    postings::Postings,
    selectors::{SelectorId, Selectors},
    slab::Slab,
};

/// A namespace that exists or is mentioned.
pub(crate) type NamespaceId = u32;

/// A resolved selection of namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ScopeId {
    /// This one.
    Namespace(NamespaceId),
    /// The namespaces that a selector matches.
    Matching(u32),
}

/// Namespaces, and the matches of each namespace selector.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    table: Slab<NamespaceEntry>,
    ids: HashMap<Name, NamespaceId>,
    /// The namespaces that exist and therefore have labels.
    declared: BTreeSet<NamespaceId>,
    postings: Postings,
    scopes: Slab<Matching>,
    scope_ids: HashMap<SelectorId, u32>,
    by_anchor: AnchorIndex<()>,
}

#[derive(Debug)]
struct NamespaceEntry {
    name: Name,
    uses: u32,
    /// The pseudo label that all its pods have in the pods' postings.
    pods: PairId,
    /// The scopes that contain it, sorted.
    scopes: SmallVec<[u32; 4]>,
}

#[derive(Debug)]
struct Matching {
    selector: SelectorId,
    uses: u32,
    namespaces: BTreeSet<NamespaceId>,
}

/// The scopes that a namespace left and entered.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    pub(crate) left: Vec<ScopeId>,
    pub(crate) entered: Vec<ScopeId>,
}

impl Moved {
    pub(crate) fn is_nothing(&self) -> bool {
        self.left.is_empty() && self.entered.is_empty()
    }
}

impl Namespaces {
    /// Interns a namespace and adds a reference to it.
    pub(crate) fn acquire(&mut self, name: &Name, labels: &mut LabelTable) -> NamespaceId {
        let id = match self.ids.get(name) {
            Some(&id) => id,
            None => {
                let pods = labels.acquire(&"\0namespace".into(), name);
                let entry =
                    NamespaceEntry { name: name.clone(), uses: 0, pods, scopes: SmallVec::new() };
                let id = self.table.insert(entry);
                self.ids.insert(name.clone(), id);
                id
            }
        };
        self.table[id].uses += 1;
        id
    }

    /// Releases a reference to a namespace.
    pub(crate) fn release(&mut self, id: NamespaceId, labels: &mut LabelTable) {
        self.table[id].uses -= 1;
        if self.table[id].uses == 0 {
            let gone = self.table.remove(id);
            self.ids.remove(&gone.name);
            labels.release(gone.pods);
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<NamespaceId> {
        self.ids.get(name).copied()
    }

    pub(crate) fn name(&self, id: NamespaceId) -> &Name {
        &self.table[id].name
    }

    /// The pair that lists the pods of a namespace in the pods' postings.
    pub(crate) fn pods_pair(&self, id: NamespaceId) -> PairId {
        self.table[id].pods
    }

    /// The scopes that contain the pods of the namespace.
    pub(crate) fn scopes(&self, id: NamespaceId) -> impl Iterator<Item = ScopeId> {
        std::iter::once(ScopeId::Namespace(id))
            .chain(self.table[id].scopes.iter().map(|scope| ScopeId::Matching(*scope)))
    }

    pub(crate) fn is_in(&self, id: NamespaceId, scope: ScopeId) -> bool {
        match scope {
            ScopeId::Namespace(only) => id == only,
            ScopeId::Matching(scope) => self.table[id].scopes.binary_search(&scope).is_ok(),
        }
    }

    /// The namespaces of a scope.
    pub(crate) fn members(&self, scope: ScopeId) -> Box<dyn Iterator<Item = NamespaceId> + '_> {
        match scope {
            ScopeId::Namespace(only) => Box::new(std::iter::once(only)),
            ScopeId::Matching(scope) => Box::new(self.scopes[scope].namespaces.iter().copied()),
        }
    }

    /// Declares a namespace with its labels, or removes the declaration (`None`). A declaration
    /// holds a reference.
    pub(crate) fn declare(
        &mut self,
        id: NamespaceId,
        new: Option<&Labels>,
        labels: &mut LabelTable,
        selectors: &Selectors,
    ) -> Moved {
        for pair in self.postings.remove(id) {
            labels.release(pair);
        }
        let was_declared = match new {
            None => self.declared.remove(&id),
            Some(new) => {
                let pairs: SmallVec<[PairId; 8]> =
                    new.iter().map(|(key, value)| labels.acquire(key, value)).collect();
                self.postings.insert(id, &pairs);
                !self.declared.insert(id)
            }
        };
        let moved = self.rescope(id, labels, selectors);
        if new.is_some() && !was_declared {
            self.table[id].uses += 1;
        } else if new.is_none() && was_declared {
            self.release(id, labels);
        }
        moved
    }

    /// Recomputes which selectors match a namespace.
    fn rescope(&mut self, id: NamespaceId, labels: &LabelTable, selectors: &Selectors) -> Moved {
        let row = self.postings.row(id);
        let mut now: SmallVec<[u32; 4]> = SmallVec::new();
        if self.declared.contains(&id) {
            self.by_anchor.candidates((), row, labels, |scope| {
                if selectors.matches(self.scopes[scope].selector, row, labels) {
                    now.push(scope);
                }
            });
        }
        now.sort_unstable();
        let before = std::mem::replace(&mut self.table[id].scopes, now.clone());
        let without = |all: &[u32], others: &[u32]| -> Vec<u32> {
            all.iter().filter(|scope| others.binary_search(scope).is_err()).copied().collect()
        };
        let (left, entered) = (without(&before, &now), without(&now, &before));
        for scope in &left {
            self.scopes[*scope].namespaces.remove(&id);
        }
        for scope in &entered {
            self.scopes[*scope].namespaces.insert(id);
        }
        let ids = |scopes: Vec<u32>| scopes.into_iter().map(ScopeId::Matching).collect();
        Moved { left: ids(left), entered: ids(entered) }
    }

    /// Interns a scope, seen from a namespace, and adds a reference to it.
    pub(crate) fn acquire_scope(
        &mut self,
        own: &Name,
        scope: &Scope,
        labels: &mut LabelTable,
        selectors: &mut Selectors,
    ) -> ScopeId {
        match scope {
            Scope::Own => ScopeId::Namespace(self.acquire(own, labels)),
            Scope::Matching(selector) => {
                ScopeId::Matching(self.acquire_matching(selector, labels, selectors))
            }
        }
    }

    fn acquire_matching(
        &mut self,
        selector_text: &Selector,
        labels: &mut LabelTable,
        selectors: &mut Selectors,
    ) -> u32 {
        let selector = selectors.acquire(selector_text, labels);
        if let Some(&scope) = self.scope_ids.get(&selector) {
            selectors.release(selector, labels);
            self.scopes[scope].uses += 1;
            return scope;
        }
        let namespaces: BTreeSet<NamespaceId> =
            self.matching(selector, labels, selectors).collect();
        let scope = self.scopes.insert(Matching { selector, uses: 1, namespaces });
        self.scope_ids.insert(selector, scope);
        self.by_anchor.insert((), selectors.anchors(selector), scope);
        for id in &self.scopes[scope].namespaces {
            let scopes = &mut self.table[*id].scopes;
            let at = scopes.partition_point(|other| *other < scope);
            scopes.insert(at, scope);
        }
        scope
    }

    /// How many declared namespaces a selector must be compared with.
    pub(crate) fn candidates(
        &self,
        selector: SelectorId,
        labels: &LabelTable,
        selectors: &Selectors,
    ) -> usize {
        let lists = self.postings.lists(selectors.anchors(selector), labels);
        lists.map_or(self.declared.len(), |lists| lists.iter().map(|list| list.len()).sum())
    }

    /// The declared namespaces that a selector matches.
    fn matching<'a>(
        &'a self,
        selector: SelectorId,
        labels: &'a LabelTable,
        selectors: &'a Selectors,
    ) -> impl Iterator<Item = NamespaceId> + 'a {
        let candidates: Box<dyn Iterator<Item = NamespaceId>> =
            match self.postings.lists(selectors.anchors(selector), labels) {
                Some(lists) => Box::new(lists.into_iter().flatten().copied()),
                None => Box::new(self.declared.iter().copied()),
            };
        candidates.filter(move |id| selectors.matches(selector, self.postings.row(*id), labels))
    }

    /// Releases a reference to a scope.
    pub(crate) fn release_scope(
        &mut self,
        scope: ScopeId,
        labels: &mut LabelTable,
        selectors: &mut Selectors,
    ) {
        let scope = match scope {
            ScopeId::Namespace(id) => return self.release(id, labels),
            ScopeId::Matching(scope) => scope,
        };
        self.scopes[scope].uses -= 1;
        if self.scopes[scope].uses > 0 {
            return;
        }
        let gone = self.scopes.remove(scope);
        self.scope_ids.remove(&gone.selector);
        self.by_anchor.remove((), selectors.anchors(gone.selector), scope);
        for id in gone.namespaces {
            let scopes = &mut self.table[id].scopes;
            if let Ok(at) = scopes.binary_search(&scope) {
                scopes.remove(at);
            }
        }
        selectors.release(gone.selector, labels);
    }
}
