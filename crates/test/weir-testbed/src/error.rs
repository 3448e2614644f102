use std::{error, fmt, io};

/// Why a testbed cannot be started or changed.
#[derive(Debug)]
pub struct TestbedError {
    what: String,
    source: Option<io::Error>,
}

impl TestbedError {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        TestbedError { what: what.into(), source: None }
    }
}

impl From<io::Error> for TestbedError {
    fn from(source: io::Error) -> Self {
        TestbedError { what: "cannot start a testbed".into(), source: Some(source) }
    }
}

/// Adds the failed operation to an I/O error.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, TestbedError>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, TestbedError> {
        self.map_err(|source| TestbedError { what: what(), source: Some(source) })
    }
}

impl fmt::Display for TestbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl error::Error for TestbedError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
