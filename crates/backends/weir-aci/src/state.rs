mod pods;
mod policies;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use weir_model::{Change, Key, Name, Object as Model, PodId, PolicyId, World};

use crate::{
    Settings,
    object::{Object, ObjectId},
    roster::Roster,
    said::Said,
    term::{Family, Found, Mark, Term},
};

/// The objects that changed, and what they are now; `None` means gone.
pub type Changed = BTreeMap<ObjectId, Option<Object>>;

/// Keeps the objects equal to what a cluster is.
///
/// *Invariant*: the objects depend on the world, never on the road to it.
///
/// *Invariant*: a change costs what it touches: a pod its namespace, and the policies for which it is the first or the last of its sort
/// there.
#[derive(Debug)]
pub struct Hpp {
    settings: Settings,
    pub(crate) world: World,
    /// Who claims an address: the last one has it.
    claims: HashMap<IpAddr, BTreeSet<(u64, PodId)>>,
    rosters: BTreeMap<Name, Roster>,
    /// How many addresses of pods there are, by family.
    counts: BTreeMap<Family, usize>,
    families: Vec<Family>,
    meanings: BTreeMap<PolicyId, Meaning>,
    /// What is said under a hash. More than one thing cannot share its name.
    hashes: BTreeMap<String, BTreeMap<String, Group>>,
    terms: BTreeMap<Term, Wanted>,
    /// The marks in use, and by how many.
    marks: BTreeMap<Mark, usize>,
    /// The pods that have their node's network, by node.
    guests: BTreeMap<Name, BTreeSet<PodId>>,
    /// The policies that depend on the ports of their own pods, by namespace.
    of_ports: BTreeMap<Name, BTreeSet<Meaning>>,
    /// The policies that depend on the ports of pods at some addresses.
    of_blocks: BTreeSet<Meaning>,
    /// How many addresses of a namespace do not fit into its container.
    pub(crate) crowded: BTreeMap<Name, usize>,
    objects: BTreeMap<ObjectId, Object>,
}

/// What tells whether two policies say the same: the hash of the published text, and the text that is not ambiguous.
type Meaning = (String, String);

/// The policies that say one thing.
#[derive(Debug)]
struct Group {
    said: Said,
    published: String,
    policies: BTreeSet<PolicyId>,
    /// The objects they have.
    made: BTreeSet<ObjectId>,
}

/// What is known about a term.
#[derive(Debug, Default)]
struct Wanted {
    by: BTreeSet<Meaning>,
    found: BTreeMap<Name, BTreeSet<Found>>,
}

/// What has to be looked at again.
#[derive(Debug, Default)]
struct Dirty {
    namespaces: BTreeSet<Name>,
    containers: BTreeSet<Name>,
    groups: BTreeSet<Meaning>,
    nodes: BTreeSet<Name>,
    statics: bool,
}

impl Hpp {
    /// A cluster without anything.
    pub fn new(settings: Settings) -> Self {
        let mut hpp = Hpp {
            settings,
            world: World::default(),
            claims: HashMap::new(),
            rosters: BTreeMap::new(),
            counts: BTreeMap::new(),
            families: vec![Family::V4],
            meanings: BTreeMap::new(),
            hashes: BTreeMap::new(),
            terms: BTreeMap::new(),
            marks: BTreeMap::new(),
            guests: BTreeMap::new(),
            of_ports: BTreeMap::new(),
            of_blocks: BTreeSet::new(),
            crowded: BTreeMap::new(),
            objects: BTreeMap::new(),
        };
        hpp.statics(&mut Changed::new());
        hpp
    }

    /// All objects that there must be.
    pub fn objects(&self) -> &BTreeMap<ObjectId, Object> {
        &self.objects
    }

    /// Whether a namespace exists.
    pub fn has_namespace(&self, name: &str) -> bool {
        self.world.namespaces.contains_key(name)
    }

    pub(crate) fn into_objects(self) -> BTreeMap<ObjectId, Object> {
        self.objects
    }

    /// Takes in what happened, and tells which objects it changes.
    pub fn apply(&mut self, changes: &[Change]) -> Changed {
        let (mut dirty, mut changed) = (Dirty::default(), Changed::new());
        for change in changes {
            self.take_in(change, &mut dirty);
        }
        for namespace in std::mem::take(&mut dirty.namespaces) {
            self.look_at(namespace, &mut dirty);
        }
        let families = self.present();
        if families != self.families {
            self.families = families;
            dirty.statics = true;
            dirty.groups = self.all_meanings().collect();
        }
        for namespace in &dirty.containers {
            self.container(namespace, &mut changed);
        }
        self.pols(&dirty.groups, &mut changed);
        for node in &dirty.nodes {
            self.node(node, &mut changed);
        }
        if dirty.statics {
            self.statics(&mut changed);
        }
        changed
    }

    fn take_in(&mut self, change: &Change, dirty: &mut Dirty) {
        match change {
            Change::Put(Model::Pod(pod)) => {
                self.unclaim(&pod.id, dirty);
                self.world.apply(change.clone());
                self.claim(&pod.id, dirty);
            }
            Change::Remove(Key::Pod(id)) => {
                self.unclaim(id, dirty);
                self.world.apply(change.clone());
            }
            Change::Put(Model::Namespace(namespace)) => {
                dirty.namespaces.insert(namespace.name.clone());
                self.world.apply(change.clone());
            }
            Change::Remove(Key::Namespace(name)) => {
                dirty.namespaces.insert(name.clone());
                self.world.apply(change.clone());
            }
            Change::Put(Model::Node(node)) => {
                dirty.nodes.insert(node.name.clone());
                self.world.apply(change.clone());
            }
            Change::Remove(Key::Node(name)) => {
                dirty.nodes.insert(name.clone());
                self.world.apply(change.clone());
            }
            Change::Put(Model::Policy(policy)) => {
                self.unsay(&policy.id, dirty);
                self.world.apply(change.clone());
                self.say(&policy.id, dirty);
            }
            Change::Remove(Key::Policy(id)) => {
                self.unsay(id, dirty);
                self.world.apply(change.clone());
            }
            Change::Put(Model::Domain(..)) | Change::Remove(Key::Domain(_)) => (),
        }
    }

    /// An object is now so. Only a difference is told.
    fn put(&mut self, id: ObjectId, object: Option<Object>, changed: &mut Changed) {
        if self.objects.get(&id) == object.as_ref() {
            return;
        }
        match &object {
            Some(object) => drop(self.objects.insert(id.clone(), object.clone())),
            None => drop(self.objects.remove(&id)),
        }
        changed.insert(id, object);
    }
}
