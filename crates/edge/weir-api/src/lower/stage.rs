//! The annotation that stages a policy.

use weir_model::{PolicyKind, Severity};

use super::{LowerContext, PathStep};
use crate::document::{Tree, quote};

/// The annotation: `weir.dev/mode: audit`.
pub const MODE_ANNOTATION: &str = "weir.dev/mode";
/// The value that stages a policy.
pub(crate) const AUDIT: &str = "audit";
/// The value that enforces a policy, as without the annotation.
const ENFORCE: &str = "enforce";

/// The code of a finding about a policy that is not enforced.
pub(crate) const STAGED: &str = "staged-policy";
/// The code of a finding about an annotation that does not have the intended effect.
pub(crate) const UNKNOWN_MODE: &str = "unknown-mode";

/// Whether the annotation asks not to enforce the policy. If its value is not known, or if the policy
/// is invalid, the policy is enforced.
pub(crate) fn is_staged(ctx: &mut LowerContext, tree: &Tree, kind: PolicyKind) -> bool {
    let annotations = tree.path(&["metadata", "annotations"]).map_or(&[][..], Tree::entries);
    let mut modes = annotations.iter().filter(|entry| &*entry.key == MODE_ANNOTATION);
    let Some(mode) = modes.next() else { return false };
    let (value, line) = (mode.value.written().unwrap_or_default(), mode.line);
    let problem = match value {
        ENFORCE => return false,
        _ if modes.next().is_some() => Some("the annotation occurs twice".to_owned()),
        AUDIT if kind == PolicyKind::ClusterSetNetworkPolicy => {
            Some("a ClusterSetNetworkPolicy cannot be staged".to_owned())
        }
        AUDIT if ctx.invalid => Some("an invalid policy cannot be staged".to_owned()),
        AUDIT => None,
        other => Some(format!("{} is not a mode (audit or enforce)", quote(other))),
    };
    let path = [PathStep::from("metadata"), PathStep::from("annotations")];
    let [metadata, annotations] = path;
    ctx.at(metadata, |ctx| {
        ctx.at(annotations, |ctx| {
            ctx.at(PathStep::Key(MODE_ANNOTATION.into()), |ctx| match &problem {
                Some(problem) => {
                    let message = format!("{problem}; the policy is enforced");
                    let hint = "write `weir.dev/mode: audit`, or remove the annotation";
                    ctx.find(UNKNOWN_MODE, Severity::Warning, line, message, hint);
                }
                None => {
                    let message = "the policy is staged: it is not enforced, and agents that observe flows report what it would deny";
                    let hint = "`weir diff --staged` shows its effect; remove the annotation to enforce it";
                    ctx.find(STAGED, Severity::Info, line, message, hint);
                }
            });
        });
    });
    problem.is_none()
}
