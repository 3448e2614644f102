mod ignore;
mod intake;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_model::{
    Attachments, Finding, Location, Name, NameTable, PodId, PolicyId, PortRange, Severity,
};

pub use self::ignore::IgnoreAnnotation;
use self::intake::Intake;
use crate::{
    HostReference, ObjectList, Route, RouteId,
    assemble::{self, Assembly},
    document::{self, MapEntry, Repeat, SyntaxError, Tree, TreeValue},
    hosts,
    lower::{
        self, Guess, ListKind, LowerContext, Lowered, MISPLACED, NOT_AN_OBJECT, TOO_MANY, Template,
        keep,
    },
};

/// The content of manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifests {
    /// The objects of the model, sorted by kind and name: namespaces, nodes, pods, policies.
    pub objects: ObjectList,
    /// The findings about the input, in reading order.
    pub findings: Vec<Finding>,
    /// The pods of each workload.
    pub owners: BTreeMap<WorkloadRef, Vec<PodId>>,
    /// The ports that the containers of each pod declare, with or without a name.
    pub declared: BTreeMap<PodId, Vec<PortRange>>,
    /// The pods with networks other than the cluster network. Results about these networks, and
    /// about pods without the cluster network, are unknown.
    pub unjudged: BTreeMap<PodId, Attachments>,
    /// The DNS servers of the pods that use neither those of the cluster nor those of their node.
    pub resolvers: BTreeMap<PodId, Vec<IpAddr>>,
    /// The hosts that the containers of each pod name, if [`PodDetails`] asks for them.
    pub hosts: BTreeMap<PodId, Vec<HostReference>>,
    /// The policies that a controller generated, and for which object, such as
    /// `Memcached shop/cache`.
    pub generated_for: BTreeMap<PolicyId, Name>,
    /// The policies that are only requested, by objects such as Memcacheds: no manifest contains
    /// them, and a controller would create them.
    pub requested: BTreeSet<PolicyId>,
    /// The synthetic addresses of pods without addresses.
    pub synthetic: BTreeSet<IpAddr>,
    /// The annotations that ask `weir lint` to ignore findings.
    pub ignores: Vec<IgnoreAnnotation>,
    /// The Ingresses and the routes of the Gateway API.
    pub routes: BTreeMap<RouteId, Route>,
    /// The `apiVersion` of the first ClusterNetworkPolicy.
    pub cluster_policy_version: Option<Name>,
}

impl Manifests {
    /// The findings because of which `objects` is incomplete or wrong: a document with a syntax
    /// error, an object without a kind or with a misspelt one, objects in a list that is invalid, a
    /// policy whose namespace is invalid, one of two conflicting objects, objects that a program
    /// must render first, and everything beyond the limit of findings.
    ///
    /// While there are any, results about the world may be wrong.
    pub fn missing(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| match finding.code {
            TOO_MANY | MISPLACED | assemble::CONFLICT => true,
            // A syntax error is a warning in a document of a kind that is not supported.
            SYNTAX | UNRENDERED => finding.severity == Severity::Error,
            UNKNOWN_KIND => finding.severity >= Severity::Warning,
            // A finding about a field of an object names the object; this one is about a list.
            UNKNOWN_FIELD => finding.object.is_none(),
            NOT_AN_OBJECT => finding.severity == Severity::Error,
            _ => false,
        })
    }
}

impl Manifests {
    /// Without the policies that are only requested, for input whose controllers have created the
    /// others.
    pub fn without_requested(mut self) -> Self {
        let requested = std::mem::take(&mut self.requested);
        self.generated_for.retain(|id, _| !requested.contains(id));
        self.objects.retain_policies(|policy| !requested.contains(&policy.id));
        self
    }

    /// The same as if read from a cluster: without synthetic addresses, locations and requested
    /// policies.
    pub fn of_cluster(self) -> Self {
        let mut manifests = self.without_requested();
        let synthetic = std::mem::take(&mut manifests.synthetic);
        manifests.objects.drop_locations();
        for pod in manifests.objects.pods_mut() {
            pod.addresses.retain(|address| !synthetic.contains(address));
        }
        manifests.findings.iter_mut().for_each(|finding| finding.location = None);
        manifests.ignores.iter_mut().for_each(|ignore| ignore.location = None);
        manifests.hosts.values_mut().flatten().for_each(|host| host.location = None);
        manifests
    }
}

/// What a reader keeps of the containers of pods. It takes much memory in a large cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodDetails {
    /// Nothing.
    None,
    /// The declared ports.
    #[default]
    Ports,
    /// The declared ports, and the hosts that the environment and the arguments name.
    PortsAndHosts,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadRef {
    /// The workload's namespace.
    pub namespace: Name,
    /// The kind in lower case, such as `deployment`.
    pub kind: Name,
    /// The workload's name.
    pub name: Name,
}

/// Reads manifests, file by file.
#[derive(Debug, Default)]
pub struct ManifestReader {
    names: NameTable,
    /// The objects of the current document.
    found: Vec<Lowered>,
    /// The objects of all other documents.
    assembly: Assembly,
    findings: Vec<Finding>,
    ignores: Vec<IgnoreAnnotation>,
    unknown: BTreeSet<Name>,
    cluster_policy_version: Option<Name>,
    default_namespace: Option<Name>,
    documents: usize,
    objects: usize,
}

impl ManifestReader {
    /// An empty reader.
    pub fn new() -> Self {
        ManifestReader::default()
    }

    /// Gives objects without a namespace this one instead of `default`, as `kubectl apply -n` does.
    pub fn with_default_namespace(mut self, namespace: Option<&str>) -> Self {
        self.default_namespace = namespace.map(|name| self.names.intern(name));
        self
    }

    /// Sets what to keep of the containers of pods.
    pub fn with_pod_details(mut self, details: PodDetails) -> Self {
        self.assembly.pod_details = details;
        self
    }

    /// Reads one file. Errors in it become findings. A syntax error concerns only its document;
    /// the elements of a list before it stay.
    pub fn read_file(&mut self, file: Name, bytes: &[u8]) {
        self.read_part(file, bytes, 1);
    }

    /// Reads a part of a file: whole documents, the first of which begins at this line.
    /// [`document::last_separator`] finds where a part can end.
    pub fn read_part(&mut self, file: Name, bytes: &[u8], line: u32) {
        document::parse(bytes, line, &mut Intake::new(self, file));
    }

    /// The number of documents that were not empty. An empty list counts.
    pub fn documents(&self) -> usize {
        self.documents
    }

    /// The number of objects and lists of any kind, of policy tests, and of documents with errors,
    /// which may be objects.
    pub fn objects(&self) -> usize {
        self.objects
    }

    /// Assembles the objects: adds pods for workloads, mentioned namespaces, and synthetic
    /// addresses.
    pub fn finish(self) -> Manifests {
        // The table of a large cluster takes much memory.
        drop(self.names);
        Manifests {
            ignores: self.ignores,
            cluster_policy_version: self.cluster_policy_version,
            ..self.assembly.finish(self.findings)
        }
    }

    /// Adds the objects of the current document to the others.
    fn flush(&mut self) {
        self.found.drain(..).for_each(|lowered| self.assembly.add(lowered));
    }

    fn add(&mut self, file: &Name, tree: &Tree, list: Option<&ListKind>) {
        let kind = tree.get("kind").and_then(Tree::text);
        if kind.is_some_and(document::is_list) && tree.get("items").is_some() {
            let inner = list_kind(tree.entries());
            self.report_misplaced_items(file, tree);
            for item in tree.get("items").map_or(&[][..], Tree::items) {
                self.add(file, item, Some(&inner));
            }
            return;
        }
        if kind.is_some_and(document::is_list) && self.report_misplaced_items(file, tree) {
            return;
        }
        let may_be_list = |entry: &MapEntry| is_items(&entry.key);
        if let Some(kind) = kind.filter(|kind| !document::is_list(kind))
            && tree.entries().iter().any(may_be_list)
            && let Some(meant) = lower::meant_list(kind)
        {
            let location = Location { file: file.clone(), line: tree.line };
            self.report_misspelt(kind, location, &format!("kind: {meant}"));
            return;
        }
        self.add_ignores(file, tree, list);
        if kind == Some("ClusterNetworkPolicy") && self.cluster_policy_version.is_none() {
            let version = tree.get("apiVersion").and_then(Tree::text);
            self.cluster_policy_version = version.map(Name::from);
        }
        let mut ctx = LowerContext::new(file, &mut self.names, &mut self.findings, None);
        if let Some(namespace) = &self.default_namespace {
            ctx.default_namespace.clone_from(namespace);
        }
        match lower::lower_object(&mut ctx, tree, list) {
            Some(Lowered::Unknown { kind, line, guess }) => {
                let location = Location { file: file.clone(), line };
                match guess {
                    Guess::Misspelt(meant) => self.report_misspelt(&kind, location, &meant),
                    Guess::ForeignPolicy => self.report_foreign_policy(kind, location),
                    Guess::Other => self.report_unknown_kind(kind, location),
                }
            }
            Some(mut lowered) => {
                if self.assembly.pod_details == PodDetails::PortsAndHosts {
                    hosts::add(&mut lowered, file, tree);
                }
                if let Lowered::Template(Template { inferred: Some(kind), .. }) = &lowered {
                    let location = Location { file: file.clone(), line: tree.line };
                    self.report_inferred(kind.clone(), location);
                }
                self.found.push(lowered);
            }
            None => (),
        }
    }

    /// Reports a kind that is similar to a known one.
    fn report_misspelt(&mut self, kind: &str, location: Location, meant: &str) {
        let message = format!("there is no kind {kind}; the object was not read");
        let hint = format!("did you mean `{meant}`?");
        let finding = general(location, UNKNOWN_KIND, message, hint);
        keep(&mut self.findings, Finding { severity: Severity::Warning, ..finding });
    }

    /// Reports objects of a list under a key similar to `items`, and `items` that are not a list.
    /// Returns whether there are any.
    fn report_misplaced_items(&mut self, file: &Name, list: &Tree) -> bool {
        let before = self.findings.len();
        for MapEntry { key, line, value, .. } in list.entries() {
            let location = Location { file: file.clone(), line: *line };
            if &**key != "items" && is_items(key) {
                let key = document::quote(key);
                let message =
                    format!("there is no field {key} in a list; its objects were not read");
                let finding =
                    general(location, UNKNOWN_FIELD, message, "did you mean `items`?".into());
                keep(&mut self.findings, finding);
            } else if &**key == "items"
                && !matches!(value.value, TreeValue::Seq(_) | TreeValue::Null)
            {
                let found = value.describe();
                let message =
                    format!("expected a list of objects in `items`, found {found}; it was skipped");
                let hint = "begin each object with `- `".into();
                keep(&mut self.findings, general(location, NOT_AN_OBJECT, message, hint));
            }
        }
        self.findings.len() > before
    }

    fn report_foreign_policy(&mut self, kind: Name, location: Location) {
        let message =
            format!("policies of kind {kind} are not supported; results do not reflect them");
        let hint = "such policies may deny or allow further traffic".into();
        let finding = general(location, FOREIGN_POLICY, message, hint);
        self.report_once(kind, Finding { severity: Severity::Warning, ..finding });
    }

    fn report_unknown_kind(&mut self, kind: Name, location: Location) {
        let message = format!("objects of kind {kind} are ignored");
        let hint = "no action is needed, unless it should be a policy".into();
        let finding = general(location, UNKNOWN_KIND, message, hint);
        self.report_once(kind, Finding { severity: Severity::Info, ..finding });
    }

    /// Reports a kind of another project that has a pod template.
    fn report_inferred(&mut self, kind: Name, location: Location) {
        let message = format!("objects of kind {kind} are read only for their pod templates");
        let hint = "no action is needed; their controller may add labels that are not known here";
        let finding = general(location, UNKNOWN_KIND, message, hint.into());
        self.report_once(kind, Finding { severity: Severity::Info, ..finding });
    }

    /// Reports an unsupported kind, unless it was reported before.
    fn report_once(&mut self, kind: Name, finding: Finding) {
        if self.unknown.insert(kind) {
            keep(&mut self.findings, finding);
        }
    }
}

/// Whether a document without a kind is the configuration of `weir lint`.
pub fn is_configuration(root: &Tree) -> bool {
    root.get("kind").is_none() && matches!(root.entries(), [entry] if &*entry.key == "lint")
}

/// Whether a key is `items`, or similar to it.
fn is_items(key: &str) -> bool {
    key.eq_ignore_ascii_case("items") || key.eq_ignore_ascii_case("item")
}

/// The code of a finding about an unsupported kind: a warning if it is similar to a supported one.
const UNKNOWN_KIND: &str = "unknown-kind";

/// The code of a finding about policies of other projects. Unlike with a misspelt kind, no
/// supported object is missing.
const FOREIGN_POLICY: &str = "foreign-policy";

/// The code of a finding about an unknown field.
const UNKNOWN_FIELD: &str = "unknown-field";

/// The code of a finding about a folder whose manifests a program must render first, such as a
/// Helm chart: an error if objects are missing or contradict each other because of it.
pub const UNRENDERED: &str = "unrendered";

/// The code of a finding about Services that the user may not list.
pub const SERVICES_UNREAD: &str = "services-unread";

/// The code of a finding about routes that the user may not list.
pub const ROUTES_UNREAD: &str = "routes-unread";

/// The code of a finding about a document that could not be read.
const SYNTAX: &str = "syntax";

/// The code of a finding about a key that a mapping has twice.
const DUPLICATE_KEY: &str = "duplicate-key";

/// The finding about a document that could not be read: a warning if weir would ignore the object.
pub(crate) fn unreadable(file: &Name, error: &SyntaxError) -> Finding {
    let location = Location { file: file.clone(), line: error.line };
    let ignored = error.kind.as_deref().filter(|kind| lower::is_ignored(kind));
    let (severity, what) = match ignored {
        Some(kind) => (Severity::Warning, format!("this {kind}")),
        None => (Severity::Error, "this document".into()),
    };
    let message = format!("{}; {what} was not read", error.message);
    Finding { severity, ..general(location, SYNTAX, message, error.hint.clone()) }
}

/// The finding about a key that a mapping has twice.
pub(crate) fn repeated(file: &Name, repeat: &Repeat) -> Finding {
    let Repeat { key, first, again, depth } = repeat;
    let location = Location { file: file.clone(), line: *again };
    if *depth == 0 && &**key == "kind" {
        let message = format!(
            "the key \"kind\" occurs twice, in lines {first} and {again}: a `---` seems to be missing between two objects"
        );
        let hint = "write a line `---` between the two objects".into();
        return general(location, DUPLICATE_KEY, message, hint);
    }
    let key = document::quote(key);
    let message = format!("the key {key} occurs twice, in lines {first} and {again}");
    general(location, DUPLICATE_KEY, message, "remove one of the two".into())
}

/// An error that is not about an object.
fn general(location: Location, code: &'static str, message: String, hint: String) -> Finding {
    let (location, object, field) = (Some(location), None, String::new());
    Finding { location, code, severity: Severity::Error, object, field, message, hint }
}

/// The kind of a list's elements: a `PodList` contains Pods.
fn list_kind(entries: &[MapEntry]) -> ListKind {
    let text = |key| document::find(entries, key).and_then(Tree::text);
    let kind = text("kind").and_then(|kind| kind.strip_suffix("List")).unwrap_or("");
    ListKind { api_version: text("apiVersion").map(Into::into), kind: kind.into() }
}

#[cfg(test)]
mod tests;
