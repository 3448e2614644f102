//! `cargo xtask playground`: the web page without a server, as static files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::shell;

const TARGET: &str = "wasm32-unknown-unknown";
/// The files of the page.
const ASSETS: &str = "crates/edge/weir-web/assets";
/// The manifests that the page offers as an example.
const EXAMPLE: &str = "examples/shop/manifests";

/// The content security policy. Without `connect-src`, the browser lets the page send nothing.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; \
     style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
     require-trusted-types-for 'script'";
/// The lines of the page after which the playground has lines of its own.
const CHARSET_LINE: &str = r#"<meta charset="utf-8">"#;
const SCRIPT_LINE: &str = r#"<script type="module" src="app.js"></script>"#;

/// Writes the page into a folder, which it creates.
pub(crate) fn run(folder: &str) -> Result<()> {
    let module = build()?;
    let folder = Path::new(folder);
    let write = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    };
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for file in files(&shell::root().join(ASSETS))? {
        let content = read(&file)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if name == "index.html" {
            write(&name, page(&String::from_utf8(content)?)?.as_bytes())?;
        } else {
            write(&name, &content)?;
        }
    }
    let module = read(&module)?;
    write("module.js", format!("globalThis.weirModule = '{}';\n", base64(&module)).as_bytes())?;
    let example = serde_json::Value::from(example()?);
    write("example.js", format!("globalThis.weirExample = {example};\n").as_bytes())?;
    eprintln!(
        "{} KiB of WebAssembly; serve {} as static files",
        module.len() >> 10,
        folder.display()
    );
    Ok(())
}

/// Builds the module, and returns its path. Installs the target if it is missing.
pub(crate) fn build() -> Result<PathBuf> {
    let installed = shell::command("rustc", &["--print", "target-libdir", "--target", TARGET])
        .output()
        .context("cannot run `rustc --print target-libdir`")?;
    let library = String::from_utf8_lossy(&installed.stdout).trim().to_owned();
    if !Path::new(&library).exists() {
        eprintln!("Installing the standard library of {TARGET}.");
        shell::run(shell::command("rustup", &["target", "add", TARGET]))
            .with_context(|| format!("cannot install {TARGET}; install it yourself"))?;
    }
    let arguments = ["--locked", "--profile", "playground", "--target", TARGET];
    let mut cargo = shell::command("cargo", &["build", "-p", "weir-playground", "--lib"]);
    cargo.args(arguments);
    shell::run(cargo)?;
    let folder = target_folder()?;
    Ok(folder.join(TARGET).join("playground/weir_playground.wasm"))
}

/// The folder of cargo's output.
fn target_folder() -> Result<PathBuf> {
    let mut cargo: Command = shell::command("cargo", &["metadata", "--no-deps", "--locked"]);
    let output = cargo.args(["--format-version", "1"]).output().context("cannot run cargo")?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let folder = metadata["target_directory"].as_str().context("cargo has a target folder")?;
    Ok(PathBuf::from(folder))
}

/// The page with its policy, and with the scripts that contain the module and the example.
fn page(page: &str) -> Result<String> {
    if !page.contains(CHARSET_LINE) || !page.contains(SCRIPT_LINE) {
        bail!("index.html has no line `{CHARSET_LINE}` or `{SCRIPT_LINE}`");
    }
    let policy = format!(
        "{CHARSET_LINE}\n<meta http-equiv=\"Content-Security-Policy\" content=\"{CONTENT_SECURITY_POLICY}\">"
    );
    let scripts = format!(
        "<script src=\"module.js\" defer></script>\n<script src=\"example.js\" defer></script>\n{SCRIPT_LINE}"
    );
    Ok(page.replacen(CHARSET_LINE, &policy, 1).replacen(SCRIPT_LINE, &scripts, 1))
}

/// The manifests of the example as one text.
fn example() -> Result<String> {
    let mut texts = Vec::new();
    for file in files(&shell::root().join(EXAMPLE))? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = String::from_utf8(read(&file)?)?;
        let text = text.trim_start_matches("---\n").trim_end();
        texts.push(format!("# {name}\n{text}\n"));
    }
    Ok(texts.join("---\n"))
}

/// The files of a folder and its folders, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)
        .with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            paths.extend(files(&path)?);
        } else {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let value = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = ALPHABET[(value >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_padding() {
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("fooba", "Zm9vYmE=")];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_page_has_the_policy_and_the_scripts() {
        let text = fs::read_to_string(shell::root().join(ASSETS).join("index.html")).unwrap();
        let page = page(&text).unwrap();
        assert!(page.contains("wasm-unsafe-eval") && page.contains("module.js"), "{page}");
        assert!(!page.contains("connect-src"), "{page}");
    }
}
