//! The schemas of outputs for programs.

use serde::Serialize;

/// The schema of an output. docs/reference/schemas has a file for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    /// `weir.dev/datapath-dump`.
    DatapathDump,
    /// `weir.dev/diff`.
    Diff,
    /// `weir.dev/drop`.
    Drop,
    /// `weir.dev/drops`.
    Drops,
    /// `weir.dev/explain`.
    Explain,
    /// `weir.dev/exposure`.
    Exposure,
    /// `weir.dev/lint`.
    Lint,
    /// `weir.dev/matrix`.
    Matrix,
    /// `weir.dev/names`.
    Names,
    /// `weir.dev/policies-unused`.
    PoliciesUnused,
    /// `weir.dev/policy-uses`.
    PolicyUses,
    /// `weir.dev/recommend`.
    Recommend,
    /// `weir.dev/render`.
    Render,
    /// `weir.dev/render-cluster`.
    RenderCluster,
    /// `weir.dev/render-hcn`.
    RenderHcn,
    /// `weir.dev/render-live`.
    RenderLive,
    /// `weir.dev/render-opflex`.
    RenderOpflex,
    /// `weir.dev/status-nodes`.
    StatusNodes,
    /// `weir.dev/status-policy`.
    StatusPolicy,
    /// `weir.dev/test`.
    Test,
    /// `weir.dev/top`.
    Top,
    /// `weir.dev/version`.
    Version,
}

impl Schema {
    /// The schema with its version. The version grows when a field is removed or changes its meaning.
    fn version(self) -> &'static str {
        match self {
            Schema::DatapathDump => "weir.dev/datapath-dump/v1",
            Schema::Diff => "weir.dev/diff/v1",
            Schema::Drop => "weir.dev/drop/v1",
            Schema::Drops => "weir.dev/drops/v1",
            Schema::Explain => "weir.dev/explain/v1",
            Schema::Exposure => "weir.dev/exposure/v1",
            Schema::Lint => "weir.dev/lint/v1",
            Schema::Matrix => "weir.dev/matrix/v1",
            Schema::Names => "weir.dev/names/v1",
            Schema::PoliciesUnused => "weir.dev/policies-unused/v1",
            Schema::PolicyUses => "weir.dev/policy-uses/v1",
            Schema::Recommend => "weir.dev/recommend/v1",
            Schema::Render => "weir.dev/render/v1",
            Schema::RenderCluster => "weir.dev/render-cluster/v1",
            Schema::RenderHcn => "weir.dev/render-hcn/v1",
            Schema::RenderLive => "weir.dev/render-live/v1",
            Schema::RenderOpflex => "weir.dev/render-opflex/v1",
            Schema::StatusNodes => "weir.dev/status-nodes/v1",
            Schema::StatusPolicy => "weir.dev/status-policy/v1",
            Schema::Test => "weir.dev/test/v1",
            Schema::Top => "weir.dev/top/v1",
            Schema::Version => "weir.dev/version/v1",
        }
    }

    /// The value as JSON, with the version of its schema. The value must serialize as a map.
    pub fn tag_value<T: Serialize>(self, value: &T) -> serde_json::Value {
        serde_json::to_value(self.tag(value)).unwrap_or_default()
    }

    /// Adds the version to a value, which must serialize as a map.
    pub fn tag<T: Serialize>(self, value: &T) -> impl Serialize {
        #[derive(Serialize)]
        struct Tagged<'a, T> {
            #[serde(rename = "schemaVersion")]
            version: &'static str,
            #[serde(flatten)]
            value: &'a T,
        }
        Tagged { version: self.version(), value }
    }
}
