use std::{
    ffi::OsStr,
    fs::File,
    io,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
};

/// Starts a program and reads standard input until the test process closes it, also by crashing. Then it
/// kills the program by its id and removes the folder, if one is given and does not contain `keep`.
const WATCHDOG: &str = r#"
folder=$1 log=$2; shift 2
"$@" >>"$log" 2>&1 </dev/null &
child=$!
exec 3<&0
(read -r _ <&3; kill -9 $child 2>/dev/null) &
watch=$!
wait $child
status=$?
kill $watch 2>/dev/null
if test -n "$folder" && ! rm "$folder/keep" 2>/dev/null; then rm -rf -- "$folder"; fi
exit $status
"#;

/// A program that ends with the test process.
#[derive(Debug)]
pub(crate) struct Process {
    shell: Child,
    hold: Option<ChildStdin>,
}

impl Process {
    /// Starts a program with its output in a log. `remove` is a folder to remove when it has ended.
    pub(crate) fn start(
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        log: &Path,
        remove: Option<&Path>,
    ) -> io::Result<Self> {
        File::create(log)?;
        let mut shell = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(remove.unwrap_or(Path::new("")))
            .arg(log)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let hold = shell.stdin.take();
        Ok(Process { shell, hold })
    }

    /// Stops the program. Its folder stays this time.
    pub(crate) fn stop_and_keep_folder(self, folder: &Path) {
        _ = File::create(folder.join("keep"));
        drop(self);
    }

    /// Whether the program has exited.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.shell.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.hold = None;
        _ = self.shell.wait();
    }
}
