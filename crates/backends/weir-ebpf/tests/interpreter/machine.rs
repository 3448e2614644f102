//! A machine that runs the instructions of the programs, without a kernel.

mod frame;

use std::{collections::BTreeMap, net::IpAddr};

use weir_ebpf::{
    Tables, Write,
    instruction::{
        Comparison, Field, Helper, Instruction, Kfunc, Operand, Operator, Register, Width,
    },
    layout::{CUT_CONNECTIONS, MapId, MapType, Report},
    program::LANE_REDIRECT,
};
use weir_model::{Flow, IpFamily};

pub(crate) use frame::Frame;

/// The maps: bytes of keys to bytes of values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maps(BTreeMap<MapId, BTreeMap<Vec<u8>, Vec<u8>>>);

impl Maps {
    pub(crate) fn from_tables(tables: &Tables) -> Maps {
        let mut maps = Maps::default();
        tables.writes().for_each(|write| maps.write(&write));
        maps
    }

    pub(crate) fn write(&mut self, write: &Write) {
        let (map, key, value) = write.encode();
        let map = self.0.entry(map).or_default();
        match value {
            Some(value) => _ = map.insert(key, value),
            None => _ = map.remove(&key),
        }
    }

    /// The number of connections that changes cut.
    pub(crate) fn cut(&self) -> u64 {
        let value = self.lookup(MapId::Denied, &CUT_CONNECTIONS.to_ne_bytes());
        u64::from_ne_bytes(value.unwrap().1.try_into().unwrap())
    }

    fn lookup(&self, id: MapId, key: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let declaration = id.declaration(1);
        let map = self.0.get(&id);
        let zero = || vec![0; declaration.value_size as usize];
        match declaration.map_type {
            MapType::LpmTrie => {
                let matches = |entry: &&Vec<u8>| {
                    let bits = u32::from_ne_bytes(entry[..4].try_into().unwrap()) as usize;
                    let same = |bit: usize| {
                        let at = |key: &[u8]| key[4 + bit / 8] >> (7 - bit % 8) & 1;
                        at(entry) == at(key)
                    };
                    (0..bits).all(same)
                };
                let length = |entry: &&Vec<u8>| u32::from_ne_bytes(entry[..4].try_into().unwrap());
                let found = map?.keys().filter(matches).max_by_key(length)?;
                Some((found.clone(), map?[found].clone()))
            }
            MapType::Array | MapType::PercpuArray => {
                let number = u32::from_ne_bytes(key.try_into().ok()?);
                let value = map.and_then(|map| map.get(key)).cloned().unwrap_or_else(zero);
                (number < declaration.max_entries).then(|| (key.to_vec(), value))
            }
            MapType::Hash | MapType::LruHash => Some((key.to_vec(), map?.get(key)?.clone())),
            MapType::RingBuffer => panic!("a ring buffer has no keys"),
        }
    }
}

/// The size of a frame of the stack.
const FRAME: usize = 512;

/// A packet at a hook.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) hook: u8,
    pub(crate) bytes: Vec<u8>,
    /// The state of its connection, if conntrack has one.
    pub(crate) status: Option<u64>,
    /// Whether it is a reply of a connection of which conntrack saw both directions.
    pub(crate) is_tracked_reply: bool,
    /// The client, the server, its port and the protocol of the connection because of which a helper
    /// expected this one.
    pub(crate) master: Option<Flow>,
    /// The number of bytes at its end that are not in its linear part.
    pub(crate) paged: u32,
}

/// All maps, in the order of their numbers.
fn maps() -> impl Iterator<Item = MapId> {
    MapId::ALL.into_iter().chain(MapId::LANE)
}

/// One run of a program. Addresses are the number of a region and an offset.
pub(crate) struct Run<'a> {
    program: &'a [Instruction<MapId>],
    maps: &'a mut Maps,
    regions: Vec<Vec<u8>>,
    /// The map and the key of regions that hold a value.
    values: BTreeMap<usize, (MapId, Vec<u8>)>,
    registers: [u64; 11],
    packet: usize,
    time: u64,
    /// The writes that another program makes when the packet has made this many lookups.
    later: Option<(usize, &'a [Write])>,
    /// The region of the context of a frame.
    frame: Option<usize>,
    /// The links that exist, and the one that the packet was sent into.
    links: Vec<u32>,
    pub(crate) redirected: Option<u32>,
    pub(crate) lookups: usize,
    pub(crate) reports: Vec<Report>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(program: &'a [Instruction<MapId>], maps: &'a mut Maps, time: u64) -> Self {
        Run {
            program,
            maps,
            regions: vec![Vec::new()],
            values: BTreeMap::new(),
            registers: [0; 11],
            packet: 0,
            time,
            later: None,
            frame: None,
            links: Vec::new(),
            redirected: None,
            lookups: 0,
            reports: Vec::new(),
        }
    }

    pub(crate) fn with_later(self, lookups: usize, writes: &'a [Write]) -> Self {
        Run { later: Some((lookups, writes)), ..self }
    }

    fn region(&mut self, bytes: Vec<u8>) -> u64 {
        self.regions.push(bytes);
        (self.regions.len() as u64 - 1) << 32
    }

    fn place(address: u64) -> (usize, usize) {
        ((address >> 32) as usize, (address & 0xffff_ffff) as usize)
    }

    fn bytes(&self, address: u64, length: usize) -> &[u8] {
        let (region, offset) = Self::place(address);
        self.regions[region].get(offset..offset + length).expect("the access is in bounds")
    }

    fn load(&self, address: u64, width: Width) -> u64 {
        let mut number = [0; 8];
        number[..width.bytes()].copy_from_slice(self.bytes(address, width.bytes()));
        u64::from_le_bytes(number)
    }

    fn store(&mut self, address: u64, width: Width, value: u64) {
        let (region, offset) = Self::place(address);
        let bytes = &value.to_le_bytes()[..width.bytes()];
        self.regions[region]
            .get_mut(offset..offset + width.bytes())
            .expect("the access is in bounds")
            .copy_from_slice(bytes);
        if let Some((map, key)) = self.values.get(&region) {
            let value = self.regions[region].clone();
            self.maps.0.entry(*map).or_default().insert(key.clone(), value);
        }
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(register) => self.registers[register as usize],
            Operand::Constant(constant) => i64::from(constant) as u64,
        }
    }

    /// Runs the program on a packet and returns its verdict.
    pub(crate) fn verdict(&mut self, packet: &Packet) -> u64 {
        let connection = match packet.status {
            None => 0,
            Some(status) => {
                let master = packet.master.map_or(0, |master| self.master(&master));
                self.region([status.to_le_bytes(), master.to_le_bytes()].concat())
            }
        };
        // The lowest bits are the state of the packet: a new connection, or a reply.
        let state = if packet.is_tracked_reply { 3 } else { 2 };
        let marked = if connection == 0 { 0 } else { connection | state };
        let bytes = self.region(packet.bytes.clone());
        self.packet = (bytes >> 32) as usize;
        let length = packet.bytes.len() as u32;
        // The state, the kind of its frame (for this host), the link that it arrived at, its address
        // and its length.
        let skb = [&marked.to_le_bytes()[..], &[0; 8], &7_u32.to_le_bytes(), &length.to_le_bytes()];
        let paged = packet.paged.min(length);
        let skb = [&skb.concat()[..], &bytes.to_le_bytes(), &paged.to_le_bytes()].concat();
        let skb = self.region(skb);
        let state = self.region(vec![packet.hook]);
        let context = self.region([state.to_le_bytes(), skb.to_le_bytes()].concat());
        self.registers[1] = context;
        self.run()
    }

    /// A connection of conntrack with the fields that a master has.
    fn master(&mut self, flow: &Flow) -> u64 {
        let address = |address: IpAddr| match address {
            IpAddr::V4(address) => [&address.octets()[..], &[0; 12]].concat(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let (client, server) = (address(flow.from), address(flow.to));
        let port = flow.port.to_be_bytes();
        let bytes = [&client[..], &server, &port, &[flow.protocol.number()]].concat();
        self.region(bytes)
    }

    fn run(&mut self) -> u64 {
        let program = self.program;
        // The instruction at each slot, and the slot of each instruction.
        let (mut instructions, mut slots) = (Vec::new(), Vec::new());
        for (number, instruction) in program.iter().enumerate() {
            slots.push(instructions.len());
            instructions.resize(instructions.len() + instruction.slots(), number);
        }
        let target = |at: usize, offset: i64| {
            let slot = slots[at].checked_add_signed(offset as isize + 1);
            instructions[slot.expect("a jump stays inside the program")]
        };
        let mut frames: Vec<(usize, [u64; 5])> = Vec::new();
        self.registers[10] = self.region(vec![0xaa; FRAME]) + FRAME as u64;
        let mut at = 0;
        for _ in 0..100_000 {
            let mut next = at + 1;
            match program[at] {
                Instruction::Compute(operator, to, operand) => {
                    let (left, right) = (self.registers[to as usize], self.operand(operand));
                    self.registers[to as usize] = match operator {
                        Operator::Move => right,
                        Operator::Add => left.wrapping_add(right),
                        Operator::Subtract => left.wrapping_sub(right),
                        Operator::And => left & right,
                        Operator::Or => left | right,
                        Operator::Xor => left ^ right,
                        Operator::ShiftLeft => left << right,
                        Operator::ShiftRight => left >> right,
                    };
                }
                Instruction::SwapHalf(register) => {
                    let value = self.registers[register as usize] as u16;
                    self.registers[register as usize] = u64::from(value.swap_bytes());
                }
                Instruction::Load(width, to, base, offset) => {
                    let address = self.registers[base as usize].wrapping_add_signed(offset.into());
                    let value = self.load_context(address);
                    let value = value.unwrap_or_else(|| self.load(address, width));
                    self.registers[to as usize] = value;
                }
                Instruction::LoadField(width, to, base, field) => {
                    let offset = match field {
                        Field::Hook | Field::Conntrack | Field::ConntrackStatus => 0,
                        Field::PacketType | Field::ConntrackMaster => 8,
                        Field::Client => 0,
                        Field::Server | Field::InputLink => 16,
                        Field::ServerPort => 32,
                        Field::TupleProtocol => 34,
                        Field::Length => 20,
                        Field::Data => 24,
                        Field::PagedLength => 32,
                        Field::Doubles => panic!("a structure that is only cast to"),
                    };
                    let address = self.registers[base as usize] + offset;
                    self.registers[to as usize] = self.load(address, width);
                }
                Instruction::Store(width, base, offset, from) => {
                    let address = self.registers[base as usize].wrapping_add_signed(offset.into());
                    self.store(address, width, self.registers[from as usize]);
                }
                Instruction::StoreConstant(width, base, offset, constant) => {
                    let address = self.registers[base as usize].wrapping_add_signed(offset.into());
                    self.store(address, width, i64::from(constant) as u64);
                }
                Instruction::Map(to, map) => {
                    let number = maps().position(|one| one == map).unwrap();
                    self.registers[to as usize] = number as u64;
                }
                Instruction::MapValue(to, map) => {
                    let (key, value) = self.maps.lookup(map, &[0; 4]).expect("it has a value");
                    let region = self.region(value);
                    self.values.insert((region >> 32) as usize, (map, key));
                    self.registers[to as usize] = region;
                }
                Instruction::StructId(to, _) => self.registers[to as usize] = 1,
                Instruction::Jump(offset) => next = target(at, offset.into()),
                Instruction::JumpIf(comparison, left, operand, offset) => {
                    let (left, right) = (self.registers[left as usize], self.operand(operand));
                    let holds = match comparison {
                        Comparison::Equal => left == right,
                        Comparison::NotEqual => left != right,
                        Comparison::Greater => left > right,
                        Comparison::GreaterOrEqual => left >= right,
                        Comparison::Less => left < right,
                        Comparison::Shares => left & right != 0,
                    };
                    if holds {
                        next = target(at, offset.into());
                    }
                }
                Instruction::Call(helper) => self.call(helper),
                Instruction::CallKfunc(kfunc) => self.call_kfunc(kfunc),
                Instruction::CallLocal(offset) => {
                    let saved = [6, 7, 8, 9, 10].map(|number| self.registers[number]);
                    frames.push((next, saved));
                    self.registers[10] = self.region(vec![0xaa; FRAME]) + FRAME as u64;
                    next = target(at, offset.into());
                }
                Instruction::Exit => match frames.pop() {
                    None => return self.registers[Register::R0 as usize],
                    Some((back, saved)) => {
                        for (number, value) in (6..).zip(saved) {
                            self.registers[number] = value;
                        }
                        self.forget_arguments();
                        next = back;
                    }
                },
            }
            at = next;
        }
        panic!("the program does not end");
    }

    /// The arguments do not survive a call.
    fn forget_arguments(&mut self) {
        for register in &mut self.registers[1..=5] {
            *register = 0xdead_0000_0000;
        }
    }

    fn call(&mut self, helper: Helper) {
        let [map, key, value] = [1, 2, 3].map(|number| self.registers[number]);
        self.registers[0] = match helper {
            Helper::Ticks => self.time,
            Helper::MapLookup => {
                if let Some((count, writes)) = self.later
                    && count == self.lookups
                {
                    writes.iter().for_each(|write| self.maps.write(write));
                }
                self.lookups += 1;
                let map = maps().nth(map as usize).unwrap();
                let key = self.bytes(key, map.declaration(1).key_size as usize).to_vec();
                match self.maps.lookup(map, &key) {
                    None => 0,
                    Some((key, value)) => {
                        let region = self.region(value);
                        self.values.insert((region >> 32) as usize, (map, key));
                        region
                    }
                }
            }
            Helper::MapUpdate => {
                let map = maps().nth(map as usize).unwrap();
                let declaration = map.declaration(1);
                let key = self.bytes(key, declaration.key_size as usize).to_vec();
                let value = self.bytes(value, declaration.value_size as usize).to_vec();
                self.maps.0.entry(map).or_default().insert(key, value);
                0
            }
            Helper::CheckMtu => {
                let exists = self.links.contains(&(self.registers[2] as u32));
                if exists { 0 } else { -19_i64 as u64 }
            }
            Helper::RedirectPeer => {
                self.redirected = Some(self.registers[1] as u32);
                LANE_REDIRECT as u64
            }
            Helper::RingBufferOutput => {
                let report = Report::from_bytes(self.bytes(key, value as usize));
                self.reports.push(report.expect("the report can be read"));
                0
            }
        };
        self.forget_arguments();
    }

    fn call_kfunc(&mut self, kfunc: Kfunc) {
        self.registers[0] = match kfunc {
            Kfunc::DynptrFromSkb => 0,
            Kfunc::DynptrSlice => {
                let (offset, length) = (self.registers[2] as usize, self.registers[4] as usize);
                let has = self.regions[self.packet].len() >= offset + length;
                if has { (self.packet as u64) << 32 | offset as u64 } else { 0 }
            }
            Kfunc::ReadOnlyCast => self.registers[1],
        };
        self.forget_arguments();
    }
}

impl Maps {
    /// Adds a connection.
    pub(crate) fn add_flow(&mut self, family: IpFamily, key: Vec<u8>, value: Vec<u8>) {
        self.0.entry(MapId::Flows(family)).or_default().insert(key, value);
    }

    /// Takes the connections of other maps over.
    pub(crate) fn take_flows(&mut self, other: &Maps) {
        let flows = other.0.iter().filter(|(map, _)| map.is_shared());
        self.0.extend(flows.map(|(map, content)| (*map, content.clone())));
    }
}
