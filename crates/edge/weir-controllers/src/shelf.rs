use weir_kube::Object;

/// What is new about a kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// All there is, and the version of the kind that it is in.
    Listed(&'static str, Vec<Object>),
    /// An object is there, or not as it was.
    Put(Object),
    /// An object is gone.
    Gone(Object),
    /// Why the kind cannot be followed at the moment; `None` if it can.
    Trouble(Option<String>),
}
