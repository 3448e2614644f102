use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    time::{Duration, Instant},
};

use weir_datapath::{ApplyError, ApplyErrorKind, Datapath, Diagnostics, Drift};
use weir_model::PodId;

use crate::{
    Acl, Action, Host, HostError, Installed, Inventory, Meaning, PREFIX, Plan, Planner, StateFile,
    Step, Tracker, Way, document::Endpoint, tracker::is_as_desired,
};

/// How often to look whether somebody changed our rules, and whether there are orphans.
const GLANCE: Duration = Duration::from_secs(30);
/// How often to look while somebody is waited for.
const SOON: Duration = Duration::from_secs(2);
/// How long a glance may take before it is said that it does.
const SILENCE: Duration = Duration::from_secs(30);
/// How long one plan is worked on without a pause.
const BUDGET: Duration = Duration::from_secs(4);

/// What a backend is told.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The name of a network whose endpoints have rules, whatever its kind.
    pub network: Option<String>,
    /// Who writes the state file.
    pub version: &'static str,
}

/// The endpoints of one machine.
#[derive(Debug)]
pub struct Hcn<H> {
    host: H,
    settings: Settings,
    tracker: Tracker,
    file: Option<StateFile>,
    /// What was wrong with the state file.
    warning: Option<String>,
    /// Pods that have no endpoint yet, in words.
    absent: BTreeMap<PodId, String>,
    /// Endpoints that our rules could not be removed from, in words.
    uncleared: Vec<String>,
    /// Whether some of the last plan is still to be done, or somebody has come who was waited for.
    resumes: bool,
    /// Since when a glance is waited for, and whether something was written since then.
    glancing: Option<Instant>,
    is_stale: bool,
    next: Instant,
}

impl<H: Host> Hcn<H> {
    /// A backend that knows nothing yet. Without a file, or with one that cannot be written, nothing is remembered.
    pub fn new(host: H, settings: Settings, mut file: Option<StateFile>) -> Self {
        let (tracker, warning) = file.as_mut().map(StateFile::load).unwrap_or_default();
        Hcn {
            host,
            settings,
            tracker,
            file,
            warning,
            absent: BTreeMap::new(),
            uncleared: Vec::new(),
            resumes: false,
            glancing: None,
            is_stale: false,
            next: Instant::now(),
        }
    }

    fn network(&self) -> Option<&str> {
        self.settings.network.as_deref()
    }

    /// Whether anything is not as it should be, apart from pods that have no endpoint; and who has come.
    fn compare(&mut self, planner: &Planner, inventory: &Inventory) -> bool {
        self.absent.retain(|pod, _| planner.has_rules(pod));
        let plan = planner.differences(inventory, &self.tracker, self.network());
        let mut drifted = false;
        // The machine has other addresses than before, which every pod must be reached from.
        self.resumes |= inventory.addresses != *planner.host();
        for step in plan.steps {
            let Step::Put { pod, addresses, .. } = step else {
                drifted = true;
                continue;
            };
            let is_there = !inventory.of_pod(&addresses, self.network()).is_empty();
            match (is_there, self.absent.contains_key(&pod)) {
                (true, true) => self.resumes = true,
                (true, false) => drifted = true,
                (false, _) => {
                    drop(self.absent.insert(pod.clone(), words(&pod, &addresses, inventory)))
                }
            }
        }
        self.remember(planner, inventory);
        drifted
    }

    /// Writes down what is so, whoever made it so, and forgets what is gone.
    fn remember(&mut self, planner: &Planner, inventory: &Inventory) {
        let there: BTreeSet<&str> = inventory.endpoints.iter().map(|one| &*one.id).collect();
        self.tracker.retain(|id| there.contains(id));
        for (pod, addresses, acls) in planner.pods() {
            for endpoint in inventory.of_pod(addresses, self.settings.network.as_deref()) {
                let (desired, ours) = (endpoint.desired(acls), endpoint.ours());
                if desired == ours && !self.tracker.knows(&endpoint.id) {
                    self.tracker.put(&endpoint.id, &pod.to_string(), &desired, &ours);
                }
            }
        }
        self.save();
    }

    fn save(&mut self) {
        let Some(file) = &mut self.file else { return };
        match file.save(self.tracker.text(self.settings.version)) {
            Ok(()) => (),
            Err(error) => self.warning = Some(format!("the state file cannot be written: {error}")),
        }
    }

    /// Looks at the endpoints when it is time to. Whether another program changed our rules.
    fn is_changed(&mut self, planner: &Planner) -> Result<bool, ApplyError> {
        let now = Instant::now();
        if self.glancing.is_none() && now < self.next && !self.host.hinted() {
            return Ok(false);
        }
        let what = "cannot look at the endpoints of HNS";
        let Some(glance) = self.host.glance() else {
            let since = *self.glancing.get_or_insert(now);
            if now - since < SILENCE {
                return Ok(false);
            }
            self.glancing = Some(now);
            let record = "HNS does not answer".to_owned();
            let error = HostError { call: "list of endpoints", code: HostError::TIMEOUT, record };
            return Err(away(what, error));
        };
        self.glancing = None;
        let is_stale = mem::take(&mut self.is_stale);
        self.next = now + if self.absent.is_empty() { GLANCE } else { SOON };
        let inventory = glance.map_err(|error| away(what, error))?;
        if is_stale {
            self.next = now;
            return Ok(false);
        }
        Ok(self.compare(planner, &inventory))
    }

    fn carry_out(
        &mut self,
        plan: &Plan,
        inventory: &Inventory,
    ) -> Result<BTreeMap<PodId, String>, HostError> {
        let end = Instant::now() + BUDGET;
        let mut refused = BTreeMap::new();
        self.uncleared.clear();
        for step in &plan.steps {
            if Instant::now() > end {
                self.resumes = true;
                break;
            }
            match step {
                Step::Put { pod, addresses, acls } => {
                    if let Err(error) = self.put(inventory, pod, addresses, acls) {
                        match error.meaning() {
                            Meaning::Away => return Err(error),
                            _ => drop(refused.insert(pod.clone(), error.to_string())),
                        }
                    }
                }
                Step::Clear { endpoint } => self.clear(inventory, endpoint)?,
            }
        }
        Ok(refused)
    }

    fn put(
        &mut self,
        inventory: &Inventory,
        pod: &PodId,
        addresses: &[IpAddr],
        acls: &[Acl],
    ) -> Result<(), HostError> {
        let endpoints = inventory.of_pod(addresses, self.network());
        self.absent.remove(pod);
        let mut is_gone = endpoints.is_empty();
        let mut failure = None;
        for endpoint in endpoints {
            match self.write(endpoint, pod, acls) {
                Ok(()) => (),
                Err(error) if error.meaning() == Meaning::Gone => is_gone = true,
                Err(error) => failure = Some(error),
            }
        }
        if is_gone && !acls.is_empty() {
            self.absent.insert(pod.clone(), words(pod, addresses, inventory));
        }
        failure.map_or(Ok(()), Err)
    }

    fn write(&mut self, endpoint: &Endpoint, pod: &PodId, acls: &[Acl]) -> Result<(), HostError> {
        if is_as_desired(endpoint, acls, &self.tracker) {
            return Ok(());
        }
        let written = self.change(endpoint, &pod.to_string(), &endpoint.desired(acls));
        if let Err(error) = &written
            && error.meaning() == Meaning::Refused
            && !endpoint.has_ours()
            && !acls.is_empty()
        {
            // Better nothing than everything.
            _ = self.change(endpoint, &pod.to_string(), &endpoint.desired(&locked(acls)));
        }
        written
    }

    /// One read-modify-write: what was read is in the endpoint.
    fn change(&mut self, endpoint: &Endpoint, pod: &str, desired: &[Acl]) -> Result<(), HostError> {
        let request = endpoint.update(desired);
        let request = request.map_err(|error| HostError::senseless("update", &error))?;
        self.host.modify(&endpoint.id, &request)?;
        let ours = self.host.endpoint(&endpoint.id)?.ours();
        if outlines(&ours) != outlines(desired) {
            let record =
                "HNS has other rules than it was given; somebody else may have written, too";
            return Err(HostError { call: "HcnModifyEndpoint", code: 0, record: record.into() });
        }
        match desired.is_empty() {
            true => self.tracker.remove(&endpoint.id),
            false => self.tracker.put(&endpoint.id, pod, desired, &ours),
        }
        Ok(())
    }

    fn clear(&mut self, inventory: &Inventory, id: &str) -> Result<(), HostError> {
        let Some(endpoint) = inventory.endpoints.iter().find(|endpoint| endpoint.id == id) else {
            return Ok(());
        };
        match self.change(endpoint, "", &[]) {
            Err(error) if error.meaning() == Meaning::Away => Err(error),
            Err(error) if error.meaning() == Meaning::Refused => {
                self.uncleared.push(format!("rules of weir's cannot be removed from endpoint {id}, which no pod with rules has: {error}"));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl<H: Host> Datapath for Hcn<H> {
    type Planner = Planner;

    fn planner(&self) -> Planner {
        Planner::default()
    }

    fn installed(&mut self) -> Result<Installed, ApplyError> {
        let inventory = self.host.inventory();
        let inventory =
            inventory.map_err(|error| away("cannot list the endpoints of HNS", error))?;
        let network = self.settings.network.clone();
        Ok(Installed { inventory, tracker: self.tracker.clone(), network })
    }

    fn apply(&mut self, plan: &Plan) -> Result<(), ApplyError> {
        self.is_stale = self.glancing.is_some();
        let what = "cannot write the ACLs of endpoints";
        let inventory = self.host.inventory().map_err(|error| away(what, error))?;
        let rejected = self.carry_out(plan, &inventory);
        self.save();
        let rejected = rejected.map_err(|error| away(what, error))?;
        if rejected.is_empty() {
            return Ok(());
        }
        let source = format!("rejected for {} pods", rejected.len()).into();
        let what = "HNS does not accept the ACLs".to_owned();
        Err(ApplyError { kind: ApplyErrorKind::Partial(rejected), what, source })
    }

    fn drift(&mut self, planner: &Planner) -> Result<Drift, ApplyError> {
        if self.is_changed(planner)? {
            Ok(Drift::Changed)
        } else if mem::take(&mut self.resumes) {
            Ok(Drift::Resumable)
        } else {
            Ok(Drift::None)
        }
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        let what = "cannot remove the ACLs of endpoints";
        let inventory = self.host.inventory().map_err(|error| away(what, error))?;
        for endpoint in inventory.endpoints.iter().filter(|endpoint| endpoint.has_ours()) {
            match self.change(endpoint, "", &[]) {
                Err(error) if error.meaning() != Meaning::Gone => return Err(away(what, error)),
                _ => (),
            }
        }
        self.tracker = Tracker::default();
        let removed = self.file.as_mut().map_or(Ok(()), StateFile::remove);
        removed.map_err(|error| ApplyError {
            kind: ApplyErrorKind::Unavailable,
            what: "cannot remove the state file".into(),
            source: error.into(),
        })
    }

    fn diagnostics(&self) -> Option<&dyn Diagnostics<Planner>> {
        Some(self)
    }
}

impl<H: Host> Diagnostics<Planner> for Hcn<H> {
    fn warnings(&self, planner: &Planner) -> Vec<String> {
        let absent = self.absent.iter().filter(|(pod, _)| planner.has_rules(pod));
        let absent = absent.map(|(_, warning)| warning);
        self.warning.iter().chain(absent).chain(&self.uncleared).cloned().collect()
    }

    fn rule_count(&self, planner: &Planner) -> usize {
        planner.rules()
    }
}

/// What of a list of rules must come back as it was given, however HNS writes the rest.
fn outlines(acls: &[Acl]) -> Vec<(&str, Way, Action, Option<u16>)> {
    let outline = |acl: &'_ Acl| (acl.direction, acl.action, acl.priority);
    let mut all: Vec<_> = acls
        .iter()
        .map(|acl| {
            let (way, action, priority) = outline(acl);
            (&*acl.id, way, action, priority)
        })
        .collect();
    all.sort_unstable();
    all
}

/// The rules of a pod to which nothing passes but what is never judged.
fn locked(acls: &[Acl]) -> Vec<Acl> {
    let own = acls.iter().filter(|acl| !acl.id.contains('#') && acl.priority == Some(300));
    let tail = |way: Way| {
        let id = format!("{PREFIX}tail-{way}").to_ascii_lowercase();
        Acl::new(id, way, Action::Block, 3000)
    };
    own.cloned().chain([tail(Way::In), tail(Way::Out)]).collect()
}

/// Why a pod's rules are not in force.
fn words(pod: &PodId, addresses: &[IpAddr], inventory: &Inventory) -> String {
    let list: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    let list = list.join(", ");
    match inventory.unfiltered(addresses) {
        Some(network) => format!(
            "{pod} ({list}) is on {network}, whose endpoints the switch does not filter: its rules are not in force"
        ),
        None => {
            format!("{pod} ({list}) has no endpoint yet: its rules are not in force until it comes")
        }
    }
}

fn away(what: &str, error: HostError) -> ApplyError {
    ApplyError { kind: ApplyErrorKind::Unavailable, what: what.to_owned(), source: error.into() }
}
