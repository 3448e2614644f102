use std::{
    ffi::OsStr,
    fs::File,
    io,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
};

/// Starts a program and waits until whoever holds the other end of the standard input lets go of it, be it by dying. Then the
/// program is ended by its id, and the folder that is named goes.
const WATCHMAN: &str = r#"
folder=$1 log=$2; shift 2
"$@" >>"$log" 2>&1 </dev/null &
child=$!
exec 3<&0
(read -r _ <&3; kill -9 $child 2>/dev/null) &
watch=$!
wait $child
status=$?
kill $watch 2>/dev/null
if test -n "$folder"; then rm -rf -- "$folder"; fi
exit $status
"#;

/// A program that ends with us.
#[derive(Debug)]
pub(crate) struct Process {
    shell: Child,
    hold: Option<ChildStdin>,
}

impl Process {
    /// Starts a program whose output goes to a log; `remove` is a folder that goes when it has ended.
    pub(crate) fn start(
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        log: &Path,
        remove: Option<&Path>,
    ) -> io::Result<Self> {
        File::create(log)?;
        let mut shell = Command::new("sh")
            .args(["-c", WATCHMAN, "watchman"])
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

    /// Whether it has ended by itself.
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
