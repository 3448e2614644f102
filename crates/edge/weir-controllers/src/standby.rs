//! The role of a process while another process holds the lease.

use k8s_openapi::api::coordination::v1::Lease;

use crate::{
    lease::{CONTROLLERS_ANNOTATION, holder},
    report::Role,
};

/// The role of a process with these controllers beside the holder of the lease, which may run other
/// controllers.
pub(crate) fn role_beside(lease: Option<&Lease>, controllers: &[&str]) -> Role {
    let leader = lease.map(holder).unwrap_or_default().to_owned();
    let annotations = lease.and_then(|lease| lease.metadata.annotations.as_ref());
    let led = annotations.and_then(|all| all.get(CONTROLLERS_ANNOTATION));
    let led: Vec<&str> = led.into_iter().flat_map(|names| names.split(',')).collect();
    let lacking: Vec<&str> =
        controllers.iter().copied().filter(|name| !led.contains(name)).collect();
    // A lease without a holder can be acquired.
    if leader.is_empty() || lacking.is_empty() {
        return Role::Standby { leader, warning: None };
    }
    let name = lease.and_then(|lease| lease.metadata.name.as_deref()).unwrap_or_default();
    let why = format!(
        "{leader} holds the lease {name} and does not run {}; to run both processes, give this one \
         its own lease with --lease NAME",
        lacking.join(", ")
    );
    if lacking.len() == controllers.len() {
        Role::Unknown(why)
    } else {
        // During an update that adds a controller, the new process must become ready.
        Role::Standby { leader, warning: Some(why) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_process_is_a_standby_only_of_a_leader_that_runs_one_of_its_controllers() {
        let beside = |holder: &str, led: &str, own: &[&str]| {
            let lease: Lease = serde_json::from_value(json!({
                "metadata": {"name": "weir-controller", "annotations": {CONTROLLERS_ANNOTATION: led}},
                "spec": {"holderIdentity": holder},
            }))
            .unwrap();
            role_beside(Some(&lease), own)
        };
        let standby = |leader: &str| Role::Standby { leader: leader.into(), warning: None };
        assert_eq!(role_beside(None, &["hpp"]), standby(""));
        assert_eq!(beside("", "memcached", &["hpp"]), standby(""));
        assert_eq!(beside("a", "hpp,memcached", &["hpp"]), standby("a"));
        let Role::Unknown(why) = beside("a", "memcached", &["clusterset"]) else {
            panic!("the leader runs another controller")
        };
        assert_eq!(
            why,
            "a holds the lease weir-controller and does not run clusterset; to run both processes, \
             give this one its own lease with --lease NAME"
        );
        let Role::Standby { warning: Some(why), .. } = beside("a", "hpp", &["hpp", "clusterset"])
        else {
            panic!("the leader runs one of two controllers")
        };
        assert!(why.contains("does not run clusterset;"), "{why}");
    }
}
