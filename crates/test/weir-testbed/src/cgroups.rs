//! The cgroups of nodes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    TestbedError,
    error::Context,
    namespaces::{READY_TIMEOUT, await_value},
};

/// Joins cgroups, enters a new cgroup namespace, joins others, then runs a command.
const LAUNCH: &str = r#"
while test "$1" != --; do echo $$ >"$1/cgroup.procs" || exit; shift; done
shift
exec unshare --cgroup sh -c "$JOIN" join "$@""#;
/// Joins cgroups, then runs a command.
const JOIN: &str = r#"
while test "$1" != --; do echo $$ >"$1/cgroup.procs" || exit; shift; done
shift
exec "$@""#;

/// The cgroups of a node.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    /// The root of the node in each hierarchy.
    roots: Vec<PathBuf>,
    /// In the unified hierarchy, a cgroup with processes cannot give controllers to its children. So the
    /// processes of the node join this child of the root.
    init: Option<PathBuf>,
}

impl Cgroups {
    /// Creates the cgroups of a node, after removing those of its last life. The kernel has either one
    /// hierarchy (version 2) or one for each controller.
    pub(crate) fn create(testbed: &str, node: &str) -> Result<Self, TestbedError> {
        let root = Path::new("/sys/fs/cgroup");
        if root.join("cgroup.controllers").exists() {
            let of_testbed = root.join(testbed);
            let of_node = of_testbed.join(node);
            remove(&of_node)?;
            let init = of_node.join("init");
            fs::create_dir_all(&init).context(|| format!("cannot create {}", init.display()))?;
            for folder in [root, &of_testbed] {
                enable_controllers(folder)?;
            }
            return Ok(Cgroups { roots: vec![of_node], init: Some(init) });
        }
        let mut roots = Vec::new();
        for hierarchy in fs::read_dir(root).context(|| "cannot read /sys/fs/cgroup".into())? {
            let hierarchy = hierarchy?;
            let path = hierarchy.path();
            // Links are second names; a unified hierarchy beside the others has no controllers.
            if hierarchy.file_type()?.is_symlink() || !path.join("notify_on_release").exists() {
                continue;
            }
            remove(&path.join(testbed).join(node))?;
            let mut parent = path;
            for name in [testbed, node] {
                let child = parent.join(name);
                fs::create_dir_all(&child)
                    .context(|| format!("cannot create {}", child.display()))?;
                // A new cpuset is empty and admits no process.
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    if let Ok(value) = fs::read(parent.join(file)) {
                        fs::write(child.join(file), value)?;
                    }
                }
                parent = child;
            }
            roots.push(parent);
        }
        Ok(Cgroups { roots, init: None })
    }

    /// A command that becomes the first process of the node.
    pub(crate) fn launch(&self, of: &Command) -> Command {
        let mut command = Command::new("sh");
        command.env("JOIN", JOIN).args(["-c", LAUNCH, "launch"]).args(&self.roots).arg("--");
        command.args(&self.init).arg("--").arg(of.get_program()).args(of.get_args());
        command
    }

    /// A command that runs in the cgroups of the running node.
    pub(crate) fn join(&self, of: &Command) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", JOIN, "join"]);
        match &self.init {
            Some(init) => command.arg(init),
            None => command.args(&self.roots),
        };
        command.arg("--").arg(of.get_program()).args(of.get_args());
        command
    }
}

/// Gives the children of a cgroup all controllers.
fn enable_controllers(folder: &Path) -> Result<(), TestbedError> {
    let controllers = fs::read_to_string(folder.join("cgroup.controllers"))?;
    for controller in controllers.split_whitespace() {
        // Some, for example those for real-time processes, cannot be given.
        _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"));
    }
    Ok(())
}

/// Removes a cgroup and its children. A dying process keeps its cgroup for a moment.
fn remove(cgroup: &Path) -> Result<(), TestbedError> {
    if !cgroup.exists() {
        return Ok(());
    }
    let what = format!("the processes of {} to end, {READY_TIMEOUT:?}", cgroup.display());
    await_value(&what, || {
        let mut find = Command::new("find");
        find.arg(cgroup).args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"]);
        _ = find.stderr(std::process::Stdio::null()).status();
        (!cgroup.exists()).then_some(())
    })
}
