//! Renders kustomizations with the program that the user has installed.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use weir_api::document::MAX_BYTES;

use crate::{failure::Failure, present::progress::Working};

/// The programs that render a kustomization, with their first argument.
const PROGRAMS: [(&str, &str); 2] = [("kubectl", "kustomize"), ("kustomize", "build")];

/// The manifests of each folder, with a name for findings.
pub(crate) fn render_all(folders: &[PathBuf]) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let render =
        |folder: &PathBuf| Ok((format!("kustomize:{}", folder.display()), render(folder)?));
    folders.iter().map(render).collect()
}

fn render(folder: &Path) -> Result<Vec<u8>, Failure> {
    let name = folder.display();
    let _working = Working::new("rendering the kustomization");
    // A folder that starts with `-` must not become an option.
    let argument =
        if folder.is_absolute() { folder.to_owned() } else { Path::new(".").join(folder) };
    for (program, subcommand) in PROGRAMS {
        let mut command = Command::new(program);
        command.arg(subcommand).arg(&argument).stdin(Stdio::null());
        let output = match command.output() {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                let what = format!("cannot run `{program} {subcommand} {name}`: {error}");
                return Err(Failure::new(what, format!("check the program {program}")));
            }
        };
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let cause = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("no message");
            let what = format!("`{program} {subcommand} {name}` failed: {}", cause.trim());
            return Err(Failure::new(what, "run that command to see its whole output"));
        }
        if output.stdout.len() > MAX_BYTES {
            let limit = MAX_BYTES >> 20;
            let what = format!("the rendered kustomization {name} is larger than {limit} MiB");
            return Err(Failure::new(what, "render its parts one by one"));
        }
        return Ok(output.stdout);
    }
    let hint = format!(
        "install one of them, or run `kubectl kustomize {name} > rendered.yaml` where it is \
         installed, and use `-f rendered.yaml`"
    );
    Err(Failure::new(format!("cannot render {name}: there is no kubectl and no kustomize"), hint))
}
