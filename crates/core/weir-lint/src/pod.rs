//! Pods that claim the same address.

use weir_model::{Finding, Pod};

use crate::{code::DUPLICATE_ADDRESS, index::Index, site::Site};

pub(crate) fn check(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for group in index.addresses().chunk_by(|one, two| one.0 == two.0) {
        let Some((address, owner)) = group.iter().max_by_key(|(_, pod)| (pod.born, &pod.id)) else {
            continue;
        };
        let others = group.iter().map(|(_, pod)| *pod).filter(|pod| pod.id != owner.id);
        findings.extend(others.map(|pod: &Pod| {
            Site::pod(pod).warning(
                DUPLICATE_ADDRESS,
                format!("{address} is also the address of {}", owner.id),
                format!("give one of them another address; policies apply only to {}", owner.id),
            )
        }));
    }
}
