//! Mixtures of hostile shapes, chosen by a fuzzer's bytes.

use std::{collections::BTreeMap, fmt};

use weir_model::Direction;

use super::{HostileShape, WORLD, pod, policy};

/// The most parts of a mixture.
const MAX_PARTS: usize = 4;
/// The most policies of a mixture.
const MAX_POLICIES: u8 = 3;
/// The largest part, in bytes. A product of its peers and ports would be a hundred times as large.
const MAX_BYTES: usize = 60_000;

/// Policies of several shapes that select the same pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostileMixture(Vec<Part>);

/// The rules of one shape, in one direction of one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    shape: HostileShape,
    direction: Direction,
    policy: u8,
    bytes: usize,
}

impl HostileMixture {
    /// Decodes a fuzzer's bytes. Each part has four: its shape, its policy and direction, its size.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let parts = bytes.chunks_exact(4).take(MAX_PARTS).map(|chunk| Part {
            shape: HostileShape::ALL[usize::from(chunk[0]) % HostileShape::ALL.len()],
            direction: Direction::BOTH[usize::from(chunk[1]) % 2],
            policy: chunk[1] / 2 % MAX_POLICIES,
            bytes: usize::from(u16::from_be_bytes([chunk[2], chunk[3]])) % (MAX_BYTES + 1),
        });
        HostileMixture(parts.collect())
    }

    /// The manifests of pods on the node `here`, and of the policies.
    pub fn manifests(&self) -> String {
        let mut text = WORLD.to_owned();
        text.extend((0..20_u8).map(pod));
        let mut policies: BTreeMap<u8, [Vec<String>; 2]> = BTreeMap::new();
        for (number, part) in self.0.iter().enumerate() {
            let [ingress, egress] = policies.entry(part.policy).or_default();
            let list = match part.direction {
                Direction::Ingress => ingress,
                Direction::Egress => egress,
            };
            list.extend(part.shape.rules(part.direction, part.bytes, number));
        }
        for (number, [ingress, egress]) in policies {
            let lists = [(Direction::Ingress, ingress), (Direction::Egress, egress)];
            let lists: Vec<_> = lists.into_iter().filter(|(_, rules)| !rules.is_empty()).collect();
            text.push_str(&policy(number.into(), &lists));
        }
        text
    }
}

/// The parts, for the message of a failure.
impl fmt::Display for HostileMixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Part { shape, direction, policy, bytes } in &self.0 {
            write!(f, "[{shape}, {direction} of p{policy}, {bytes} bytes]")?;
        }
        Ok(())
    }
}
