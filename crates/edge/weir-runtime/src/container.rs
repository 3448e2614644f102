use std::{fs, io};

/// The PID namespace of this process, such as `pid:[4026531836]`. Linux has no other name for a
/// container that the processes in it can read, and that no two containers share.
pub fn pid_namespace() -> io::Result<String> {
    let link = fs::read_link("/proc/self/ns/pid")?;
    Ok(link.to_string_lossy().into_owned())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_has_a_name() {
        let name = pid_namespace().unwrap();
        assert!(name.starts_with("pid:["), "{name}");
    }
}
