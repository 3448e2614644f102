//! A map from the addresses of pods to a tier's decision about them, updated member by member.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use weir_model::{IpFamily, Member, Name, Program, Protocol, SetDelta, SetId};

use crate::{
    ElementData, ElementKey, NftVerdict,
    decision::Decision,
    objects::Objects,
    tier::{MatchedRule, TierCompiler},
};

/// The content of the map, and the reasons for it.
///
/// Many addresses are members of the same sets. The decision about such a *kind* of address is
/// computed once, however many rules there are.
#[derive(Clone, Debug)]
pub(crate) struct PeerMap {
    pub(crate) compiler: TierCompiler,
    /// The decision about most members, if it needs a chain: they share the chain of the rule.
    usual: Option<Decision>,
    /// The sets, each with the numbers of the rules that name it.
    sets: Vec<(SetId, Vec<usize>)>,
    /// The pieces into which blocks divide the addresses, in order.
    pieces: Vec<(ElementKey, Vec<usize>)>,
    kinds: BTreeMap<Arc<PeerKind>, CountedData>,
    members: BTreeMap<IpAddr, Arc<PeerKind>>,
}

/// The sets that contain an address, by number. In sets of named ports, with each of its ports.
pub(crate) type Memberships = BTreeSet<(usize, Option<(Protocol, u16)>)>;

/// A kind of address: all addresses of a kind get the same decision.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PeerKind {
    /// The number of the piece that contains them.
    piece: Option<usize>,
    sets: Memberships,
}

/// The element data that all members of a kind share.
#[derive(Clone, Debug)]
struct CountedData {
    data: Arc<ElementData>,
    members: usize,
}

pub(crate) type Elements = BTreeMap<ElementKey, Option<Arc<ElementData>>>;

impl PeerMap {
    /// The map with all its elements.
    pub(crate) fn new(
        compiler: TierCompiler,
        usual: Option<Decision>,
        objects: &mut Objects,
        program: &Program,
    ) -> (Self, Elements) {
        let sets = compiler.rules.sets.iter().map(|(set, rules)| (set.clone(), rules.clone()));
        let mut map = PeerMap {
            sets: sets.collect(),
            pieces: compiler.pieces(),
            compiler,
            usual,
            kinds: BTreeMap::new(),
            members: BTreeMap::new(),
        };
        let mut all: BTreeMap<IpAddr, Memberships> = BTreeMap::new();
        for (number, (set, _)) in map.sets.iter().enumerate() {
            let members = program.sets.get(set).into_iter().flatten();
            for member in members.filter(|member| map.has(member)) {
                all.entry(member.address).or_default().insert((number, member.port));
            }
        }
        let mut elements = Elements::new();
        for (address, sets) in all {
            let data = map.update_address(objects, address, sets);
            elements.insert(ElementKey::Address(address), data);
        }
        (map, elements)
    }

    /// The sets whose members the map contains.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &SetId> {
        self.sets.iter().map(|(set, _)| set)
    }

    /// Records in `touched` the new memberships of addresses that a set change may affect.
    pub(crate) fn record_change(
        &self,
        program: &Program,
        id: &SetId,
        change: &SetDelta,
        touched: &mut BTreeMap<IpAddr, Memberships>,
    ) {
        let Ok(number) = self.sets.binary_search_by(|(set, _)| set.cmp(id)) else { return };
        let mut change_one = |member: &Member, change: fn(&mut Memberships, Membership) -> bool| {
            if self.has(member) {
                let now = || self.members.get(&member.address).map(|kind| kind.sets.clone());
                let sets = touched.entry(member.address);
                let sets = sets.or_insert_with(|| now().unwrap_or_default());
                change(sets, (number, member.port));
            }
        };
        let leave: fn(&mut Memberships, Membership) -> bool = |sets, one| sets.remove(&one);
        let join: fn(&mut Memberships, Membership) -> bool = BTreeSet::insert;
        match change {
            SetDelta::Change { added, removed } => {
                removed.iter().for_each(|member| change_one(member, leave));
                added.iter().for_each(|member| change_one(member, join));
            }
            SetDelta::Put(_) | SetDelta::Gone => {
                for (address, kind) in &self.members {
                    let here = kind.sets.range((number, None)..(number + 1, None));
                    for (_, port) in here {
                        change_one(&Member { address: *address, port: *port }, leave);
                    }
                }
                let now = program.sets.get(id).into_iter().flatten();
                now.for_each(|member| change_one(member, join));
            }
        }
    }

    /// Sets the memberships of an address. Returns the data of its element; `None` if it is in no set.
    pub(crate) fn update_address(
        &mut self,
        objects: &mut Objects,
        address: IpAddr,
        sets: Memberships,
    ) -> Option<Arc<ElementData>> {
        let old = self.members.remove(&address);
        let data = (!sets.is_empty()).then(|| {
            let kind = self.kind(address, sets);
            let known = match self.kinds.get_key_value(&kind) {
                Some((kind, _)) => kind.clone(),
                None => {
                    let data = self.element_data(objects, &self.decide(&kind)).into();
                    let kind = Arc::new(kind);
                    self.kinds.insert(kind.clone(), CountedData { data, members: 0 });
                    kind
                }
            };
            let data = self.kinds.get_mut(&known).map(|known| {
                known.members += 1;
                known.data.clone()
            });
            self.members.insert(address, known);
            data
        });
        self.release(old);
        data.flatten()
    }

    /// The element data of an address with this decision.
    ///
    /// For an element with a jump or goto, the kernel checks all maps for loops. A verdict without a
    /// chain is cheap.
    pub(crate) fn element_data(&self, objects: &mut Objects, decision: &Decision) -> ElementData {
        if self.usual.as_ref() == Some(decision) {
            ElementData { verdict: NftVerdict::Continue, comment: Name::from("") }
        } else {
            self.compiler.element_data(objects, decision)
        }
    }

    /// The decisions about an address before and after it gets these memberships.
    pub(crate) fn around(&self, address: IpAddr, sets: &Memberships) -> [Decision; 2] {
        let before = match self.members.get(&address) {
            Some(kind) => self.decide(kind),
            None => self.decide(&self.kind(address, Memberships::new())),
        };
        [before, self.decide(&self.kind(address, sets.clone()))]
    }

    /// Forgets the memberships of an address, whose element the caller replaces.
    pub(crate) fn forget_address(&mut self, address: IpAddr) {
        let old = self.members.remove(&address);
        self.release(old);
    }

    fn release(&mut self, kind: Option<Arc<PeerKind>>) {
        let Some(kind) = kind else { return };
        if let Some(known) = self.kinds.get_mut(&kind) {
            known.members = known.members.saturating_sub(1);
            if known.members == 0 {
                // Its chain may be removed.
                self.kinds.remove(&kind);
            }
        }
    }

    fn has(&self, member: &Member) -> bool {
        IpFamily::from(member.address) == self.compiler.family
    }

    fn kind(&self, address: IpAddr, sets: Memberships) -> PeerKind {
        let ends = |key: &ElementKey| matches!(key, ElementKey::Block(_, last) if *last < address);
        let at = self.pieces.partition_point(|(key, _)| ends(key));
        let piece = self.pieces.get(at).map(|(key, _)| key);
        let inside = matches!(piece, Some(ElementKey::Block(first, _)) if *first <= address);
        PeerKind { piece: inside.then_some(at), sets }
    }

    fn decide(&self, kind: &PeerKind) -> Decision {
        let piece = kind.piece.and_then(|at| self.pieces.get(at));
        let by_blocks = piece.into_iter().flat_map(|(_, rules)| rules).map(|rule| (*rule, None));
        let by_sets = kind.sets.iter().flat_map(|(set, port)| {
            let rules = self.sets.get(*set).into_iter().flat_map(|(_, rules)| rules);
            rules.map(|rule| (*rule, *port))
        });
        let fits: Vec<MatchedRule> = by_blocks.chain(by_sets).collect();
        self.compiler.decide(fits)
    }
}

type Membership = (usize, Option<(Protocol, u16)>);
