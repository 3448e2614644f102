use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    path::PathBuf,
};

use clap::Args;
use serde::Serialize;
use weir_model::{Finding, PodId, PortRange, Verdict, World};

use crate::{
    exit::Exit,
    failure::Failure,
    present::{self, Format},
    reach::{End, Family, Field, Names, Outside, State, networks, representatives, spell, union},
    source,
};

/// Show which connections a change of manifests opens and closes
///
/// Pods are compared by namespace and name. Every port, every address and every label that a rule of either side can
/// tell apart is asked about, so nothing that the rules decide is left out. Pods that are only in NEW are looked at as
/// if they had been there before. Exit status 1 if there is a difference.
#[derive(Args)]
#[command(
    after_help = "Example:\n  weir diff -f examples/shop/manifests/apps examples/shop/manifests/policies examples/shop/repaired"
)]
pub(crate) struct Diff {
    /// The manifests before: a file, a directory, or `-`
    old: PathBuf,
    /// The manifests after
    new: PathBuf,
    /// Manifests that both sides have, for example the workloads [repeatable]
    #[arg(short = 'f', long = "filename", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// How to print the differences
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

impl Diff {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let is_stdin = |path: &PathBuf| path.as_os_str() == "-";
        if self.files.iter().any(is_stdin) || (is_stdin(&self.old) && is_stdin(&self.new)) {
            let hint = "`-` can be OLD or NEW, and not both";
            return Err(Failure::new("standard input can be only one of the sides", hint).into());
        }
        let side = |path: &PathBuf| {
            let paths: Vec<PathBuf> = self.files.iter().chain([path]).cloned().collect();
            source::load_paths(&paths)
        };
        let (old, new) = (side(&self.old)?, side(&self.new)?);
        let findings: BTreeSet<Finding> = old.findings.into_iter().chain(new.findings).collect();
        present::findings::mention(&Vec::from_iter(findings));
        let gone: Vec<PodId> =
            old.world.pods.keys().filter(|id| !new.world.pods.contains_key(*id)).cloned().collect();
        let (before, added) = with_pods_of(old.world, &new.world);
        let (before, after) = (State::new(before), State::new(new.world));
        let mut owners = old.owners;
        owners.extend(new.owners);
        let changes = Comparison::new(&before, &after).changes(&owners);
        let answer = Answer { changes, added, gone };
        match self.output.structured() {
            Some(form) => present::value(out, form, &Report::from(&answer))?,
            None => present::diff::write(out, &answer)?,
        }
        Ok(Exit::when(answer.changes.is_empty()))
    }
}

/// What a change opens and closes.
pub(crate) struct Answer {
    /// What changed, openings first.
    pub(crate) changes: Vec<Change>,
    /// Pods that were not there before.
    pub(crate) added: Vec<PodId>,
    /// Pods that are no longer there; they are not compared.
    pub(crate) gone: Vec<PodId>,
}

/// Connections that a change opens or closes.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Whether they are open now.
    pub(crate) now: Verdict,
    /// Who connects.
    pub(crate) from: Vec<String>,
    /// To whom.
    pub(crate) to: Vec<String>,
    /// On which ports.
    pub(crate) ports: Vec<PortRange>,
    /// Only over this family, if the other one is different.
    pub(crate) family: Option<Family>,
}

#[derive(Serialize)]
struct Report<'a> {
    opened: Vec<Entry<'a>>,
    closed: Vec<Entry<'a>>,
    added: Vec<String>,
    gone: Vec<String>,
}

#[derive(Serialize)]
struct Entry<'a> {
    from: &'a [String],
    to: &'a [String],
    ports: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    family: Option<String>,
}

impl<'a> From<&'a Answer> for Report<'a> {
    fn from(answer: &'a Answer) -> Self {
        let of = |verdict| {
            let some = answer.changes.iter().filter(move |change| change.now == verdict);
            let entry = |change: &'a Change| Entry {
                from: &change.from,
                to: &change.to,
                ports: spell(&change.ports),
                family: change.family.map(|family| family.to_string()),
            };
            some.map(entry).collect()
        };
        let words = |pods: &[PodId]| pods.iter().map(PodId::to_string).collect();
        Report {
            opened: of(Verdict::Allow),
            closed: of(Verdict::Deny),
            added: words(&answer.added),
            gone: words(&answer.gone),
        }
    }
}

/// The old world with the pods that are only in the new one, and with their namespaces.
fn with_pods_of(mut old: World, new: &World) -> (World, Vec<PodId>) {
    let added: Vec<PodId> =
        new.pods.keys().filter(|id| !old.pods.contains_key(*id)).cloned().collect();
    for pod in added.iter().filter_map(|id| new.pods.get(id)) {
        old.pods.insert(pod.id.clone(), pod.clone());
        if let Some(namespace) = new.namespaces.get(&pod.id.namespace) {
            old.namespaces.entry(namespace.name.clone()).or_insert_with(|| namespace.clone());
        }
    }
    (old, added)
}

/// Two states, and all that their rules can tell apart.
struct Comparison<'a> {
    old: &'a State,
    new: &'a State,
    field: Field,
}

/// The place of an end among the groups, and after them the outside classes.
type At = usize;

/// Connections that changed alike: which way, over which family, on which ports.
type Kind = (Verdict, Option<Family>, Vec<PortRange>);

impl<'a> Comparison<'a> {
    fn new(old: &'a State, new: &'a State) -> Self {
        Comparison { old, new, field: Field::new(&[old, new]) }
    }

    fn changes(&self, owners: &BTreeMap<PodId, String>) -> Vec<Change> {
        // Those who changed alike towards one end, and then ends that the same changed towards.
        let mut towards: BTreeMap<(Kind, At), BTreeSet<At>> = BTreeMap::new();
        let ends: Vec<Vec<End<'_>>> = self.ends();
        for (from, to) in self.pairs() {
            for kind in self.compare(&ends[from], &ends[to]) {
                towards.entry((kind, to)).or_default().insert(from);
            }
        }
        let mut merged: BTreeMap<(Kind, BTreeSet<At>), BTreeSet<At>> = BTreeMap::new();
        for ((kind, to), from) in towards {
            merged.entry((kind, from)).or_default().insert(to);
        }
        let names = Names::new(self.field.groups.iter().flat_map(|group| &group.pods), owners);
        let mut changes: Vec<Change> = merged
            .into_iter()
            .map(|(((now, family, ports), from), to)| Change {
                now,
                from: self.names(&names, &from),
                to: self.names(&names, &to),
                ports,
                family,
            })
            .collect();
        changes.sort_by(|one, two| {
            (one.now, &one.to, &one.from, &one.ports)
                .cmp(&(two.now, &two.to, &two.from, &two.ports))
        });
        changes
    }

    /// All ends: groups first, then what is outside.
    fn ends(&self) -> Vec<Vec<End<'_>>> {
        let groups =
            self.field.groups.iter().map(|group| group.pods.iter().map(End::Pod).collect());
        groups.chain(self.field.outside.iter().map(|o| vec![End::Outside(o)])).collect()
    }

    /// The pairs between which something may have changed.
    fn pairs(&self) -> Vec<(At, At)> {
        let groups = self.field.groups.len();
        let all = groups + self.field.outside.len();
        let differs = |at: At| match at < groups {
            true => self.field.groups[at].differs,
            false => self.field.outside[at - groups].differs,
        };
        let judged = |from: At, to: At| from < groups || to < groups;
        (0..all)
            .flat_map(|from| (0..all).map(move |to| (from, to)))
            .filter(|(from, to)| judged(*from, *to) && (differs(*from) || differs(*to)))
            .collect()
    }

    /// What changed from one end to another.
    fn compare(&self, from: &[End<'_>], to: &[End<'_>]) -> Vec<Kind> {
        let Some((from, to)) = representatives(self.new, from, to) else { return Vec::new() };
        let mut families: Vec<(Family, Changed)> = Vec::new();
        for family in Family::BOTH {
            let addresses =
                |state| Some((from.address(state, family)?, to.address(state, family)?));
            let (Some(before), Some(after)) = (addresses(self.old), addresses(self.new)) else {
                continue;
            };
            let mut changed = Changed::default();
            for port in &self.field.ports {
                let was = self.old.verdict(before.0, before.1, *port);
                let is = self.new.verdict(after.0, after.1, *port);
                match (was, is) {
                    (Verdict::Deny, Verdict::Allow) => changed.opened.push(*port),
                    (Verdict::Allow, Verdict::Deny) => changed.closed.push(*port),
                    _ => (),
                }
            }
            families.push((family, changed));
        }
        let alike = families.windows(2).all(|pair| pair[0].1 == pair[1].1);
        let named = if alike { &families[..families.len().min(1)] } else { &families[..] };
        let mut kinds = Vec::new();
        for (family, changed) in named {
            let family = (!alike).then_some(*family);
            for (now, ports) in
                [(Verdict::Allow, &changed.opened), (Verdict::Deny, &changed.closed)]
            {
                if !ports.is_empty() {
                    kinds.push((now, family, union(ports.iter().copied())));
                }
            }
        }
        kinds
    }

    fn names(&self, names: &Names<'_>, ends: &BTreeSet<At>) -> Vec<String> {
        let groups = self.field.groups.len();
        let pods: BTreeSet<&PodId> = ends
            .iter()
            .filter_map(|at| self.field.groups.get(*at))
            .flat_map(|group| &group.pods)
            .collect();
        let outside: Vec<&Outside> =
            ends.iter().filter_map(|at| self.field.outside.get(at.checked_sub(groups)?)).collect();
        let mut words = if pods.is_empty() { Vec::new() } else { names.pods(&pods) };
        words.extend(networks(&outside, &self.field.outside));
        words
    }
}

#[derive(Default, PartialEq, Eq)]
struct Changed {
    opened: Vec<PortRange>,
    closed: Vec<PortRange>,
}
