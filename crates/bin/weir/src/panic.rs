//! The reaction to a defect of the program.

use std::{panic, process};

/// Makes a panic in any thread end the process, after the message. A thread that ends alone would
/// leave an agent that seems healthy but no longer serves HTTP or reports drops. The kubelet
/// restarts a process that ends, and the rules stay in force meanwhile.
pub(crate) fn abort_on_panic() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command, thread, time::Duration};

    use super::*;

    const IN_CHILD: &str = "WEIR_TEST_PANIC_IN_THREAD";

    #[test]
    fn a_panic_in_a_thread_ends_the_process() {
        if env::var_os(IN_CHILD).is_some() {
            abort_on_panic();
            thread::spawn(|| assert!(env::args().count() == 0, "a defect"));
            thread::sleep(Duration::from_secs(60));
            // This status means that the process survived.
            process::exit(0);
        }
        let test = "panic::tests::a_panic_in_a_thread_ends_the_process";
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", test, "--nocapture"]).env(IN_CHILD, "1");
        let output = child.output().unwrap();
        assert!(!output.status.success(), "{:?}", output.status);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("a defect"), "{message}");
    }
}
