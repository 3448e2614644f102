//! The two sides of `weir diff`: manifests of files, of a git revision, or of the current cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    path::{Path, PathBuf},
};

use weir_kube::ClusterKinds;
use weir_source::manifests::ManifestInput;

use crate::{
    clusters::{self, ClustersArgs},
    failure::Failure,
    git::{Revision, RevisionManifests},
    present::plain::Plain,
    source::{self, LiveArgs, Loaded},
};

/// The arguments that name the two sides.
pub(crate) struct DiffSides<'a> {
    /// The old side.
    pub(crate) old: &'a PathBuf,
    /// The new side, if it is given.
    pub(crate) new: Option<&'a PathBuf>,
    /// The files that both sides share.
    pub(crate) shared: &'a [PathBuf],
    /// The paths in a revision.
    pub(crate) paths: &'a [PathBuf],
    /// The cluster.
    pub(crate) live: &'a LiveArgs,
    /// The namespace of manifests without one.
    pub(crate) namespace: Option<&'a str>,
    /// The clusters of a ClusterSet, relative to both sides.
    pub(crate) clusters: &'a ClustersArgs,
}

impl DiffSides<'_> {
    /// Loads the old and the new side.
    pub(crate) fn load(&self) -> anyhow::Result<(Loaded, Loaded)> {
        let is_stdin = |path: &PathBuf| path.as_os_str() == "-";
        if self.shared.iter().any(is_stdin)
            || (is_stdin(self.old) && self.new.is_some_and(is_stdin))
        {
            let hint = "use `-` for OLD or for NEW, but not for both";
            return Err(Failure::new("standard input can be only one side", hint).into());
        }
        if !self.clusters.is_empty() {
            return self.load_clusters();
        }
        let is_revision = |path: &PathBuf| Revision::from_argument(path).is_some();
        if is_revision(self.old) || self.new.is_some_and(is_revision) {
            return self.load_revisions();
        }
        if !self.paths.is_empty() {
            let hint = "name a revision, as in `weir diff git:main -- deploy/`";
            return Err(Failure::new("paths after `--` are those of a git revision", hint).into());
        }
        match self.new {
            Some(new) => Ok((self.load_path(self.old)?, self.load_path(new)?)),
            None if self.shared.is_empty() => {
                let new = self.load_paths(std::slice::from_ref(self.old))?;
                let cluster = self.live.load(ClusterKinds::Policies, "give both OLD and NEW")?;
                let new = cluster.with(new);
                Ok((cluster, new))
            }
            None => {
                let hint = "give OLD and NEW, or leave out -f to compare with the current cluster";
                Err(Failure::new("there is nothing to compare with", hint).into())
            }
        }
    }

    /// Loads the clusters of both sides. Without NEW, the new side of a revision is the working tree.
    fn load_clusters(&self) -> anyhow::Result<(Loaded, Loaded)> {
        if !self.paths.is_empty() {
            let hint = "name the paths in --cluster NAME=PATH";
            return Err(Failure::new("--cluster takes the place of paths after `--`", hint).into());
        }
        let new = match (self.new, Revision::from_argument(self.old)) {
            (Some(new), _) => Some(new),
            (None, Some(_)) => None,
            (None, None) => {
                let hint = "give OLD and NEW, each a folder with the manifests of all clusters, or \
                            a git revision";
                return Err(Failure::new("there is nothing to compare with", hint).into());
            }
        };
        let clusters = self.clusters.paths()?;
        let load = |side: Option<&PathBuf>| {
            let mut all = BTreeMap::new();
            for (name, paths) in &clusters {
                let mut loaded = self.load_cluster(side, paths)?;
                clusters::drop_translations(&mut loaded);
                all.insert(name.clone(), loaded);
            }
            anyhow::Ok(clusters::joined(all))
        };
        Ok((load(Some(self.old))?, load(new)?))
    }

    /// Loads a cluster of one side, which is the working tree if it is not given.
    fn load_cluster(&self, side: Option<&PathBuf>, paths: &[&Path]) -> anyhow::Result<Loaded> {
        let within = |side: &Path| paths.iter().map(|path| side.join(path)).collect::<Vec<_>>();
        let paths = match side.map(|side| (side, Revision::from_argument(side))) {
            None => within(Path::new(".")),
            Some((side, None)) => within(side),
            Some((_, Some(revision))) => {
                let RevisionManifests { manifests, absent, notes } =
                    revision.load(self.shared, &within(Path::new(".")), self.namespace)?;
                notes.iter().for_each(|text| note(text));
                for path in absent {
                    note(&format!("the revision has no manifests at {}", path.display()));
                }
                return Ok(Loaded::from(manifests));
            }
        };
        let all: Vec<PathBuf> = self.shared.iter().cloned().chain(paths).collect();
        self.load_paths(&all)
    }

    fn load_path(&self, path: &PathBuf) -> anyhow::Result<Loaded> {
        let paths: Vec<PathBuf> = self.shared.iter().chain([path]).cloned().collect();
        self.load_paths(&paths)
    }

    fn load_paths(&self, paths: &[PathBuf]) -> anyhow::Result<Loaded> {
        let input = ManifestInput { paths, namespace: self.namespace, ..ManifestInput::default() };
        source::load_manifests(input)
    }

    /// Loads sides of which at least one is a revision. Without NEW, the new side is the working
    /// tree.
    fn load_revisions(&self) -> anyhow::Result<(Loaded, Loaded)> {
        let here = [PathBuf::from(".")];
        let is_path = |path: &PathBuf| Revision::from_argument(path).is_none();
        let has_path = is_path(self.old) || self.new.is_some_and(is_path);
        if self.paths.is_empty() && has_path {
            let hint = "give the paths of the revision after `--`, as in \
                        `weir diff git:main new/ -- deploy/`";
            return Err(
                Failure::new("it is unclear which files of the revision to read", hint).into()
            );
        }
        let paths = if self.paths.is_empty() { &here } else { self.paths };
        let load = |side: Option<&PathBuf>| match side {
            None => self.load_working_tree(paths),
            Some(side) => match Revision::from_argument(side) {
                None => Ok((self.load_path(side)?, Vec::new())),
                Some(revision) => {
                    let RevisionManifests { manifests, absent, notes } =
                        revision.load(self.shared, paths, self.namespace)?;
                    notes.iter().for_each(|text| note(text));
                    Ok((Loaded::from(manifests), absent))
                }
            },
        };
        let ((old, not_in_old), (new, not_in_new)) = (load(Some(self.old))?, load(self.new)?);
        let name = |side: Option<&PathBuf>| {
            side.map_or("the working tree".to_owned(), |side| side.display().to_string())
        };
        let (old_name, new_name) = (name(Some(self.old)), name(self.new));
        for path in not_in_old.iter().collect::<BTreeSet<_>>() {
            if not_in_new.contains(path) {
                let what = format!("no manifests at {} on either side", path.display());
                return Err(Failure::new(
                    what,
                    "check the path; it is relative to the current folder",
                )
                .into());
            }
        }
        for (side, absent) in [(old_name, not_in_old), (new_name, not_in_new)] {
            for path in absent {
                note(&format!("{side} has no manifests at {}", path.display()));
            }
        }
        Ok((old, new))
    }

    /// Loads the paths of the working tree that exist, and returns the others.
    fn load_working_tree(&self, paths: &[PathBuf]) -> anyhow::Result<(Loaded, Vec<PathBuf>)> {
        let (found, absent): (Vec<PathBuf>, Vec<PathBuf>) =
            paths.iter().cloned().partition(|path| Path::exists(path));
        let all: Vec<PathBuf> = self.shared.iter().chain(&found).cloned().collect();
        Ok((self.load_paths(&all)?, absent))
    }
}

fn note(text: &str) {
    // Standard error may be closed, which is no reason to fail.
    drop(writeln!(anstream::stderr(), "note: {}", Plain(text)));
}
