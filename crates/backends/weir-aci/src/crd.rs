use crate::object::Kind;

impl Kind {
    /// The definition of the kind, as it can be installed.
    pub const fn definition(self) -> &'static str {
        match self {
            Kind::Container => include_str!("crds/hostprotremoteipcontainers.yaml"),
            Kind::Pol => include_str!("crds/hostprotpols.yaml"),
        }
    }
}
