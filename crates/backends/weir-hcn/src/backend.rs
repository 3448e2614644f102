use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    time::{Duration, Instant},
};

use weir_datapath::{ApplyError, ApplyErrorKind, Datapath, Diagnostics, Drift};
use weir_model::PodId;

use crate::{
    Acl, AclAction, AclDirection, ErrorClass, HcnPlan, HnsEndpoint, Host, HostError, Installed,
    Inventory, Planner, StateFile, Step, Tracker, render::deny_all, tracker::has_desired_acls,
};

/// The interval between checks for foreign changes to our ACLs and for orphaned endpoints.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The interval between checks while a pod has no endpoint.
const WAITING_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The time after which a check without a result is reported.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum time to work on one plan without a pause.
const APPLY_BUDGET: Duration = Duration::from_secs(4);

/// The settings of the backend.
#[derive(Clone, Debug, Default)]
pub struct HcnSettings {
    /// The name of a network whose endpoints get ACLs, even if its kind is not filtered by default.
    pub network: Option<String>,
    /// The version of the program that writes the state file.
    pub version: &'static str,
}

/// The backend for the endpoints of one machine.
#[derive(Debug)]
pub struct Hcn<H> {
    host: H,
    settings: HcnSettings,
    tracker: Tracker,
    file: Option<StateFile>,
    /// The problem with the state file, if any.
    warning: Option<String>,
    /// One warning per pod without an endpoint.
    without_endpoint: BTreeMap<PodId, String>,
    /// One warning per endpoint that still has stale ACLs of ours.
    uncleared: Vec<String>,
    /// The number of our ACLs on each endpoint that has some, as HNS returned them last.
    applied: BTreeMap<String, usize>,
    /// Whether a new plan is needed: the last one is incomplete, or the endpoint of a waiting pod
    /// has appeared.
    needs_plan: bool,
    /// The time since which a check is in progress.
    check_started: Option<Instant>,
    /// Whether ACLs were written since the check began, so that its result is out of date.
    is_stale: bool,
    next_check: Instant,
}

impl<H: Host> Hcn<H> {
    /// A backend without state. Without a file, or with one that is not writable, nothing persists.
    pub fn new(host: H, settings: HcnSettings, mut file: Option<StateFile>) -> Self {
        let (tracker, warning) = file.as_mut().map(StateFile::load).unwrap_or_default();
        Hcn {
            host,
            settings,
            tracker,
            file,
            warning,
            without_endpoint: BTreeMap::new(),
            uncleared: Vec::new(),
            applied: BTreeMap::new(),
            needs_plan: false,
            check_started: None,
            is_stale: false,
            next_check: Instant::now(),
        }
    }

    fn network(&self) -> Option<&str> {
        self.settings.network.as_deref()
    }

    /// Counts our ACLs on all endpoints.
    fn count_applied(&mut self, inventory: &Inventory) {
        let ours = inventory.endpoints.iter().filter(|endpoint| endpoint.has_ours());
        self.applied = ours.map(|one| (one.id.clone(), one.ours().len())).collect();
    }

    /// Compares the endpoints with the desired state. Returns whether they drifted, ignoring pods
    /// without an endpoint. Records pods whose endpoint appeared or is missing.
    fn check_drift(&mut self, planner: &Planner, inventory: &Inventory) -> bool {
        self.without_endpoint.retain(|pod, _| planner.has_rules(pod));
        self.count_applied(inventory);
        let plan = planner.differences(inventory, &self.tracker, self.network());
        let mut drifted = false;
        // If the addresses of the machine changed, every pod must allow the new ones.
        self.needs_plan |= inventory.addresses != *planner.host();
        for step in plan.steps {
            let Step::Put { pod, addresses, .. } = step else {
                drifted = true;
                continue;
            };
            let has_endpoint = !inventory.of_pod(&addresses, self.network()).is_empty();
            if !has_endpoint {
                self.without_endpoint
                    .insert(pod.clone(), inventory.absence_warning(&pod, &addresses));
            } else if self.without_endpoint.contains_key(&pod) {
                self.needs_plan = true;
            } else {
                drifted = true;
            }
        }
        self.track_matching(planner, inventory);
        drifted
    }

    /// Tracks endpoints that already match, and forgets deleted ones.
    fn track_matching(&mut self, planner: &Planner, inventory: &Inventory) {
        let there: BTreeSet<&str> = inventory.endpoints.iter().map(|one| &*one.id).collect();
        self.tracker.retain(|id| there.contains(id));
        for (pod, addresses, acls) in planner.pods() {
            for endpoint in inventory.of_pod(addresses, self.settings.network.as_deref()) {
                let (desired, ours) = (endpoint.desired(acls), endpoint.ours());
                if desired == ours && !self.tracker.contains(&endpoint.id) {
                    self.tracker.put(&endpoint.id, &pod.to_string(), &desired, &ours);
                }
            }
        }
        self.save();
    }

    fn save(&mut self) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.save(self.tracker.text(self.settings.version)) {
            self.warning = Some(format!("the state file cannot be written: {error}"));
        }
    }

    /// Checks the endpoints if a check is due. Returns whether another program changed our ACLs.
    fn has_drifted(&mut self, planner: &Planner) -> Result<bool, ApplyError> {
        let now = Instant::now();
        if self.check_started.is_none() && now < self.next_check && !self.host.was_notified() {
            return Ok(false);
        }
        let what = "cannot check the endpoints of HNS";
        let Some(polled) = self.host.poll_inventory() else {
            let since = *self.check_started.get_or_insert(now);
            if now - since < CHECK_TIMEOUT {
                return Ok(false);
            }
            self.check_started = Some(now);
            let record = "HNS does not respond".to_owned();
            let error = HostError { call: "list of endpoints", code: HostError::TIMEOUT, record };
            return Err(unavailable(what, error));
        };
        self.check_started = None;
        let is_stale = mem::take(&mut self.is_stale);
        self.next_check = now
            + if self.without_endpoint.is_empty() {
                CHECK_INTERVAL
            } else {
                WAITING_CHECK_INTERVAL
            };
        let inventory = polled.map_err(|error| unavailable(what, error))?;
        if is_stale {
            self.next_check = now;
            return Ok(false);
        }
        Ok(self.check_drift(planner, &inventory))
    }

    fn run_steps(
        &mut self,
        plan: &HcnPlan,
        inventory: &Inventory,
    ) -> Result<BTreeMap<PodId, String>, HostError> {
        let end = Instant::now() + APPLY_BUDGET;
        let mut rejected = BTreeMap::new();
        self.uncleared.clear();
        for step in &plan.steps {
            if Instant::now() > end {
                self.needs_plan = true;
                break;
            }
            match step {
                Step::Put { pod, addresses, acls } => {
                    if let Err(error) = self.put_acls(inventory, pod, addresses, acls) {
                        if error.class() == ErrorClass::Unavailable {
                            return Err(error);
                        }
                        rejected.insert(pod.clone(), error.to_string());
                    }
                }
                Step::Clear { endpoint } => self.clear_acls(inventory, endpoint)?,
            }
        }
        Ok(rejected)
    }

    fn put_acls(
        &mut self,
        inventory: &Inventory,
        pod: &PodId,
        addresses: &[IpAddr],
        acls: &[Acl],
    ) -> Result<(), HostError> {
        let endpoints = inventory.of_pod(addresses, self.network());
        self.without_endpoint.remove(pod);
        let mut is_gone = endpoints.is_empty();
        let mut failure = None;
        for endpoint in endpoints {
            match self.write_acls(endpoint, pod, acls) {
                Ok(()) => (),
                Err(error) if error.class() == ErrorClass::Gone => is_gone = true,
                Err(error) => failure = Some(error),
            }
        }
        if is_gone && !acls.is_empty() {
            self.without_endpoint.insert(pod.clone(), inventory.absence_warning(pod, addresses));
        }
        failure.map_or(Ok(()), Err)
    }

    fn write_acls(
        &mut self,
        endpoint: &HnsEndpoint,
        pod: &PodId,
        acls: &[Acl],
    ) -> Result<(), HostError> {
        if has_desired_acls(endpoint, acls, &self.tracker) {
            return Ok(());
        }
        let written = self.replace_acls(endpoint, &pod.to_string(), &endpoint.desired(acls));
        if let Err(error) = &written
            && error.class() == ErrorClass::Rejected
            && !endpoint.has_ours()
            && !acls.is_empty()
        {
            // Deny all traffic rather than allow all. The first error is the one to report.
            _ = self.replace_acls(endpoint, &pod.to_string(), &endpoint.desired(&deny_all(acls)));
        }
        written
    }

    /// Updates the ACLs of an endpoint, and verifies them by reading it again. `endpoint` is the
    /// state to modify.
    fn replace_acls(
        &mut self,
        endpoint: &HnsEndpoint,
        pod: &str,
        desired: &[Acl],
    ) -> Result<(), HostError> {
        let request = endpoint.update(desired);
        let request = request.map_err(|error| HostError::invalid_response("update", &error))?;
        self.host.modify(&endpoint.id, &request)?;
        let ours = self.host.endpoint(&endpoint.id)?.ours();
        self.applied.insert(endpoint.id.clone(), ours.len());
        if identities(&ours) != identities(desired) {
            let record =
                "HNS stores other ACLs than requested; another program may have written too";
            return Err(HostError { call: "HcnModifyEndpoint", code: 0, record: record.into() });
        }
        if desired.is_empty() {
            self.tracker.remove(&endpoint.id);
        } else {
            self.tracker.put(&endpoint.id, pod, desired, &ours);
        }
        Ok(())
    }

    fn clear_acls(&mut self, inventory: &Inventory, id: &str) -> Result<(), HostError> {
        let Some(endpoint) = inventory.endpoints.iter().find(|endpoint| endpoint.id == id) else {
            return Ok(());
        };
        match self.replace_acls(endpoint, "", &[]) {
            Err(error) if error.class() == ErrorClass::Unavailable => Err(error),
            Err(error) if error.class() == ErrorClass::Rejected => {
                self.uncleared.push(format!("cannot remove weir's ACLs from endpoint {id}, which no selected pod uses: {error}"));
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
            inventory.map_err(|error| unavailable("cannot list the endpoints of HNS", error))?;
        self.count_applied(&inventory);
        let network = self.settings.network.clone();
        Ok(Installed { inventory, tracker: self.tracker.clone(), network })
    }

    fn apply(&mut self, plan: &HcnPlan) -> Result<(), ApplyError> {
        self.is_stale = self.check_started.is_some();
        let what = "cannot write the ACLs of endpoints";
        let inventory = self.host.inventory().map_err(|error| unavailable(what, error))?;
        self.count_applied(&inventory);
        let rejected = self.run_steps(plan, &inventory);
        self.save();
        let rejected = rejected.map_err(|error| unavailable(what, error))?;
        if rejected.is_empty() {
            return Ok(());
        }
        let source = format!("rejected for {} pods", rejected.len()).into();
        let what = "HNS does not accept the ACLs".to_owned();
        Err(ApplyError { kind: ApplyErrorKind::Partial(rejected), what, source })
    }

    fn drift(&mut self, planner: &Planner) -> Result<Drift, ApplyError> {
        if self.has_drifted(planner)? {
            Ok(Drift::Changed)
        } else if mem::take(&mut self.needs_plan) {
            Ok(Drift::Resumable)
        } else {
            Ok(Drift::None)
        }
    }

    fn remove(&mut self) -> Result<(), ApplyError> {
        let what = "cannot remove the ACLs of endpoints";
        let inventory = self.host.inventory().map_err(|error| unavailable(what, error))?;
        for endpoint in inventory.endpoints.iter().filter(|endpoint| endpoint.has_ours()) {
            match self.replace_acls(endpoint, "", &[]) {
                Err(error) if error.class() != ErrorClass::Gone => {
                    return Err(unavailable(what, error));
                }
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
        let absent = self.without_endpoint.iter().filter(|(pod, _)| planner.has_rules(pod));
        let absent = absent.map(|(_, warning)| warning);
        self.warning.iter().chain(absent).chain(&self.uncleared).cloned().collect()
    }

    fn rule_count(&self) -> Option<usize> {
        Some(self.applied.values().sum())
    }
}

/// The fields of an ACL that HNS must return unchanged. It can rewrite the others.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct AclIdentity<'a> {
    id: &'a str,
    direction: AclDirection,
    action: AclAction,
    priority: Option<u16>,
}

impl<'a> From<&'a Acl> for AclIdentity<'a> {
    fn from(Acl { id, direction, action, priority, .. }: &'a Acl) -> Self {
        AclIdentity { id, direction: *direction, action: *action, priority: *priority }
    }
}

fn identities(acls: &[Acl]) -> Vec<AclIdentity<'_>> {
    let mut all: Vec<AclIdentity<'_>> = acls.iter().map(AclIdentity::from).collect();
    all.sort_unstable();
    all
}

fn unavailable(what: &str, error: HostError) -> ApplyError {
    ApplyError { kind: ApplyErrorKind::Unavailable, what: what.to_owned(), source: error.into() }
}
