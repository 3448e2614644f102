//! Archives whose bytes depend on their contents alone.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// The files of an archive, by path.
#[derive(Clone, Default)]
pub(crate) struct Entries {
    prefix: &'static str,
    files: BTreeMap<String, (Vec<u8>, u32)>,
}

impl Entries {
    /// An archive with one folder that contains everything.
    pub(crate) fn below(prefix: &'static str) -> Self {
        Entries { prefix, ..Entries::default() }
    }

    /// Adds a file with its mode.
    pub(crate) fn add(&mut self, path: &str, bytes: Vec<u8>, mode: u32) {
        let path = match self.prefix {
            "" => path.to_owned(),
            prefix => format!("{prefix}/{path}"),
        };
        self.files.insert(path, (bytes, mode));
    }

    /// Adds the files of a folder and of its subfolders.
    pub(crate) fn add_folder(&mut self, folder: &Path) -> Result<()> {
        let mut folders = vec![folder.to_path_buf()];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(&next)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let mode = fs::metadata(&path)?.permissions().mode();
                let mode = if mode & 0o100 != 0 { 0o755 } else { 0o644 };
                let name = path.strip_prefix(folder)?.display().to_string();
                self.add(&name, fs::read(&path)?, mode);
            }
        }
        Ok(())
    }

    /// Writes the archive, compressed.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, (bytes, mode)) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(*mode);
            header.set_mtime(0);
            header.set_uid(0);
            header.set_gid(0);
            tar.append_data(&mut header, path, &bytes[..])?;
        }
        compress(&tar.into_inner()?, file)
    }
}

/// Writes bytes, compressed with gzip and without a name and a time.
pub(crate) fn compress(bytes: &[u8], file: &Path) -> Result<()> {
    let out =
        fs::File::create(file).with_context(|| format!("cannot create {}", file.display()))?;
    let mut gzip = Command::new("gzip");
    gzip.args(["-9", "--no-name", "--stdout"]).stdin(Stdio::piped()).stdout(out);
    let mut gzip = gzip.spawn().context("cannot run gzip")?;
    gzip.stdin.take().context("the input is piped")?.write_all(bytes)?;
    if !gzip.wait()?.success() {
        bail!("gzip failed for {}", file.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_give_equal_archives() {
        let folder = tempfile::tempdir().unwrap();
        let chart = folder.path().join("chart/templates");
        fs::create_dir_all(&chart).unwrap();
        fs::write(chart.join("a.yaml"), "a").unwrap();
        let write = |name: &str| {
            let mut entries = Entries::below("weir");
            entries.add_folder(&folder.path().join("chart")).unwrap();
            entries.add("b", b"b".to_vec(), 0o755);
            let file = folder.path().join(name);
            entries.write(&file).unwrap();
            file
        };
        let first = write("first.tgz");
        fs::write(chart.join("a.yaml"), "a").unwrap();
        assert_eq!(fs::read(&first).unwrap(), fs::read(write("second.tgz")).unwrap());
        let output = Command::new("tar").arg("-tvzf").arg(&first).output().unwrap();
        let listing = String::from_utf8(output.stdout).unwrap();
        assert!(listing.contains("weir/templates/a.yaml"), "{listing}");
        assert!(listing.contains("-rwxr-xr-x 0/0"), "{listing}");
    }
}
