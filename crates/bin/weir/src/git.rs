//! Manifests of a git revision, read with the program `git` and without a checkout.
//!
//! *Invariant*: the content of a repository is data. No path of a revision is opened in the file
//! system, links are not followed, and no argument of the user can become an option of git.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io::{self, BufRead, BufReader, Read, Write},
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
};

use weir_api::{ManifestReader, Manifests, document::MAX_BYTES};

use crate::{failure::Failure, source};

/// The prefix of an argument that names a revision.
const PREFIX: &str = "git:";

/// A commit, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Revision {
    /// The name without the prefix.
    name: String,
}

/// The manifests of a revision.
pub(crate) struct RevisionManifests {
    /// The manifests.
    pub(crate) manifests: Manifests,
    /// The given paths that do not exist or contain no manifests.
    pub(crate) absent: Vec<PathBuf>,
    /// Remarks about entries that are not read.
    pub(crate) notes: Vec<String>,
}

impl Revision {
    /// The revision that an argument names; `None` if it is a path.
    pub(crate) fn from_argument(argument: &Path) -> Option<Self> {
        let name = argument.to_str()?.strip_prefix(PREFIX)?;
        Some(Revision { name: name.to_owned() })
    }

    /// Reads the manifests at these paths, which are relative to the current folder, beside the
    /// shared files, which are not in the revision. Objects without a namespace get the given one.
    pub(crate) fn load(
        &self,
        shared: &[PathBuf],
        paths: &[PathBuf],
        namespace: Option<&str>,
    ) -> anyhow::Result<RevisionManifests> {
        let commit = self.commit()?;
        let mut contents = Contents::start()?;
        let mut reader = ManifestReader::new().with_default_namespace(namespace);
        for file in source::case_files(shared)? {
            reader.read_file(file.to_string_lossy().into(), &source::read_file(&file)?);
        }
        let (mut absent, mut notes) = (Vec::new(), Vec::new());
        let mut seen = BTreeSet::new();
        for path in paths {
            let before = seen.len();
            for entry in self.entries(&commit, path)? {
                if !entry.is_in(path) || seen.contains(&entry.path) {
                    continue;
                }
                let name = format!("{PREFIX}{}:{}", self.name, entry.path);
                match entry.kind {
                    EntryKind::File if entry.is_manifest(path) => {
                        reader.read_file(name.as_str().into(), &contents.blob(&entry, &name)?);
                        seen.insert(entry.path);
                    }
                    EntryKind::File => (),
                    EntryKind::Link if !entry.may_have_manifests() => (),
                    EntryKind::Link => notes.push(format!("{name} is a link and is not read")),
                    EntryKind::Submodule => {
                        notes.push(format!("{name} is a submodule and is not read"));
                    }
                }
            }
            if seen.len() == before {
                absent.push(path.clone());
            }
        }
        Ok(RevisionManifests { manifests: reader.finish(), absent, notes })
    }

    /// The id of the commit.
    fn commit(&self) -> Result<String, Failure> {
        let Revision { name } = self;
        if name.is_empty() || name.starts_with('-') {
            let hint = "give a branch, a tag or a commit, as in `git:main`";
            return Err(Failure::new(format!("`{PREFIX}{name}` names no revision"), hint));
        }
        let arguments = ["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")];
        let (status, out, err) = run(&arguments.map(OsString::from))?;
        let id = out.trim();
        if status && !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(id.to_owned());
        }
        Err(match err.lines().next() {
            Some(line) => Failure::new(
                format!("git cannot read revision {name}: {line}"),
                "run weir inside the repository",
            ),
            None => Failure::new(
                format!("this repository has no revision {name}"),
                "check the name; CI systems often fetch only one commit, so fetch it first: \
                 `git fetch origin BRANCH`, then `git:FETCH_HEAD`",
            ),
        })
    }

    /// All entries of a commit at a path, recursively.
    fn entries(&self, commit: &str, path: &Path) -> Result<Vec<Entry>, Failure> {
        // A path that starts with `-` must not become an option.
        let path = if path.is_absolute() { path.to_owned() } else { Path::new(".").join(path) };
        let mut arguments = ["ls-tree", "-r", "-z", commit].map(OsString::from).to_vec();
        arguments.push(path.into());
        let (status, out, err) = run(&arguments)?;
        if !status {
            let cause = err.lines().next().unwrap_or("git ls-tree failed").to_owned();
            let what = format!("git cannot list revision {}: {cause}", self.name);
            return Err(Failure::new(what, "give paths inside the repository"));
        }
        Ok(out.split('\0').filter_map(Entry::parse).collect())
    }
}

/// An entry of a tree: a file, a link or a submodule.
struct Entry {
    kind: EntryKind,
    object: String,
    /// Relative to the current folder.
    path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    File,
    Link,
    Submodule,
}

impl Entry {
    /// Parses `mode type object<tab>path`.
    fn parse(record: &str) -> Option<Self> {
        let (head, path) = record.split_once('\t')?;
        let mut words = head.split(' ');
        let (mode, kind, object) = (words.next()?, words.next()?, words.next()?);
        let kind = match (mode, kind) {
            ("120000", _) => EntryKind::Link,
            (_, "commit") => EntryKind::Submodule,
            _ => EntryKind::File,
        };
        Some(Entry { kind, object: object.to_owned(), path: path.to_owned() })
    }

    /// The part of the path below a folder; empty for the path itself.
    fn below(&self, folder: &Path) -> PathBuf {
        let folder: PathBuf =
            folder.components().filter(|part| *part != Component::CurDir).collect();
        let path = Path::new(&self.path);
        path.strip_prefix(folder).unwrap_or(path).to_owned()
    }

    /// Whether no part of the path below the folder is hidden.
    fn is_in(&self, folder: &Path) -> bool {
        let is_hidden = |part: Component<'_>| matches!(part, Component::Normal(name) if name.to_string_lossy().starts_with('.'));
        !self.below(folder).components().any(is_hidden)
    }

    /// Whether it is the given path itself, or a file with the extension of a manifest.
    fn is_manifest(&self, given: &Path) -> bool {
        self.below(given).as_os_str().is_empty() || weir_source::is_manifest(Path::new(&self.path))
    }

    /// Whether a link may lead to a manifest or to a folder.
    fn may_have_manifests(&self) -> bool {
        let path = Path::new(&self.path);
        path.extension().is_none() || weir_source::is_manifest(path)
    }
}

/// A process that returns the contents of objects.
struct Contents {
    child: std::process::Child,
    requests: std::process::ChildStdin,
    answers: BufReader<std::process::ChildStdout>,
}

impl Contents {
    fn start() -> Result<Self, Failure> {
        let mut command = git();
        command.args(["cat-file", "--batch"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().map_err(|error| missing(&error))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(answers)) => {
                Ok(Contents { child, requests, answers: BufReader::new(answers) })
            }
            _ => Err(Failure::new("cannot talk to git", "try again")),
        }
    }

    fn blob(&mut self, entry: &Entry, name: &str) -> Result<Vec<u8>, Failure> {
        self.request(&entry.object).map_err(|error| {
            Failure::new(format!("cannot read {name}: {error}"), "check it with `git fsck`")
        })
    }

    fn request(&mut self, object: &str) -> io::Result<Vec<u8>> {
        writeln!(self.requests, "{object}")?;
        self.requests.flush()?;
        let mut head = String::new();
        self.answers.read_line(&mut head)?;
        let size = head.trim_end().rsplit_once(" blob ").map(|(_, size)| size);
        let Some(size) = size.and_then(|size| size.parse::<u64>().ok()) else {
            return Err(io::Error::other(format!("git says `{}`", head.trim_end())));
        };
        if size > MAX_BYTES as u64 {
            let limit = MAX_BYTES >> 20;
            return Err(io::Error::other(format!("it is larger than {limit} MiB")));
        }
        let mut bytes = Vec::new();
        (&mut self.answers).take(size + 1).read_to_end(&mut bytes)?;
        if bytes.pop().is_none() || bytes.len() as u64 != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes)
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        // It only reads, so nothing is lost.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The program git, with messages in English.
fn git() -> Command {
    let mut command = Command::new("git");
    command.env("LC_ALL", "C").env("GIT_OPTIONAL_LOCKS", "0");
    command
}

/// Runs git: whether it succeeded, and both outputs.
fn run(arguments: &[OsString]) -> Result<(bool, String, String), Failure> {
    let output =
        git().args(arguments).stdin(Stdio::null()).output().map_err(|error| missing(&error))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.success(), text(&output.stdout), text(&output.stderr)))
}

fn missing(error: &io::Error) -> Failure {
    Failure::new(
        format!("cannot run the program git: {error}"),
        "install git, or compare two folders",
    )
}
