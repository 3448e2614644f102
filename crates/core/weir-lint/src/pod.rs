//! Pods that claim the same address.

use weir_model::{Finding, Pod};

use crate::{code::DUPLICATE_ADDRESS, index::Index, site::Site};

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for group in index.addresses().chunk_by(|one, two| one.0 == two.0) {
        // A pod that is being deleted gives way to another pod with its address.
        let strongest = group.iter().map(|(_, pod)| pod.claim).max();
        let mut holders = group.iter().filter(|(_, pod)| Some(pod.claim) == strongest);
        let Some((address, last)) = holders.next_back() else { continue };
        findings.extend(holders.map(|(_, pod): &(_, &Pod)| {
            Site::pod(pod).warning(
                DUPLICATE_ADDRESS,
                format!("{address} is also the address of {}", last.id),
                "give one of them another address; until then weir allows nothing at both",
            )
        }));
    }
}
