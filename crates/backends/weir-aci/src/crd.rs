use crate::object::HostprotKind;

impl HostprotKind {
    /// The CustomResourceDefinition of this kind, as YAML.
    pub const fn definition(self) -> &'static str {
        match self {
            HostprotKind::Container => include_str!("crds/hostprotremoteipcontainers.yaml"),
            HostprotKind::Pol => include_str!("crds/hostprotpols.yaml"),
        }
    }
}
