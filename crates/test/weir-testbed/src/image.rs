//! Container images, written from scratch as archives that `ctr images import` and `docker load` read.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{TestbedError, error::Context};

/// The processor that an image is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// 64-bit Arm.
    Arm64,
}

impl Architecture {
    /// Its name in Kubernetes, in images and in Debian.
    pub fn as_str(self) -> &'static str {
        match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
        }
    }
}

impl Default for Architecture {
    /// The processor of this machine.
    fn default() -> Self {
        if cfg!(target_arch = "aarch64") { Architecture::Arm64 } else { Architecture::Amd64 }
    }
}

/// The contents of an image.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The name with its tag, for example `localhost/weir:0.1.0`.
    pub name: String,
    /// The processor.
    pub architecture: Architecture,
    /// The files: the path in the image, and the path of the file to copy. A file that its owner may
    /// execute has the mode 0755 in the image, others have 0644.
    pub files: BTreeMap<String, PathBuf>,
    /// Symbolic links: the path in the image, and the target.
    pub links: BTreeMap<String, String>,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// The user and group, for example `65532:65532`.
    pub user: String,
    /// Labels, which are also the annotations of the manifest.
    pub labels: BTreeMap<String, String>,
}

/// The media types of an OCI layout.
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

impl Image {
    /// Writes the image as a docker archive. Equal contents give equal bytes.
    pub fn write(&self, archive: &Path) -> Result<(), TestbedError> {
        let layer = self.layer()?;
        let diff = sha256(&layer);
        let config = self.config(&diff);
        let config_name = format!("{}.json", sha256(config.as_bytes()));
        let layer_name = format!("{diff}/layer.tar");
        let manifest =
            json!([{"Config": config_name, "RepoTags": [self.name], "Layers": [layer_name]}]);
        let out = fs::File::create(archive);
        let out = out.context(|| format!("cannot create {}", archive.display()))?;
        let mut tar = tar::Builder::new(io::BufWriter::new(out));
        append(&mut tar, &config_name, config.as_bytes(), 0o644)?;
        append(&mut tar, &layer_name, &layer, 0o644)?;
        append(&mut tar, "manifest.json", manifest.to_string().as_bytes(), 0o644)?;
        tar.into_inner()?.flush()?;
        Ok(())
    }

    /// Adds the image to an OCI layout, and returns the descriptor of its manifest.
    fn add_to_layout(&self, folder: &Path) -> Result<Value, TestbedError> {
        let layer = self.layer()?;
        let config = self.config(&sha256(&layer));
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": add_blob(folder, CONFIG_TYPE, config.as_bytes())?,
            "layers": [add_blob(folder, LAYER_TYPE, &layer)?],
            "annotations": self.labels,
        });
        let mut descriptor = add_blob(folder, MANIFEST_TYPE, manifest.to_string().as_bytes())?;
        descriptor["platform"] = json!({"architecture": self.architecture.as_str(), "os": "linux"});
        Ok(descriptor)
    }

    fn layer(&self) -> Result<Vec<u8>, TestbedError> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, from) in &self.files {
            let context = || format!("cannot read {}", from.display());
            let mode = fs::metadata(from).context(context)?.permissions().mode();
            let mode = if mode & 0o100 != 0 { 0o755 } else { 0o644 };
            let bytes = fs::read(from).context(context)?;
            append(&mut tar, path.trim_start_matches('/'), &bytes, mode)?;
        }
        for (path, target) in &self.links {
            let mut header = header(0, 0o777);
            header.set_entry_type(tar::EntryType::Symlink);
            tar.append_link(&mut header, path.trim_start_matches('/'), target)?;
        }
        Ok(tar.into_inner()?)
    }

    fn config(&self, diff: &str) -> String {
        json!({
            "architecture": self.architecture.as_str(),
            "os": "linux",
            "config": {
                "User": self.user,
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "Labels": self.labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff}")]},
        })
        .to_string()
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

/// Writes images of one name as an OCI layout in a new folder: one index, with one manifest for each
/// processor. Returns the digest of the index. Equal contents give equal digests.
pub fn write_layout(images: &[Image], folder: &Path) -> Result<String, TestbedError> {
    let context = || format!("cannot create {}", folder.display());
    fs::create_dir(folder).context(context)?;
    fs::create_dir_all(folder.join("blobs/sha256")).context(context)?;
    let manifests: Result<Vec<Value>, TestbedError> =
        images.iter().map(|image| image.add_to_layout(folder)).collect();
    let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests?});
    let mut descriptor = add_blob(folder, INDEX_TYPE, index.to_string().as_bytes())?;
    let digest = descriptor["digest"].as_str().unwrap_or_default().to_owned();
    let name = images.first().map_or("", |image| &image.name);
    let tag = name.rsplit_once(':').map_or(name, |(_, tag)| tag);
    descriptor["annotations"] =
        json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
    let top = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [descriptor]});
    for (file, content) in
        [("index.json", top), ("oci-layout", json!({"imageLayoutVersion": "1.0.0"}))]
    {
        fs::write(folder.join(file), content.to_string()).context(context)?;
    }
    Ok(digest)
}

/// Adds a blob to an OCI layout, and returns its descriptor.
fn add_blob(folder: &Path, media_type: &str, bytes: &[u8]) -> Result<Value, TestbedError> {
    let hash = sha256(bytes);
    let path = folder.join("blobs/sha256").join(&hash);
    fs::write(&path, bytes).context(|| format!("cannot write {}", path.display()))?;
    Ok(json!({"mediaType": media_type, "digest": format!("sha256:{hash}"), "size": bytes.len()}))
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

/// The SHA-256 checksum in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image of one executable file, whose content is in the folder.
    fn image(folder: &Path) -> Image {
        let program = folder.join("program");
        fs::write(&program, "contents").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        Image {
            name: "localhost/test:1".into(),
            architecture: Architecture::Arm64,
            files: [("/usr/bin/program".into(), program)].into(),
            links: [("/bin".into(), "usr/bin".into())].into(),
            entrypoint: vec!["/usr/bin/program".into(), "wait".into()],
            user: "65532:65532".into(),
            labels: [("org.opencontainers.image.title".into(), "a \"test\"".into())].into(),
        }
    }

    #[test]
    fn equal_contents_give_equal_archives() {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path());
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        image.write(&first).unwrap();
        image.write(&second).unwrap();
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
        let output = Command::new("tar").arg("-tf").arg(&first).output().unwrap();
        let names = String::from_utf8(output.stdout).unwrap();
        assert_eq!(names.lines().last(), Some("manifest.json"), "{names}");
    }

    #[test]
    fn a_layout_has_one_manifest_for_each_processor() {
        let folder = tempfile::tempdir().unwrap();
        let arm = image(folder.path());
        let images = [Image { architecture: Architecture::Amd64, ..arm.clone() }, arm];
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        let digest = write_layout(&images, &first).unwrap();
        let program = folder.path().join("program");
        fs::File::open(&program).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(write_layout(&images, &second).unwrap(), digest);

        let read = |path: &str| -> Value {
            serde_json::from_slice(&fs::read(first.join(path)).unwrap()).unwrap()
        };
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
            let path = format!("blobs/sha256/{digest}");
            let bytes = fs::read(first.join(&path)).unwrap();
            assert_eq!(sha256(&bytes), digest);
            assert_eq!(descriptor["size"], bytes.len());
            path
        };
        let top = read("index.json");
        assert_eq!(top["manifests"][0]["digest"], digest);
        let index = read(&blob(&top["manifests"][0]));
        for (at, architecture) in ["amd64", "arm64"].into_iter().enumerate() {
            let descriptor = &index["manifests"][at];
            assert_eq!(descriptor["platform"]["architecture"], architecture);
            let manifest = read(&blob(descriptor));
            let config = read(&blob(&manifest["config"]));
            assert_eq!(config["architecture"], architecture);
            assert_eq!(config["config"]["User"], "65532:65532");
            assert_eq!(config["config"]["Labels"], manifest["annotations"]);
            let layer = blob(&manifest["layers"][0]);
            let diff = format!("sha256:{}", layer.rsplit_once('/').unwrap().1);
            assert_eq!(config["rootfs"]["diff_ids"][0], diff);
            let output = Command::new("tar").arg("-tvf").arg(first.join(&layer)).output().unwrap();
            let listing = String::from_utf8(output.stdout).unwrap();
            assert!(listing.starts_with("-rwxr-xr-x 0/0 "), "{listing}");
        }
    }

    #[test]
    fn a_dynamic_program_brings_its_libraries() {
        let libraries = libraries_of(Path::new("/bin/sh")).unwrap();
        let names: Vec<_> = libraries.iter().filter_map(|path| path.file_name()).collect();
        assert!(names.iter().any(|name| name.to_string_lossy().starts_with("libc.")), "{names:?}");
    }
}
