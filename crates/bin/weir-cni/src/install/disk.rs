use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
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
    let mut file = File::create(path)?;
    match permission {
        Permission::Program => file.set_permissions(Permissions::from_mode(0o755))?,
        Permission::Like(other) => {
            let other = fs::metadata(other)?;
            chown(path, Some(other.uid()), Some(other.gid()))?;
            file.set_permissions(other.permissions())?;
        }
    }
    file.write_all(bytes)?;
    file.sync_all()
}
