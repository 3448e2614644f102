use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::Path,
    process,
};

/// The permissions of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Permission<'r> {
    /// Executable by everyone.
    Program,
    /// Owner and mode of another file.
    Like(&'r Path),
}

/// Writes a file atomically. A symbolic link keeps pointing to it.
pub(crate) fn write(path: &Path, bytes: &[u8], permission: Permission<'_>) -> io::Result<()> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", process::id()));
    let written = fill(&temporary, bytes, permission).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        // Report the first error, not one of the cleanup.
        _ = fs::remove_file(&temporary);
    }
    written?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn fill(path: &Path, bytes: &[u8], permission: Permission<'_>) -> io::Result<()> {
    // A process with the same id may have left one behind.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    // Only root can open the file until it has its owner and mode.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    match permission {
        Permission::Program => file.set_permissions(Permissions::from_mode(0o755))?,
        Permission::Like(other) => {
            let other = fs::metadata(other)?;
            fchown(&file, Some(other.uid()), Some(other.gid()))?;
            file.set_permissions(other.permissions())?;
        }
    }
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_never_see_a_file_before_it_has_its_mode() {
        let disk = tempfile::tempdir().unwrap();
        let (path, missing) = (disk.path().join("file"), disk.path().join("missing"));
        // The file exists, but cannot get an owner and a mode.
        assert!(fill(&path, b"secret", Permission::Like(&missing)).is_err());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fill(&path, b"program", Permission::Program).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o755);
    }
}
