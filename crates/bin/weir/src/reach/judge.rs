//! What rules decide about all ports at once, asked once for all that they cannot tell apart.
//!
//! ```text
//!  address ─► Seat     what rules can see of it, worked out once
//!  Seat × chain ─► only the sets and blocks that the chain names count ─► Open, remembered
//!  Open × Open  ─► what both sides let pass, remembered
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    rc::Rc,
    sync::Arc,
};

use weir_model::{
    Action, Block, Chain, Name, Peers, PodId, PortRange, Ports, Rule, Section, SetKey,
};

use super::{
    End, Family, State,
    shelf::{Bits, EVERY, Open, Shelf},
    view::{Membership, View},
};

/// An address in one state.
type Seat = u32;

/// Answers for some states. A number means the same ports in all of them.
pub(crate) struct Judge<'a> {
    states: Vec<Court<'a>>,
    view: View<'a>,
    shelf: Shelf,
}

/// Ends that are alike, ready to be asked about.
pub(crate) struct Party<'a> {
    members: Vec<Member<'a>>,
}

struct Member<'a> {
    end: End<'a>,
    node: Option<&'a Name>,
    /// For each state, the address of each family.
    seats: Vec<[Option<Seat>; 2]>,
}

/// One state.
struct Court<'a> {
    state: &'a State,
    seats: Vec<SeatOf<'a>>,
    taken: HashMap<IpAddr, Seat>,
    chains: Vec<ChainOf<'a>>,
    rules: HashMap<(*const weir_model::RuleSet, weir_model::Direction), usize>,
    nodes: HashMap<IpAddr, Vec<&'a Name>>,
}

struct SeatOf<'a> {
    address: IpAddr,
    stretch: u32,
    sets: Vec<Membership>,
    owner: Option<Owner<'a>>,
    /// The nodes whose address it is.
    nodes: Vec<&'a Name>,
}

#[derive(Clone, Copy)]
struct Owner<'a> {
    pod: &'a PodId,
    ingress: usize,
    egress: usize,
    node: Option<&'a Name>,
}

/// A chain, with sets by number and ports by slice.
struct ChainOf<'a> {
    admin: Vec<Line<'a>>,
    isolation: Option<Vec<Line<'a>>>,
    baseline: Vec<Line<'a>>,
    /// The sets it names, sorted.
    sets: Vec<u32>,
    has_blocks: bool,
    known: HashMap<Vec<Membership>, BTreeMap<u32, Open>>,
}

struct Line<'a> {
    peers: PeersOf<'a>,
    ports: Rc<Bits>,
    action: Action,
}

enum PeersOf<'a> {
    Any,
    Set(u32),
    PortSet(u32),
    Block(&'a Block),
}

impl<'a> Judge<'a> {
    /// A judge for some states, who tells the slices apart and no other ports.
    pub(crate) fn new(states: &[&'a State], slices: &[PortRange]) -> Self {
        let view = View::new(states);
        let mut shelf = Shelf::new(slices);
        let states = states.iter().map(|state| Court::new(state, &view, &mut shelf)).collect();
        Judge { states, view, shelf }
    }

    /// Some ends that are alike.
    pub(crate) fn party(&mut self, ends: impl IntoIterator<Item = End<'a>>) -> Party<'a> {
        /// Members to look at: they differ in nothing but themselves and their node.
        const ENOUGH: usize = 50;
        let members = ends.into_iter().take(ENOUGH).map(|end| self.member(end)).collect();
        Party { members }
    }

    fn member(&mut self, end: End<'a>) -> Member<'a> {
        let mut seats = Vec::with_capacity(self.states.len());
        let mut node = None;
        for (at, court) in self.states.iter_mut().enumerate() {
            let state = court.state;
            seats.push(
                Family::BOTH
                    .map(|family| Some(court.seat(&self.view, at, end.address(state, family)?))),
            );
            node = end.node(state);
        }
        Member { end, node, seats }
    }

    /// What is open from one party to another: for each family that they share in all states, in each state. `None` if
    /// there is no connection to ask about.
    pub(crate) fn open(
        &mut self,
        from: &Party<'a>,
        to: &Party<'a>,
    ) -> Option<[Option<Vec<Open>>; 2]> {
        let (from, to) = representatives(from, to)?;
        Some([0, 1].map(|family| {
            let mut all = Vec::with_capacity(self.states.len());
            for (at, court) in self.states.iter_mut().enumerate() {
                let (from, to) = (from.seats[at][family]?, to.seats[at][family]?);
                all.push(court.open(&mut self.shelf, &self.view, from, to));
            }
            Some(all)
        }))
    }

    /// Whether a slice is open.
    pub(crate) fn contains(&self, open: Open, slice: usize) -> bool {
        self.shelf.bits[open as usize].contains(slice)
    }

    /// The slices that are in one and not in the other.
    pub(crate) fn without(&self, one: Open, other: Open) -> Vec<PortRange> {
        let (one, other) = (&self.shelf.bits[one as usize], &self.shelf.bits[other as usize]);
        let differs = |at: &usize| one.contains(*at) && !other.contains(*at);
        (0..self.shelf.slices.len()).filter(differs).map(|at| self.shelf.slices[at]).collect()
    }

    /// The slice that a port is in.
    pub(crate) fn slice(&self, port: PortRange) -> usize {
        self.shelf
            .slices
            .partition_point(|s| (s.protocol, s.last) < (port.protocol, port.first.max(1)))
    }
}

/// The two ends to ask about for connections between two choices of ends: not one pod with itself, and not a pod with
/// its own node if that can be helped. `None` if there is no such pair.
fn representatives<'p, 'a>(
    from: &'p Party<'a>,
    to: &'p Party<'a>,
) -> Option<(&'p Member<'a>, &'p Member<'a>)> {
    let pairs = from.members.iter().flat_map(|f| to.members.iter().map(move |t| (f, t)));
    pairs.into_iter().find(|(from, to)| match (from.end, to.end) {
        (End::Pod(from), End::Pod(to)) => !same(from, to),
        (End::Outside(_), End::Outside(_)) => false,
        _ => from.node.is_none() || from.node != to.node,
    })
}

fn same(one: &PodId, two: &PodId) -> bool {
    one.name == two.name && one.namespace == two.namespace
}

impl<'a> Court<'a> {
    fn new(state: &'a State, view: &View<'a>, shelf: &mut Shelf) -> Self {
        let mut court = Court {
            state,
            seats: Vec::new(),
            taken: HashMap::new(),
            chains: Vec::new(),
            rules: HashMap::new(),
            nodes: HashMap::new(),
        };
        for (id, members) in &state.program.sets {
            let SetKey::Node(node) = &**id else { continue };
            for member in members {
                court.nodes.entry(member.address).or_default().push(node);
            }
        }
        for endpoint in state.program.endpoints.values() {
            for direction in weir_model::Direction::BOTH {
                let chains = &mut court.chains;
                court.rules.entry((Arc::as_ptr(&endpoint.rules), direction)).or_insert_with(|| {
                    chains.push(ChainOf::new(endpoint.rules.chain(direction), view, shelf));
                    chains.len() - 1
                });
            }
        }
        court
    }

    fn seat(&mut self, view: &View<'a>, at: usize, address: IpAddr) -> Seat {
        use weir_model::Direction::{Egress, Ingress};
        if let Some(seat) = self.taken.get(&address) {
            return *seat;
        }
        let owner = self.state.program.owner(address).and_then(|(pod, endpoint)| {
            let rules = Arc::as_ptr(&endpoint.rules);
            let chain = |direction| self.rules.get(&(rules, direction)).copied();
            Some(Owner {
                pod,
                ingress: chain(Ingress)?,
                egress: chain(Egress)?,
                node: endpoint.node.as_ref(),
            })
        });
        let seat = self.seats.len() as Seat;
        self.seats.push(SeatOf {
            address,
            stretch: view.stretch(address),
            sets: view.sets(at, address).to_vec(),
            owner,
            nodes: self.nodes.get(&address).cloned().unwrap_or_default(),
        });
        self.taken.insert(address, seat);
        seat
    }

    fn open(&mut self, shelf: &mut Shelf, view: &View<'_>, from: Seat, to: Seat) -> Open {
        let (from, to) = (&self.seats[from as usize], &self.seats[to as usize]);
        // A pod reaches itself, whichever of its addresses it asks for.
        let itself = from.owner.zip(to.owner).is_some_and(|(one, two)| same(one.pod, two.pod));
        if itself || from.address == to.address {
            return EVERY;
        }
        let judged = |owner: &Owner<'_>, there: &SeatOf<'_>| {
            owner.node.is_none_or(|node| !there.nodes.contains(&node))
        };
        let egress = match from.owner.filter(|owner| judged(owner, to)) {
            None => EVERY,
            Some(owner) => self.chains[owner.egress].open(shelf, view, to),
        };
        let ingress = match to.owner.filter(|owner| judged(owner, from)) {
            None => EVERY,
            Some(owner) => self.chains[owner.ingress].open(shelf, view, from),
        };
        shelf.both(egress, ingress)
    }
}

impl<'a> ChainOf<'a> {
    fn new(chain: &'a Chain, view: &View<'a>, shelf: &mut Shelf) -> Self {
        let mut lines = |sections: &'a [Arc<Section>]| -> Vec<Line<'a>> {
            let rules = sections.iter().flat_map(|section| &section.rules);
            rules.map(|rule| Line::new(rule, view, shelf)).collect()
        };
        let (admin, baseline) = (lines(&chain.admin), lines(&chain.baseline));
        let isolation = chain.isolation.as_deref().map(&mut lines);
        let all = || admin.iter().chain(isolation.iter().flatten()).chain(&baseline);
        let mut sets: Vec<u32> = all()
            .filter_map(|line| match line.peers {
                PeersOf::Set(set) | PeersOf::PortSet(set) => Some(set),
                PeersOf::Any | PeersOf::Block(_) => None,
            })
            .collect();
        sets.sort_unstable();
        sets.dedup();
        let has_blocks = all().any(|line| matches!(line.peers, PeersOf::Block(_)));
        ChainOf { admin, isolation, baseline, sets, has_blocks, known: HashMap::new() }
    }

    /// The ports that it opens for whoever sits there.
    fn open(&mut self, shelf: &mut Shelf, view: &View<'_>, there: &SeatOf<'_>) -> Open {
        let sets = &self.sets;
        let seen = |set: &&Membership| sets.binary_search(&set.0).is_ok();
        let sets: Vec<Membership> = match self.sets.is_empty() {
            true => Vec::new(),
            false => there.sets.iter().filter(seen).copied().collect(),
        };
        let stretch = if self.has_blocks { there.stretch } else { 0 };
        if let Some(open) = self.known.get(&sets).and_then(|known| known.get(&stretch)) {
            return *open;
        }
        let open = shelf.number(self.decide(shelf, &sets, view.start(there.stretch)));
        self.known.entry(sets).or_default().insert(stretch, open);
        open
    }

    fn decide(&self, shelf: &Shelf, sets: &[Membership], address: IpAddr) -> Bits {
        let mut left = shelf.every();
        let mut open = Bits::new(shelf.slices.len());
        let mut passed = Bits::new(shelf.slices.len());
        for (line, ports) in matching(&self.admin, shelf, sets, address) {
            let now = left.and(&ports);
            left.remove(&now);
            match line.action {
                Action::Allow => open.add(&now),
                Action::Deny => (),
                Action::Pass => passed.add(&now),
            }
        }
        left.add(&passed);
        match &self.isolation {
            Some(lines) => {
                for (_, ports) in matching(lines, shelf, sets, address) {
                    open.add(&left.and(&ports));
                }
            }
            None => {
                for (line, ports) in matching(&self.baseline, shelf, sets, address) {
                    let now = left.and(&ports);
                    left.remove(&now);
                    if line.action != Action::Deny {
                        open.add(&now);
                    }
                }
                open.add(&left);
            }
        }
        open
    }
}

impl<'a> Line<'a> {
    fn new(rule: &'a Rule, view: &View<'a>, shelf: &mut Shelf) -> Self {
        let peers = match &rule.peers {
            Peers::Any => PeersOf::Any,
            Peers::Set(set) => PeersOf::Set(view.number(set)),
            Peers::PortSet(set) => PeersOf::PortSet(view.number(set)),
            Peers::Block(block) => PeersOf::Block(block),
        };
        Line { peers, ports: shelf.ports(&rule.ports), action: rule.action }
    }
}

/// The lines that are about someone, with the ports that they are about for them.
fn matching<'c, 'a>(
    lines: &'c [Line<'a>],
    shelf: &'c Shelf,
    sets: &'c [Membership],
    address: IpAddr,
) -> impl Iterator<Item = (&'c Line<'a>, Rc<Bits>)> {
    lines.iter().filter_map(move |line| {
        let whole = match line.peers {
            PeersOf::Any => true,
            PeersOf::Block(block) => block.contains(address),
            PeersOf::Set(set) => sets.iter().any(|(number, _)| *number == set),
            PeersOf::PortSet(set) => {
                let mine = sets.iter().filter(|(number, _)| *number == set);
                let ports = mine.filter_map(|(_, port)| *port);
                let ports =
                    Ports::of(ports.map(|(protocol, port)| PortRange::one(protocol, port)))?;
                return Some((line, Rc::new(shelf.cut(&ports))));
            }
        };
        whole.then(|| (line, line.ports.clone()))
    })
}
