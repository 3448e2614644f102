//! Manifests from files, folders and standard input.

use std::{
    collections::BTreeSet,
    io::{self, Read},
    path::{Path, PathBuf},
};

use weir_api::{Case, ManifestReader, Manifests, PodDetails};

use crate::{
    files::{LoadError, collect, read_manifests, read_to_end},
    unrendered::UnrenderedTree,
};

/// The manifests to load.
#[derive(Clone, Copy, Debug, Default)]
pub struct ManifestInput<'a> {
    /// Files and folders; `-` is standard input.
    pub paths: &'a [PathBuf],
    /// The output of other programs, with a name for findings.
    pub rendered: &'a [(String, Vec<u8>)],
    /// The namespace of objects without one; `None` for `default`.
    pub namespace: Option<&'a str>,
    /// What to keep of the containers of pods.
    pub pod_details: PodDetails,
}

impl ManifestInput<'_> {
    /// Loads everything. Findings name a file by its path as given.
    ///
    /// A path without any document, and input without any object, are errors: more often an
    /// accident than intended.
    pub fn load(&self, stdin: &mut dyn Read) -> Result<Manifests, LoadError> {
        let mut reader = ManifestReader::new()
            .with_default_namespace(self.namespace)
            .with_pod_details(self.pod_details);
        let mut seen = BTreeSet::new();
        let mut trees = Vec::new();
        for path in self.paths {
            let before = reader.documents();
            let mut files = Vec::new();
            let mut is_unrendered = false;
            if path.as_os_str() == "-" {
                let bytes = read_to_end(&mut *stdin, 0, path).map_err(LoadError::Stdin)??;
                reader.read_file("-".into(), &bytes);
            } else {
                collect(path, &mut seen, &mut files)?;
                let tree = UnrenderedTree::find(path, &mut files)?;
                is_unrendered = !tree.is_empty();
                trees.push(tree);
                for file in &files {
                    read_manifests(file, &mut reader)?;
                }
                // The files of this path were read before.
                if files.is_empty() {
                    continue;
                }
            }
            if reader.documents() == before && !is_unrendered {
                return Err(LoadError::NoDocument { path: path.clone() });
            }
        }
        for (name, bytes) in self.rendered {
            let before = reader.documents();
            reader.read_file(name.as_str().into(), bytes);
            if reader.documents() == before {
                return Err(LoadError::NoDocument { path: name.into() });
            }
        }
        let is_rendered = trees.iter().all(UnrenderedTree::is_empty);
        match self.paths.first() {
            Some(path) if reader.objects() == 0 && is_rendered => {
                return Err(LoadError::NoObject { path: path.clone() });
            }
            _ => (),
        }
        let mut manifests = reader.finish();
        trees.iter().for_each(|tree| tree.report(&mut manifests.findings));
        Ok(manifests)
    }
}

/// Loads all files at the paths; `-` is standard input. Fails as [`ManifestInput::load`] does.
pub fn load(paths: &[PathBuf], stdin: &mut dyn Read) -> Result<Manifests, LoadError> {
    ManifestInput { paths, ..ManifestInput::default() }.load(stdin)
}

/// Loads the manifests of a policy test. Their paths are relative to the test's file.
pub fn read_case(case: &Case) -> Result<Manifests, LoadError> {
    let folder = Path::new(&*case.location.file).parent().unwrap_or(Path::new(""));
    let paths: Vec<PathBuf> = case.manifests.iter().map(|path| folder.join(path)).collect();
    load(&paths, &mut io::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::files::read_file;

    fn pod(name: &str) -> String {
        format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}}}")
    }

    /// A folder with these files.
    fn folder(files: &[(&str, &str)]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn names(manifests: &Manifests) -> Vec<String> {
        manifests.objects.pods().map(|pod| pod.id.name.to_string()).collect()
    }

    #[test]
    fn a_large_file_is_read_in_parts_with_the_same_result() {
        let pod = |number: usize| {
            let text = pod(&format!("pod-{number}"));
            format!("# {}\n{text}\n", "x".repeat(200_000))
        };
        let text = (0..100).map(pod).collect::<Vec<_>>().join("---\n") + "---\nkind: [\n";
        let folder = folder(&[("a.yaml", &text)]);
        let path = folder.path().join("a.yaml");
        let in_parts = load(std::slice::from_ref(&path), &mut io::empty()).unwrap();
        let mut whole = ManifestReader::new();
        whole.read_file(path.to_string_lossy().into(), text.as_bytes());
        assert_eq!(in_parts, whole.finish());
        let line = in_parts.findings[0].location.as_ref().map(|location| location.line);
        assert_eq!(line, Some(301), "{:?}", in_parts.findings);
    }

    #[test]
    fn folders_are_searched_recursively_without_hidden_entries() {
        let folder = folder(&[
            ("b.yaml", &pod("b")),
            ("a.yml", &pod("a")),
            ("deep/er/c.JSON", r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}}"#),
            ("README.md", "not: [a manifest"),
            (".hidden/d.yaml", &pod("d")),
            (".e.yaml", &pod("e")),
        ]);
        let manifests = load(&[folder.path().into()], &mut io::empty()).unwrap();
        assert_eq!(names(&manifests), ["a", "b", "c"]);
        assert_eq!(manifests.findings, []);
    }

    #[test]
    fn a_dash_is_standard_input() {
        let mut stdin = io::Cursor::new(pod("a"));
        let manifests = load(&["-".into()], &mut stdin).unwrap();
        assert_eq!(names(&manifests), ["a"]);
    }

    #[test]
    fn a_file_that_is_named_twice_is_read_once() {
        let folder = folder(&[("a.yaml", &pod("a"))]);
        let file = folder.path().join("a.yaml");
        let paths = [folder.path().into(), file.clone(), file];
        let manifests = load(&paths, &mut io::empty()).unwrap();
        assert_eq!((names(&manifests).len(), manifests.findings.len()), (1, 0));
    }

    #[cfg(unix)]
    #[test]
    fn a_cycle_of_links_ends() {
        let folder = folder(&[("a.yaml", &pod("a"))]);
        std::os::unix::fs::symlink(folder.path(), folder.path().join("loop")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("dangling")).unwrap();
        let manifests = load(&[folder.path().into()], &mut io::empty()).unwrap();
        assert_eq!(names(&manifests), ["a"]);
    }

    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_read() {
        let folder = folder(&[("a.yaml", &pod("a"))]);
        let pipe = folder.path().join("b.yaml");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let socket = folder.path().join("c.yaml");
        let _open = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let link = folder.path().join("d.yaml");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        let manifests = load(&[folder.path().into()], &mut io::empty()).unwrap();
        assert_eq!(names(&manifests), ["a"]);
        for path in [pipe, socket, link] {
            let error = load(std::slice::from_ref(&path), &mut io::empty()).unwrap_err();
            assert_eq!(error.to_string(), format!("{} is not a regular file", path.display()));
            assert!(matches!(read_file(&path), Err(LoadError::Special { .. })));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pipe_of_the_shell_is_read() {
        use std::{io::Write, os::fd::AsRawFd};
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(pod("a").as_bytes()).unwrap();
        drop(writer);
        let path = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
        assert_eq!(names(&load(&[path], &mut io::empty()).unwrap()), ["a"]);
    }

    #[test]
    fn input_without_objects_is_an_error() {
        let folder = folder(&[
            ("empty.yaml", ""),
            ("comments.yaml", "# later\n---\n"),
            ("passwd", "root:x:0:0:root:/root:/bin/bash\nbin:x:1:1::/bin:/bin/sh\n"),
            ("values.yaml", "replicas: 5\n"),
            ("none.yaml", "{apiVersion: v1, kind: List, items: []}"),
            ("broken.yaml", "kind: ["),
            ("a.yaml", &pod("a")),
        ]);
        let load = |names: &[&str]| {
            let paths: Vec<PathBuf> = names
                .iter()
                .map(|name| if *name == "-" { "-".into() } else { folder.path().join(name) })
                .collect();
            load(&paths, &mut io::empty())
        };
        for empty in ["empty.yaml", "comments.yaml", "-"] {
            assert!(matches!(load(&[empty]), Err(LoadError::NoDocument { .. })), "{empty}");
            assert!(matches!(load(&["a.yaml", empty]), Err(LoadError::NoDocument { .. })));
        }
        assert_eq!(load(&["-"]).unwrap_err().to_string(), "standard input is empty");
        for other in ["passwd", "values.yaml"] {
            assert!(matches!(load(&[other]), Err(LoadError::NoObject { .. })), "{other}");
            assert!(load(&["a.yaml", other]).is_ok());
        }
        for fine in ["none.yaml", "broken.yaml", ""] {
            assert!(load(&[fine]).is_ok(), "{fine}");
        }
        assert!(load(&["a.yaml", "a.yaml", ""]).is_ok());
    }

    #[test]
    fn errors_name_the_path() {
        let empty = tempfile::tempdir().unwrap();
        let missing = empty.path().join("missing");
        let error = |path: &Path| load(&[path.into()], &mut io::empty()).unwrap_err();
        assert!(matches!(error(&missing), LoadError::Missing { path } if path == missing));
        assert!(matches!(error(empty.path()), LoadError::Empty { path } if path == empty.path()));
        assert_eq!(error(Path::new("no/such")).to_string(), "cannot find no/such");
        assert!(!error(&missing).hint().is_empty());
    }

    #[test]
    fn findings_name_files_as_given() {
        let folder = folder(&[("a.yaml", "kind: [")]);
        let path = folder.path().join("a.yaml");
        let manifests = load(std::slice::from_ref(&path), &mut io::empty()).unwrap();
        let location = manifests.findings[0].location.clone().unwrap();
        assert_eq!(&*location.file, path.to_str().unwrap());
    }

    #[test]
    fn the_manifests_of_a_case_are_relative_to_its_file() {
        let folder = folder(&[
            ("cases/one.yaml", "{name: one, manifests: [../pods, c.yaml]}"),
            ("cases/c.yaml", &pod("c")),
            ("pods/a.yaml", &pod("a")),
        ]);
        let file = folder.path().join("cases/one.yaml");
        let cases = weir_api::cases(file.to_string_lossy().into(), &read_file(&file).unwrap());
        assert_eq!(names(&read_case(&cases[0]).unwrap()), ["a", "c"]);
    }

    #[test]
    fn a_folder_of_cases_contributes_all_its_files() {
        let folder = folder(&[("b.yaml", ""), ("a.json", ""), ("c.txt", "")]);
        let files = crate::case_files(&[folder.path().into()]).unwrap();
        assert_eq!(files, [folder.path().join("a.json"), folder.path().join("b.yaml")]);
    }
}
