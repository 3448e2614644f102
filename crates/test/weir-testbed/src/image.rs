//! Container images, written from scratch as archives that `ctr images import` and `docker load` read.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
};

use sha2::{Digest, Sha256};

use crate::{TestbedError, error::Context};

/// The contents of an image.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The name with its tag, for example `localhost/weir:0.1.0`.
    pub name: String,
    /// The files: the path in the image, and the path of the file to copy.
    pub files: BTreeMap<String, PathBuf>,
    /// Symbolic links: the path in the image, and the target.
    pub links: BTreeMap<String, String>,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// The user and group, for example `65532:65532`.
    pub user: String,
}

impl Image {
    /// Writes the image as a docker archive. Equal contents give equal bytes.
    pub fn write(&self, archive: &Path) -> Result<(), TestbedError> {
        let layer = self.layer()?;
        let diff = hex(&layer);
        let config = self.config(&diff);
        let config_name = format!("{}.json", hex(config.as_bytes()));
        let layer_name = format!("{diff}/layer.tar");
        let manifest = format!(
            r#"[{{"Config":"{config_name}","RepoTags":["{}"],"Layers":["{layer_name}"]}}]"#,
            self.name
        );
        let out = fs::File::create(archive);
        let out = out.context(|| format!("cannot create {}", archive.display()))?;
        let mut tar = tar::Builder::new(io::BufWriter::new(out));
        append(&mut tar, &config_name, config.as_bytes(), 0o644)?;
        append(&mut tar, &layer_name, &layer, 0o644)?;
        append(&mut tar, "manifest.json", manifest.as_bytes(), 0o644)?;
        tar.into_inner()?.flush()?;
        Ok(())
    }

    fn layer(&self) -> Result<Vec<u8>, TestbedError> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, from) in &self.files {
            let bytes = fs::read(from).context(|| format!("cannot read {}", from.display()))?;
            append(&mut tar, path.trim_start_matches('/'), &bytes, 0o755)?;
        }
        for (path, target) in &self.links {
            let mut header = header(0, 0o777);
            header.set_entry_type(tar::EntryType::Symlink);
            tar.append_link(&mut header, path.trim_start_matches('/'), target)?;
        }
        Ok(tar.into_inner()?)
    }

    fn config(&self, diff: &str) -> String {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let words: Vec<String> = self.entrypoint.iter().map(|word| format!("{word:?}")).collect();
        format!(
            r#"{{"architecture":"{architecture}","os":"linux","config":{{"User":"{}","Entrypoint":[{}],"Env":["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}},"rootfs":{{"type":"layers","diff_ids":["sha256:{diff}"]}}}}"#,
            self.user,
            words.join(",")
        )
    }

    /// Adds a program at a path, with its libraries at their own paths.
    pub fn add_program(&mut self, path: &str, program: &Path) -> Result<(), TestbedError> {
        for library in libraries_of(program)? {
            self.files.insert(library.display().to_string(), library);
        }
        self.files.insert(path.to_owned(), program.to_path_buf());
        Ok(())
    }
}

/// The shared libraries of a program, with the dynamic linker. None for a static program.
pub fn libraries_of(program: &Path) -> Result<Vec<PathBuf>, TestbedError> {
    let output = Command::new("ldd").arg(program).output();
    let output = output.context(|| "cannot run ldd".into())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.lines().filter_map(|line| {
        let path = line.split_once("=> ").map_or(line, |(_, path)| path);
        path.split_whitespace().next().filter(|path| path.starts_with('/'))
    });
    Ok(words.map(PathBuf::from).collect())
}

fn append(
    tar: &mut tar::Builder<impl Write>,
    path: &str,
    bytes: &[u8],
    mode: u32,
) -> io::Result<()> {
    tar.append_data(&mut header(bytes.len() as u64, mode), path, bytes)
}

/// A header without the time and owner of a file on this machine.
fn header(size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_give_equal_archives() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, "contents").unwrap();
        let image = Image {
            name: "localhost/test:1".into(),
            files: [("/usr/bin/program".into(), program)].into(),
            links: [("/bin".into(), "usr/bin".into())].into(),
            entrypoint: vec!["/usr/bin/program".into(), "wait".into()],
            user: "65532:65532".into(),
        };
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        image.write(&first).unwrap();
        image.write(&second).unwrap();
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
        let output = Command::new("tar").arg("-tf").arg(&first).output().unwrap();
        let names = String::from_utf8(output.stdout).unwrap();
        assert_eq!(names.lines().last(), Some("manifest.json"), "{names}");
    }

    #[test]
    fn a_dynamic_program_brings_its_libraries() {
        let libraries = libraries_of(Path::new("/bin/sh")).unwrap();
        let names: Vec<_> = libraries.iter().filter_map(|path| path.file_name()).collect();
        assert!(names.iter().any(|name| name.to_string_lossy().starts_with("libc.")), "{names:?}");
    }
}
