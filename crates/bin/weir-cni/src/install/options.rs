use std::path::PathBuf;

use serde_json::{Value, json};

use super::watch::OnExit;
use crate::{Failure, config, error::CniError};

/// The options of `install` and `uninstall`.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) conf_dir: PathBuf,
    pub(crate) bin_dir: PathBuf,
    pub(crate) keep_binary: bool,
    /// Whether to keep running, and what to do on exit.
    pub(crate) watch: Option<OnExit>,
    /// The entry to add to the configuration.
    pub(crate) plugin: Value,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Options, Failure> {
        let mut options = Options {
            conf_dir: "/etc/cni/net.d".into(),
            bin_dir: "/opt/cni/bin".into(),
            keep_binary: false,
            watch: None,
            plugin: json!({ "type": super::NAME }),
        };
        // `--key=value` is equal to `--key value`.
        let mut words = arguments.iter().flat_map(|word| match word.split_once('=') {
            Some((key, value)) if key.starts_with("--") => vec![key, value],
            _ => vec![&**word],
        });
        while let Some(key) = words.next() {
            match key {
                "--keep-binary" => {
                    options.keep_binary = true;
                    continue;
                }
                "--watch" => {
                    options.watch.get_or_insert(OnExit::Keep);
                    continue;
                }
                "--remove-on-exit" => {
                    options.watch = Some(OnExit::Remove);
                    continue;
                }
                _ => (),
            }
            let mut value = || words.next().ok_or(format!("`{key}` needs a value"));
            match key {
                "--conf-dir" => options.conf_dir = value()?.into(),
                "--bin-dir" => options.bin_dir = value()?.into(),
                "--socket" => options.plugin["socket"] = value()?.into(),
                "--timeout" => options.plugin["timeout"] = seconds(value()?)?,
                "--on-failure" => {
                    let word = value()?;
                    config::on_failure(Some(word)).map_err(invalid)?;
                    options.plugin["onFailure"] = word.into();
                }
                other => return Err(format!("unknown option `{other}`").into()),
            }
        }
        Ok(options)
    }
}

fn seconds(text: &str) -> Result<Value, Failure> {
    let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    config::timeout(Some(&value)).map_err(invalid)?;
    Ok(value)
}

fn invalid(error: CniError) -> Failure {
    error.line().into()
}
