//! Manifests from files, folders and standard input.

use std::{
    collections::BTreeSet,
    io::Read,
    path::{Path, PathBuf},
};

use weir_api::{Case, Manifests, Reader};

use crate::files::{LoadError, collect, read, read_bounded};

/// Loads everything that the paths name; `-` is standard input. Files are named in findings as they were given.
pub fn load(paths: &[PathBuf], stdin: &mut dyn Read) -> Result<Manifests, LoadError> {
    let mut reader = Reader::new();
    let mut seen = BTreeSet::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let bytes = read_bounded(&mut *stdin, path).map_err(LoadError::Stdin)??;
            reader.read("-".into(), &bytes);
            continue;
        }
        let mut files = Vec::new();
        collect(path, &mut seen, &mut files)?;
        for file in files {
            let bytes = read(&file)?;
            reader.read(file.to_string_lossy().into(), &bytes);
        }
    }
    Ok(reader.finish())
}

/// Loads the manifests that a policy test asks for, beside the file it is in.
pub fn of_case(case: &Case) -> Result<Manifests, LoadError> {
    let file = Path::new(&*case.place.file);
    let folder = file.parent().unwrap_or(Path::new(""));
    let paths: Vec<PathBuf> = case.manifests.iter().map(|path| folder.join(path)).collect();
    let mut reader = Reader::new();
    let mut files = Vec::new();
    let mut seen = BTreeSet::new();
    for path in &paths {
        collect(path, &mut seen, &mut files)?;
    }
    for file in files {
        let bytes = read(&file)?;
        reader.read(file.to_string_lossy().into(), &bytes);
    }
    Ok(reader.finish())
}
