use crate::object::Kind;

impl Kind {
    /// The CustomResourceDefinition of this kind, as YAML.
    pub const fn definition(self) -> &'static str {
        match self {
            Kind::Container => include_str!("crds/hostprotremoteipcontainers.yaml"),
            Kind::Pol => include_str!("crds/hostprotpols.yaml"),
        }
    }
}
