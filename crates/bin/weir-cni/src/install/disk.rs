use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
    process,
};

/// Who may do what with a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rights<'r> {
    /// Everybody may run it.
    Program,
    /// As with another file.
    Like(&'r Path),
}

/// Puts a file in place, whole or not at all. A link stays a link to it.
pub(crate) fn write(path: &Path, bytes: &[u8], rights: Rights<'_>) -> io::Result<()> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}.tmp", process::id()));
    let written = fill(&beside, bytes, rights).and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        // The error that matters is the first one.
        _ = fs::remove_file(&beside);
    }
    written?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn fill(path: &Path, bytes: &[u8], rights: Rights<'_>) -> io::Result<()> {
    let mut file = File::create(path)?;
    match rights {
        Rights::Program => file.set_permissions(Permissions::from_mode(0o755))?,
        Rights::Like(other) => {
            let other = fs::metadata(other)?;
            chown(path, Some(other.uid()), Some(other.gid()))?;
            file.set_permissions(other.permissions())?;
        }
    }
    file.write_all(bytes)?;
    file.sync_all()
}
