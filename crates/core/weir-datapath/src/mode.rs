use std::fmt;

/// Whether the datapath drops the connections that policies deny.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The datapath drops and reports them.
    #[default]
    Enforce,
    /// The datapath reports them and lets them pass.
    Audit,
}

impl Mode {
    /// The name of the mode in logs and in `/status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Audit => "audit",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
