//! Adds the plugin to the network configuration of a node, and removes it.
//!
//! *Invariant*: a runtime finds a working configuration at any moment, with this plugin or without.
//!
//! *Invariant*: an invalid configuration is never changed.

mod conflist;
mod disk;
mod lock;
mod options;
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

/// The name of the program in the plugin folder.
const NAME: &str = "weir-cni";
/// The suffix of backup files. Runtimes ignore such files.
const BACKUP_SUFFIX: &str = "weir-backup";
/// The time that `install --watch` may take to end: the default grace period of a pod.
const WATCHER_TIMEOUT: Duration = Duration::from_secs(30);

/// Copies the program to the plugin folder and adds it to the first configuration; with `--watch`
/// again and again.
pub(crate) fn install(arguments: &[String], messages: &mut dyn Write) -> Result<(), Failure> {
    let options = Options::parse(arguments)?;
    if let Some(end) = options.watch {
        return watch::watch(&options, end, messages);
    }
    place_program(&options, messages)?;
    add_plugin(&options, messages)
}

/// Removes the plugin from every configuration, and the program, once no `install --watch` runs.
pub(crate) fn uninstall(arguments: &[String], messages: &mut dyn Write) -> Result<(), Failure> {
    uninstall_within(&Options::parse(arguments)?, WATCHER_TIMEOUT, messages)
}

fn uninstall_within(
    options: &Options,
    timeout: Duration,
    messages: &mut dyn Write,
) -> Result<(), Failure> {
    let _lock = lock::exclusive(&options.conf_dir, timeout)?;
    remove_everything(options, messages)
}

fn place_program(options: &Options, messages: &mut dyn Write) -> Result<(), Failure> {
    let program = options.bin_dir.join(NAME);
    let is_new =
        copy_program(&program).map_err(|error| failed("copy the program to", &program, &error))?;
    let done = if is_new { "copied the program to" } else { "the program is at" };
    writeln!(messages, "{done} {}", program.display())?;
    Ok(())
}

fn add_plugin(options: &Options, messages: &mut dyn Write) -> Result<(), Failure> {
    for path in configurations(&options.conf_dir)? {
        let text = read_config(&path)?;
        match add(&path, &text, &options.plugin) {
            Ok(done) => {
                writeln!(messages, "{done}")?;
                return Ok(());
            }
            Err(Trouble::Invalid(why)) => {
                writeln!(messages, "warning: skipped {}: {why}", path.display())?;
            }
            Err(Trouble::Failure(failure)) => return Err(failure),
        }
    }
    Err(Failure {
        what: format!("there is no network configuration in {} yet", options.conf_dir.display()),
        hint: "run this again after the network plugin is installed".into(),
        status: 1,
    })
}

fn remove_everything(options: &Options, messages: &mut dyn Write) -> Result<(), Failure> {
    for path in configurations(&options.conf_dir)? {
        if let Ok(Some(text)) = conflist::without(&read_config(&path)?) {
            let done = remove(&path, &text)?;
            writeln!(messages, "{done}")?;
        }
    }
    let program = options.bin_dir.join(NAME);
    if !options.keep_binary && program.exists() {
        fs::remove_file(&program).map_err(|error| failed("remove", &program, &error))?;
        writeln!(messages, "removed {}", program.display())?;
    }
    Ok(())
}

/// Why a configuration was not changed.
enum Trouble {
    /// It is invalid.
    Invalid(String),
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
            Reason::Invalid(why) => Trouble::Invalid(why),
            Reason::Version(version) => Trouble::Failure(Failure::new(
                format!("the first configuration has CNI version {version}"),
                "chained plugins need version 0.3.1 or later; nothing was changed",
            )),
        }
    }
}

/// Adds the plugin to a file. Returns a message about the change.
fn add(path: &Path, text: &str, plugin: &Value) -> Result<String, Trouble> {
    match Kind::from_path(path) {
        Kind::List => {
            let Some(new) = conflist::with(text, plugin)? else {
                return Ok(format!("{} has the plugin", path.display()));
            };
            if !conflist::has(text) {
                write_config(&backup(path), text, path)?;
            }
            write_config(path, &new, path)?;
            Ok(format!("added the plugin to {}", path.display()))
        }
        Kind::Single => {
            let new = conflist::converted(text, Some(plugin))?;
            let list = path.with_extension("conflist");
            if list.exists() && !conflist::has(&read_config(&list)?) {
                let what = format!("{} comes before {}", path.display(), list.display());
                let hint = "remove one of them: both would become the same file";
                return Err(Failure::new(what, hint).into());
            }
            write_config(&list, &new, path)?;
            // Runtimes prefer the single plugin until it is renamed.
            let backup = backup(path);
            fs::rename(path, &backup).map_err(|error| failed("move", path, &error))?;
            Ok(format!("converted {1} to {0}", list.display(), path.display()))
        }
    }
}

/// Removes the plugin from a file. Restores the backup if that has the same content.
fn remove(path: &Path, text: &str) -> Result<String, Failure> {
    for extension in ["conf", "json"] {
        let single = path.with_extension(extension);
        let backup = backup(&single);
        let Ok(before) = fs::read_to_string(&backup) else { continue };
        if !conflist::converted(&before, None).is_ok_and(|list| conflist::is_same(&list, text)) {
            continue;
        }
        // A file that was written since takes precedence over the backup.
        let restored =
            if single.exists() { fs::remove_file(&backup) } else { fs::rename(&backup, &single) };
        restored.map_err(|error| failed("restore", &single, &error))?;
        fs::remove_file(path).map_err(|error| failed("remove", path, &error))?;
        return Ok(format!("restored {}", single.display()));
    }
    let backup = backup(path);
    let before = fs::read_to_string(&backup).ok();
    let same = before.filter(|before| conflist::is_same(before, text));
    write_config(path, same.as_deref().unwrap_or(text), path)?;
    if backup.exists() {
        fs::remove_file(&backup).map_err(|error| failed("remove", &backup, &error))?;
    }
    Ok(match same {
        Some(_) => format!("restored {}", path.display()),
        None => format!("removed the plugin from {}", path.display()),
    })
}

/// The configurations, in the order in which runtimes read them.
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
    disk::write(to, &own, disk::Permission::Program)?;
    Ok(true)
}

fn backup(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(BACKUP_SUFFIX);
    name.into()
}

/// Reads a configuration file. Text that is not UTF-8 fails to parse later.
fn read_config(path: &Path) -> Result<String, Failure> {
    let bytes = fs::read(path).map_err(|error| failed("read", path, &error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn write_config(path: &Path, text: &str, like: &Path) -> Result<(), Failure> {
    disk::write(path, text.as_bytes(), disk::Permission::Like(like))
        .map_err(|error| failed("write", path, &error))
}

fn failed(verb: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        format!("cannot {verb} {}: {error}", path.display()),
        "run it as root, with the two folders of the host; no file was left half written",
    )
}

#[cfg(test)]
mod tests;
