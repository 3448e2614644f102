//! The sets of the table that hold the peers of a tier, updated member by member.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use hashbrown::HashMap;
use weir_model::{Action, IpFamily, Member, Name, Program, Protocol, SetDelta, SetId};

use crate::{
    ElementKey,
    decision::PeerDecision,
    layout::{Layout, Place, Slot},
    moves::Move,
    tier::TierCompiler,
    tier_sequence::TierSequence,
};

/// The content of the sets, and the reasons for it.
///
/// Many addresses are members of the same sets of the program. The places of such a *kind* of
/// address are computed once, however many rules there are.
#[derive(Clone, Debug)]
pub(crate) struct PeerSets {
    content: Content,
    family: IpFamily,
    /// The sets of the program, each with the numbers of the rules that name it.
    sets: Vec<(SetId, Vec<usize>)>,
    /// The pieces into which blocks divide the addresses, in order.
    pieces: Vec<(ElementKey, Vec<usize>)>,
    kinds: HashMap<Arc<PeerKind>, CountedPlaces>,
    members: BTreeMap<IpAddr, Arc<PeerKind>>,
    /// The places of addresses that are between two decisions.
    bridged: BTreeMap<IpAddr, Arc<[Place]>>,
}

/// The meaning of the sets.
#[derive(Clone, Debug)]
enum Content {
    /// One set with the members of all sets of the program.
    Union(Slot),
    /// Numbered sets, each of them a union of sets of the program. The numbers of rules are the
    /// indexes of these sets.
    Numbered(Vec<Slot>),
    /// The sets of a tier.
    Tier(Box<(TierCompiler, Arc<Layout>)>),
    /// The sets of a tier whose rules are in sequence.
    Sequence(Box<(TierCompiler, TierSequence)>),
}

/// The sets that contain an address, by number. In sets of named ports, with each of its ports.
pub(crate) type Memberships = BTreeSet<Membership>;

type Membership = (usize, Option<(Protocol, u16)>);

/// A kind of address: all addresses of a kind have the same places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct PeerKind {
    /// The number of the piece that contains them.
    piece: Option<usize>,
    /// The memberships, sorted.
    sets: Vec<Membership>,
}

/// The places that all members of a kind share.
#[derive(Clone, Debug)]
struct CountedPlaces {
    places: Arc<[Place]>,
    members: usize,
}

impl PeerSets {
    /// One set with the members of several sets of the program.
    pub(crate) fn union(slot: Slot, family: IpFamily, sets: Vec<SetId>) -> Self {
        let sets = sets.into_iter().map(|set| (set, Vec::new())).collect();
        PeerSets::new(Content::Union(slot), family, sets, Vec::new())
    }

    /// Numbered sets, each with the members of several sets of the program.
    pub(crate) fn numbered(slots: Vec<Slot>, family: IpFamily, unions: Vec<Vec<SetId>>) -> Self {
        let mut indexes: BTreeMap<SetId, Vec<usize>> = BTreeMap::new();
        for (index, sets) in unions.into_iter().enumerate() {
            sets.into_iter().for_each(|set| indexes.entry(set).or_default().push(index));
        }
        let sets = indexes.into_iter().collect();
        PeerSets::new(Content::Numbered(slots), family, sets, Vec::new())
    }

    /// The sets of a tier.
    pub(crate) fn tier(compiler: TierCompiler, layout: Arc<Layout>) -> Self {
        let sets = compiler.rules.sets.iter().map(|(set, rules)| (set.clone(), rules.clone()));
        let (sets, pieces, family) = (sets.collect(), compiler.pieces(), compiler.family);
        PeerSets::new(Content::Tier(Box::new((compiler, layout))), family, sets, pieces)
    }

    /// The sets of a tier whose rules are in sequence.
    pub(crate) fn sequence(compiler: TierCompiler, sequence: TierSequence) -> Self {
        let sets = compiler.rules.sets.iter().map(|(set, rules)| (set.clone(), rules.clone()));
        let (sets, family) = (sets.collect(), compiler.family);
        PeerSets::new(Content::Sequence(Box::new((compiler, sequence))), family, sets, Vec::new())
    }

    fn new(
        content: Content,
        family: IpFamily,
        sets: Vec<(SetId, Vec<usize>)>,
        pieces: Vec<(ElementKey, Vec<usize>)>,
    ) -> Self {
        PeerSets {
            content,
            family,
            sets,
            pieces,
            kinds: HashMap::new(),
            members: BTreeMap::new(),
            bridged: BTreeMap::new(),
        }
    }

    /// Adds all members. Returns the elements of each set.
    pub(crate) fn fill(&mut self, program: &Program) -> Vec<Vec<ElementKey>> {
        let mut all: Vec<(IpAddr, Membership)> = Vec::new();
        for (number, (set, _)) in self.sets.iter().enumerate() {
            let members = program.sets.get(set).into_iter().flatten();
            let ours = members.filter(|member| self.has(member));
            all.extend(ours.map(|member| (member.address, (number, member.port))));
        }
        all.sort_unstable();
        let mut elements = vec![Vec::new(); self.slots().len()];
        let mut kind = PeerKind::default();
        for same in all.chunk_by(|(one, _), (other, _)| one == other) {
            let Some((address, _)) = same.first() else { continue };
            kind.sets.clear();
            kind.sets.extend(same.iter().map(|(_, membership)| *membership));
            kind.piece = self.piece(*address);
            let places = self.insert(*address, &kind);
            for (at, port) in &*places {
                if let (Some(slot), Some(elements)) = (self.slots().get(*at), elements.get_mut(*at))
                {
                    elements.push(slot.element(*address, *port));
                }
            }
        }
        elements
    }

    /// The sets of the program whose members are peers.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &SetId> {
        self.sets.iter().map(|(set, _)| set)
    }

    /// The sets of the table.
    pub(crate) fn slots(&self) -> &[Slot] {
        match &self.content {
            Content::Union(slot) => std::slice::from_ref(slot),
            Content::Numbered(slots) => slots,
            Content::Tier(tier) => &tier.1.slots,
            Content::Sequence(tier) => &tier.1.slots,
        }
    }

    /// Whether the sets belong to an admin tier, which other tiers follow.
    pub(crate) fn is_admin(&self) -> bool {
        self.compiler().is_some_and(|compiler| compiler.end == Action::Pass)
    }

    /// The compiler of an ordered tier.
    fn compiler(&self) -> Option<&TierCompiler> {
        match &self.content {
            Content::Union(_) | Content::Numbered(_) => None,
            Content::Tier(tier) => Some(&tier.0),
            Content::Sequence(tier) => Some(&tier.0),
        }
    }

    /// The compiler and the map of held addresses of a tier whose rules are in sequence.
    pub(crate) fn held(&self) -> Option<(&TierCompiler, &Name)> {
        match &self.content {
            Content::Sequence(tier) => Some((&tier.0, &tier.1.held)),
            Content::Union(_) | Content::Numbered(_) | Content::Tier(_) => None,
        }
    }

    /// Whether a packet could find an address with the decision neither from before nor from after
    /// it gets these memberships: it joins sets of rules in sequence that have different actions.
    pub(crate) fn must_hold(&self, address: IpAddr, sets: &Memberships) -> bool {
        let Some((compiler, _)) = self.held() else { return false };
        let before = self.members.get(&address);
        let is_new = |membership: &&Membership| {
            before.is_none_or(|kind| kind.sets.binary_search(membership).is_err())
        };
        let added = sets.iter().filter(is_new).flat_map(|(set, _)| self.rules_of(*set));
        let actions = added.filter_map(|number| compiler.rules.rules.get(number));
        actions.map(|(_, action)| *action).collect::<BTreeSet<Action>>().len() > 1
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
                let now = || self.members.get(&member.address).map(|kind| kind.memberships());
                let sets = touched.entry(member.address);
                let sets = sets.or_insert_with(|| now().unwrap_or_default());
                change(sets, (number, member.port));
            }
        };
        let leave: fn(&mut Memberships, Membership) -> bool = |sets, one| sets.remove(&one);
        let join: fn(&mut Memberships, Membership) -> bool = BTreeSet::insert;
        match change {
            // A removed set keeps its other members while old rules name it.
            SetDelta::Change { added, removed } | SetDelta::Gone { added, removed } => {
                removed.iter().for_each(|member| change_one(member, leave));
                added.iter().for_each(|member| change_one(member, join));
            }
            SetDelta::Put(_) => {
                for (address, kind) in &self.members {
                    for (_, port) in kind.sets.iter().filter(|(set, _)| *set == number) {
                        change_one(&Member { address: *address, port: *port }, leave);
                    }
                }
                let now = program.sets.get(id).into_iter().flatten();
                now.for_each(|member| change_one(member, join));
            }
        }
    }

    /// Sets the memberships of an address.
    pub(crate) fn update_address(&mut self, address: IpAddr, sets: &Memberships) -> Move {
        let old = self.take_places(address);
        let new = match sets.is_empty() {
            true => Arc::default(),
            false => self.insert(address, &self.kind(address, sets)),
        };
        Move { address, old, new }
    }

    /// Makes an address have its decision from before and, where that passes, the one that it will
    /// have. `None` if it has this decision already.
    pub(crate) fn bridge_address(&mut self, address: IpAddr, sets: &Memberships) -> Option<Move> {
        let [before, after] = self.around(address, sets)?;
        let both = before.or(&after);
        if both == before {
            return None;
        }
        let Content::Tier(tier) = &self.content else { return None };
        let (compiler, layout) = &**tier;
        let old = self.members.get(&address).map(|kind| kind.memberships());
        let kind = self.kind(address, &old.into_iter().flatten().chain(sets.clone()).collect());
        let by_blocks = compiler.decide(self.rules_of_piece(&kind));
        let places = layout.places(&both, &by_blocks, self.rules_of_sets(&kind));
        let new: Arc<[Place]> = places.into();
        let old = self.take_places(address);
        self.bridged.insert(address, new.clone());
        Some(Move { address, old, new })
    }

    /// The decisions about an address before and after it gets these memberships. `None` if the
    /// sets belong to no ordered tier.
    pub(crate) fn around(&self, address: IpAddr, sets: &Memberships) -> Option<[PeerDecision; 2]> {
        let compiler = self.compiler()?;
        let before = self.members.get(&address).map(|kind| kind.memberships());
        let kinds =
            [before.unwrap_or_default(), sets.clone()].map(|sets| self.kind(address, &sets));
        let ports: BTreeSet<(Protocol, u16)> = kinds.iter().flat_map(PeerKind::ports).collect();
        // The kinds of addresses of rules in sequence say nothing about blocks.
        let blocks = self.held().map(|_| compiler.rules_of_blocks(address)).unwrap_or_default();
        Some([&kinds[0], &kinds[1]].map(|kind| self.decide(compiler, kind, &blocks, &ports)))
    }

    /// Adds an address. Returns its places.
    fn insert(&mut self, address: IpAddr, kind: &PeerKind) -> Arc<[Place]> {
        let kind = match self.kinds.get_key_value(kind) {
            Some((kind, _)) => kind.clone(),
            None => {
                let places = self.places(kind).into();
                let kind = Arc::new(kind.clone());
                self.kinds.insert(kind.clone(), CountedPlaces { places, members: 0 });
                kind
            }
        };
        let places = self.kinds.get_mut(&kind).map(|known| {
            known.members += 1;
            known.places.clone()
        });
        self.members.insert(address, kind);
        places.unwrap_or_default()
    }

    /// Removes an address. Returns its places.
    fn take_places(&mut self, address: IpAddr) -> Arc<[Place]> {
        let bridged = self.bridged.remove(&address);
        let places = self.members.remove(&address).and_then(|kind| {
            let known = self.kinds.get_mut(&kind)?;
            known.members = known.members.saturating_sub(1);
            let places = known.places.clone();
            if known.members == 0 {
                self.kinds.remove(&kind);
            }
            Some(places)
        });
        bridged.or(places).unwrap_or_default()
    }

    fn places(&self, kind: &PeerKind) -> Vec<Place> {
        let (compiler, layout) = match &self.content {
            Content::Union(_) => {
                let ports: BTreeSet<_> = kind.sets.iter().map(|(_, port)| (0, *port)).collect();
                return ports.into_iter().collect();
            }
            Content::Numbered(_) => {
                let indexes: BTreeSet<usize> = self.rules_of_sets(kind).collect();
                return indexes.into_iter().map(|index| (index, None)).collect();
            }
            Content::Sequence(tier) => {
                let slots = |(set, port): &Membership| {
                    let slots = self.sets.get(*set).and_then(|(set, _)| tier.1.slots_of.get(set));
                    slots.into_iter().flatten().map(|slot| (*slot, *port)).collect::<Vec<_>>()
                };
                let places: BTreeSet<Place> = kind.sets.iter().flat_map(slots).collect();
                return places.into_iter().collect();
            }
            Content::Tier(tier) => &**tier,
        };
        let decision = self.decide(compiler, kind, &[], &kind.ports().collect());
        let by_blocks = compiler.decide(self.rules_of_piece(kind));
        layout.places(&decision, &by_blocks, self.rules_of_sets(kind))
    }

    fn decide(
        &self,
        compiler: &TierCompiler,
        kind: &PeerKind,
        blocks: &[usize],
        ports: &BTreeSet<(Protocol, u16)>,
    ) -> PeerDecision {
        let blocks = self.rules_of_piece(kind).chain(blocks.iter().copied());
        let rules: Vec<usize> = blocks.chain(self.rules_of_sets(kind)).collect();
        let named = ports.iter().map(|port| {
            let here = kind.sets.iter().filter(|(_, own)| *own == Some(*port));
            let here = here.flat_map(|(set, _)| self.rules_of(*set));
            let action = compiler.decide_port(rules.iter().copied().chain(here), *port);
            (*port, action)
        });
        let named = named.collect();
        PeerDecision { plain: compiler.decide(rules), named }
    }

    /// The rules about the blocks that contain addresses of a kind.
    fn rules_of_piece(&self, kind: &PeerKind) -> impl Iterator<Item = usize> {
        let piece = kind.piece.and_then(|at| self.pieces.get(at));
        piece.into_iter().flat_map(|(_, rules)| rules).copied()
    }

    /// The rules about the sets that contain addresses of a kind, except sets of named ports.
    fn rules_of_sets(&self, kind: &PeerKind) -> impl Iterator<Item = usize> {
        let plain = kind.sets.iter().filter(|(_, port)| port.is_none());
        plain.flat_map(|(set, _)| self.rules_of(*set))
    }

    fn rules_of(&self, set: usize) -> impl Iterator<Item = usize> {
        self.sets.get(set).into_iter().flat_map(|(_, rules)| rules).copied()
    }

    fn has(&self, member: &Member) -> bool {
        IpFamily::from(member.address) == self.family
    }

    fn kind(&self, address: IpAddr, sets: &Memberships) -> PeerKind {
        PeerKind { piece: self.piece(address), sets: sets.iter().copied().collect() }
    }

    /// The number of the piece that contains an address.
    fn piece(&self, address: IpAddr) -> Option<usize> {
        let ends = |key: &ElementKey| matches!(key, ElementKey::Block(_, last) if *last < address);
        let at = self.pieces.partition_point(|(key, _)| ends(key));
        let (piece, _) = self.pieces.get(at)?;
        matches!(piece, ElementKey::Block(first, _) if *first <= address).then_some(at)
    }
}

impl PeerKind {
    fn memberships(&self) -> Memberships {
        self.sets.iter().copied().collect()
    }

    /// The named ports of addresses of this kind.
    fn ports(&self) -> impl Iterator<Item = (Protocol, u16)> {
        self.sets.iter().filter_map(|(_, port)| *port)
    }
}
