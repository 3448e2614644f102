//! Adding ourselves to the network configuration of a node, and removing what was added.
//!
//! *Invariant*: a runtime that looks at any moment finds a configuration that works, with this plugin or without.
//!
//! *Invariant*: a file that makes no sense to us is left as it is.

mod conflist;
mod disk;
mod options;
mod turn;
mod watch;

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use crate::Failure;
use conflist::{Kind, Reason};
use options::Options;

/// The name of the program in the folder of plugins.
const NAME: &str = "weir-cni";
/// What the name of a file that is kept ends with. Runtimes do not read such files.
const KEPT: &str = "weir-backup";
/// How long those who watch may take to end: as long as a pod has by default.
const PATIENCE: Duration = Duration::from_secs(30);

/// Copies the program to the folder of plugins, and adds it to the first configuration; once, or for as long as it runs.
pub(crate) fn install(arguments: &[String], talk: &mut dyn Write) -> Result<(), Failure> {
    let options = Options::read(arguments)?;
    if let Some(end) = options.watch {
        return watch::watch(&options, end, talk);
    }
    place_program(&options, talk)?;
    add_plugin(&options, talk)
}

/// Removes this plugin from every configuration, and the program, when nobody watches them any more.
pub(crate) fn uninstall(arguments: &[String], talk: &mut dyn Write) -> Result<(), Failure> {
    uninstall_within(&Options::read(arguments)?, PATIENCE, talk)
}

fn uninstall_within(
    options: &Options,
    patience: Duration,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let _turn = turn::to_remove(&options.conf_dir, patience)?;
    remove_everything(options, talk)
}

fn place_program(options: &Options, talk: &mut dyn Write) -> Result<(), Failure> {
    let program = options.bin_dir.join(NAME);
    match copy_program(&program).map_err(|error| failed("copy the program to", &program, &error))? {
        true => writeln!(talk, "copied the program to {}", program.display())?,
        false => writeln!(talk, "the program is at {}", program.display())?,
    }
    Ok(())
}

fn add_plugin(options: &Options, talk: &mut dyn Write) -> Result<(), Failure> {
    for path in configurations(&options.conf_dir)? {
        let text = read(&path)?;
        match add(&path, &text, &options.plugin) {
            Ok(done) => {
                writeln!(talk, "{done}")?;
                return Ok(());
            }
            Err(Trouble::Senseless(why)) => {
                writeln!(talk, "warning: {} is left alone: {why}", path.display())?;
            }
            Err(Trouble::Failure(failure)) => return Err(failure),
        }
    }
    Err(Failure {
        what: format!("there is no network configuration in {} yet", options.conf_dir.display()),
        hint: "run this again when the plugin that makes interfaces is installed".into(),
        status: 1,
    })
}

fn remove_everything(options: &Options, talk: &mut dyn Write) -> Result<(), Failure> {
    for path in configurations(&options.conf_dir)? {
        if let Ok(Some(text)) = conflist::without(&read(&path)?) {
            let done = remove(&path, &text)?;
            writeln!(talk, "{done}")?;
        }
    }
    let program = options.bin_dir.join(NAME);
    if !options.keep_binary && program.exists() {
        fs::remove_file(&program).map_err(|error| failed("remove", &program, &error))?;
        writeln!(talk, "removed {}", program.display())?;
    }
    Ok(())
}

/// Why a configuration was not changed.
enum Trouble {
    /// It makes no sense to us.
    Senseless(String),
    Failure(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Trouble::Failure(failure)
    }
}

impl From<Reason> for Trouble {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Senseless(why) => Trouble::Senseless(why),
            Reason::Version(version) => Trouble::Failure(Failure::new(
                format!("the configuration that comes first has CNI version {version}"),
                "chained plugins need version 0.3.1 or later; nothing was changed",
            )),
        }
    }
}

/// Adds the plugin to a file. Tells what was done.
fn add(path: &Path, text: &str, plugin: &Value) -> Result<String, Trouble> {
    match Kind::of(path) {
        Kind::List => {
            let Some(new) = conflist::with(text, plugin)? else {
                return Ok(format!("{} has the plugin", path.display()));
            };
            if !conflist::has(text) {
                write(&kept(path), text, path)?;
            }
            write(path, &new, path)?;
            Ok(format!("added the plugin to {}", path.display()))
        }
        Kind::Single => {
            let new = conflist::converted(text, Some(plugin))?;
            let list = path.with_extension("conflist");
            if list.exists() && !conflist::has(&read(&list)?) {
                let what = format!("{} comes before {}", path.display(), list.display());
                let hint = "remove one of the two: they would have one name";
                return Err(Failure::new(what, hint).into());
            }
            write(&list, &new, path)?;
            // The single plugin comes first until it is moved aside.
            let kept = kept(path);
            fs::rename(path, &kept).map_err(|error| failed("move", path, &error))?;
            Ok(format!("made {} of {}", list.display(), path.display()))
        }
    }
}

/// Makes a file what it is without the plugin, or what it was before if that says the same.
fn remove(path: &Path, text: &str) -> Result<String, Failure> {
    for extension in ["conf", "json"] {
        let single = path.with_extension(extension);
        let kept = kept(&single);
        let Ok(before) = fs::read_to_string(&kept) else { continue };
        if !conflist::converted(&before, None).is_ok_and(|list| conflist::is_same(&list, text)) {
            continue;
        }
        // One that somebody wrote since counts, and comes first.
        match single.exists() {
            true => fs::remove_file(&kept),
            false => fs::rename(&kept, &single),
        }
        .map_err(|error| failed("restore", &single, &error))?;
        fs::remove_file(path).map_err(|error| failed("remove", path, &error))?;
        return Ok(format!("restored {}", single.display()));
    }
    let kept = kept(path);
    let before = fs::read_to_string(&kept).ok();
    let same = before.filter(|before| conflist::is_same(before, text));
    write(path, same.as_deref().unwrap_or(text), path)?;
    if kept.exists() {
        fs::remove_file(&kept).map_err(|error| failed("remove", &kept, &error))?;
    }
    Ok(match same {
        Some(_) => format!("restored {}", path.display()),
        None => format!("removed the plugin from {}", path.display()),
    })
}

/// The configurations in the order in which runtimes look at them.
fn configurations(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| failed("list", folder, &error))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| failed("list", folder, &error))?.path();
        let is_one =
            path.extension().is_some_and(|e| ["conf", "conflist", "json"].iter().any(|x| e == *x));
        if is_one && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn copy_program(to: &Path) -> io::Result<bool> {
    let own = fs::read("/proc/self/exe")?;
    if fs::read(to).is_ok_and(|there| there == own) {
        return Ok(false);
    }
    disk::write(to, &own, disk::Rights::Program)?;
    Ok(true)
}

fn kept(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(KEPT);
    name.into()
}

fn read(path: &Path) -> Result<String, Failure> {
    // What is no text makes no sense, and is told apart later.
    let bytes = fs::read(path).map_err(|error| failed("read", path, &error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn write(path: &Path, text: &str, like: &Path) -> Result<(), Failure> {
    disk::write(path, text.as_bytes(), disk::Rights::Like(like))
        .map_err(|error| failed("write", path, &error))
}

fn failed(verb: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        format!("cannot {verb} {}: {error}", path.display()),
        "run it as root, with the two folders of the host; nothing is left half done",
    )
}

#[cfg(test)]
mod tests;
