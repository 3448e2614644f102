use std::{collections::BTreeMap, time::Duration};

use weir_model::Name;

/// The largest tolerated difference between the clocks of two machines.
const CLOCK_SKEW: Duration = Duration::from_secs(10 * 60);

/// The lease durations of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLimits {
    /// The interval between two renewals.
    pub renewal: Duration,
    /// The lease expires after this time without a renewal, and the addresses of the cluster are
    /// removed.
    pub expiry: Duration,
}

/// A lease of a cluster, as observed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The unique id of the cluster. It differs even between clusters of the same name.
    pub holder: Name,
    /// The controller that renewed the lease; empty if the lease does not name it.
    pub controller: Name,
    /// Identifies the renewal: a different text is a new renewal.
    pub renewal: Name,
    /// The age of the renewal. It compares the clocks of two machines and is used only for the
    /// first observation of a cluster.
    pub age: Duration,
}

/// The state of a cluster's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Liveness {
    /// The cluster renews its lease.
    Alive,
    /// The cluster missed renewals; its pods are still allowed.
    Late,
    /// The lease expired.
    Expired,
}

/// The other user of a cluster name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Another cluster, by its unique id.
    Cluster(Name),
    /// Another controller of our own cluster.
    Controller(Name),
}

/// The leases of all clusters in the set.
///
/// Silence is measured by the local clock, and only while the broker is reachable, so no lease
/// expires during an outage of the broker.
#[derive(Clone, Debug)]
pub struct Roster {
    limits: LeaseLimits,
    clusters: BTreeMap<Name, ObservedLease>,
    last: Option<Duration>,
}

#[derive(Clone, Debug)]
struct ObservedLease {
    holder: Name,
    controller: Name,
    renewal: Name,
    /// The time since the last renewal.
    silence: Duration,
    /// The part of `silence` during which we observed the lease ourselves.
    observed: Duration,
}

impl Roster {
    /// A roster without clusters.
    pub fn new(limits: LeaseLimits) -> Self {
        Roster { limits, clusters: BTreeMap::new(), last: None }
    }

    /// Observes all leases at a time of the local clock.
    pub fn observe(&mut self, now: Duration, heartbeats: BTreeMap<Name, Heartbeat>) {
        // A long gap between two observations is an outage of the broker. Count only a part of it.
        let most = self.limits.renewal * 3;
        let passed = self.last.map_or(Duration::ZERO, |last| now.saturating_sub(last)).min(most);
        self.last = Some(now);
        self.clusters.retain(|cluster, _| heartbeats.contains_key(cluster));
        for (cluster, heartbeat) in heartbeats {
            match self.clusters.get_mut(&cluster) {
                Some(lease)
                    if lease.renewal == heartbeat.renewal
                        && lease.holder == heartbeat.holder
                        && lease.controller == heartbeat.controller =>
                {
                    lease.silence += passed;
                    lease.observed += passed;
                }
                Some(lease) => {
                    (lease.holder, lease.controller, lease.renewal) =
                        (heartbeat.holder, heartbeat.controller, heartbeat.renewal);
                    (lease.silence, lease.observed) = (Duration::ZERO, Duration::ZERO);
                }
                None => {
                    // A lease that expired before our first observation stays expired across
                    // restarts. Because clocks differ, a lease that expired recently gets some time
                    // to be renewed.
                    let expiry = self.limits.expiry;
                    let silence = if heartbeat.age >= expiry.saturating_add(CLOCK_SKEW) {
                        expiry
                    } else {
                        heartbeat.age.min(expiry.saturating_sub(most))
                    };
                    let Heartbeat { holder, controller, renewal, .. } = heartbeat;
                    let observed = Duration::ZERO;
                    self.clusters.insert(
                        cluster,
                        ObservedLease { holder, controller, renewal, silence, observed },
                    );
                }
            }
        }
    }

    /// The state of a cluster's lease; `None` if it has none.
    pub fn liveness(&self, cluster: &str) -> Option<Liveness> {
        let lease = self.clusters.get(cluster)?;
        Some(match lease.silence {
            silence if silence >= self.limits.expiry => Liveness::Expired,
            silence if silence >= self.limits.renewal * 3 => Liveness::Late,
            _ => Liveness::Alive,
        })
    }

    /// The unique id of the cluster that holds a lease.
    pub fn holder(&self, cluster: &str) -> Option<&Name> {
        self.clusters.get(cluster).map(|lease| &lease.holder)
    }

    /// The other user of this cluster name whose lease is still valid, if any. We require that we
    /// observed its silence ourselves for a while, because our clock may be wrong. Another cluster
    /// loses the name when its lease expires; another controller of our own cluster, as soon as it
    /// is late.
    pub fn rival(&self, cluster: &str, holder: &str, controller: &str) -> Option<Rival> {
        let late = self.limits.renewal * 3;
        let lease = self.clusters.get(cluster)?;
        let (limit, rival) = if *lease.holder != *holder {
            (self.limits.expiry, Rival::Cluster(lease.holder.clone()))
        } else if lease.controller.is_empty() || *lease.controller == *controller {
            return None;
        } else {
            (late, Rival::Controller(lease.controller.clone()))
        };
        let has_expired = lease.silence >= limit && lease.observed >= late;
        (!has_expired).then_some(rival)
    }

    /// The other names under which a cluster renews leases.
    pub fn aliases(&self, cluster: &str, holder: &str) -> impl Iterator<Item = &Name> {
        let others = self.clusters.iter().filter(move |(name, _)| ***name != *cluster);
        let its = others.filter(move |(_, lease)| *lease.holder == *holder);
        its.filter(|(_, lease)| lease.silence < self.limits.expiry).map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn roster() -> Roster {
        Roster::new(LeaseLimits { renewal: SECOND * 10, expiry: SECOND * 100 })
    }

    /// A lease of `holder@controller`.
    fn heartbeat(holder: &str, renewal: u32, age: u64) -> BTreeMap<Name, Heartbeat> {
        let (holder, controller) = holder.split_once('@').unwrap_or((holder, ""));
        let heartbeat = Heartbeat {
            holder: holder.into(),
            controller: controller.into(),
            renewal: renewal.to_string().into(),
            age: Duration::from_secs(age),
        };
        BTreeMap::from([("east".into(), heartbeat)])
    }

    #[test]
    fn a_silent_cluster_is_late_then_expired_and_a_renewal_restores_it() {
        let mut roster = roster();
        let mut states = Vec::new();
        for at in 0..=11 {
            roster.observe(SECOND * at * 10, heartbeat("h", 0, 0));
            states.extend(roster.liveness("east"));
        }
        assert_eq!(states[..3], [Liveness::Alive; 3]);
        assert_eq!(states[3..10], [Liveness::Late; 7]);
        assert_eq!(states[10..], [Liveness::Expired; 2]);
        roster.observe(SECOND * 120, heartbeat("h", 1, 0));
        assert_eq!(roster.liveness("east"), Some(Liveness::Alive));
        roster.observe(SECOND * 130, BTreeMap::new());
        assert_eq!(roster.liveness("east"), None);
    }

    #[test]
    fn no_lease_expires_while_the_broker_is_unreachable() {
        let mut roster = roster();
        roster.observe(SECOND, heartbeat("h", 0, 0));
        roster.observe(SECOND * 100_000, heartbeat("h", 0, 0));
        assert_eq!(roster.liveness("east"), Some(Liveness::Late));
    }

    #[test]
    fn a_lease_that_expired_before_the_first_observation_stays_expired_until_renewed() {
        let mut roster = roster();
        roster.observe(SECOND, heartbeat("h", 0, 1_000_000));
        assert_eq!(roster.liveness("east"), Some(Liveness::Expired));
        roster.observe(SECOND * 2, heartbeat("h", 1, 1_000_000));
        assert_eq!(roster.liveness("east"), Some(Liveness::Alive), "the age counts only once");
    }

    #[test]
    fn a_lease_that_expired_recently_gets_time_to_be_renewed() {
        let mut roster = roster();
        roster.observe(SECOND, heartbeat("h", 0, 100 + 599));
        assert_eq!(roster.liveness("east"), Some(Liveness::Late));
        for at in 2..6 {
            roster.observe(SECOND * at * 10, heartbeat("h", 0, 100 + 599));
        }
        assert_eq!(roster.liveness("east"), Some(Liveness::Expired));
    }

    #[test]
    fn a_wrong_clock_does_not_take_a_name_from_another_cluster() {
        let mut roster = roster();
        roster.observe(SECOND, heartbeat("other", 0, 1_000_000));
        assert_eq!(roster.rival("east", "me", "here"), Some(Rival::Cluster("other".into())));
        for at in 1..=4 {
            roster.observe(SECOND * at * 10, heartbeat("other", 0, 1_000_000));
        }
        assert_eq!(roster.rival("east", "me", "here"), None, "we observed its silence ourselves");
    }

    #[test]
    fn a_name_belongs_to_the_cluster_that_renews_its_lease() {
        let mut roster = roster();
        roster.observe(SECOND, heartbeat("other", 0, 0));
        assert_eq!(roster.rival("east", "me", "here"), Some(Rival::Cluster("other".into())));
        assert_eq!(roster.rival("east", "other", "here"), None);
        for at in 1..=12 {
            roster.observe(SECOND * at * 10, heartbeat("other", 0, 0));
        }
        assert_eq!(roster.rival("east", "me", "here"), None, "it expired, and the name is free");
    }

    #[test]
    fn the_first_of_two_controllers_leads_until_it_is_late() {
        let mut roster = roster();
        roster.observe(SECOND, heartbeat("me@there", 0, 0));
        assert_eq!(
            roster.rival("east", "me", "there"),
            None,
            "the same controller after a restart"
        );
        let other = Some(Rival::Controller("there".into()));
        assert_eq!(roster.rival("east", "me", "here"), other);
        for at in 1..=30 {
            roster.observe(SECOND * at * 10, heartbeat("me@there", at, 0));
            assert_eq!(roster.rival("east", "me", "here"), other);
        }
        for at in 31..=33 {
            roster.observe(SECOND * at * 10, heartbeat("me@there", 30, 0));
        }
        assert_eq!(roster.rival("east", "me", "here"), None, "it is late, and we take over");
        roster.observe(SECOND * 340, heartbeat("me@here", 34, 0));
        assert_eq!(roster.rival("east", "me", "there"), Some(Rival::Controller("here".into())));
    }

    #[test]
    fn a_cluster_with_two_names_is_detected() {
        let mut roster = roster();
        roster.observe(SECOND, heartbeat("me", 0, 0));
        let names = |roster: &Roster| roster.aliases("new", "me").cloned().collect::<Vec<_>>();
        assert_eq!(names(&roster), ["east".into()]);
        assert_eq!(roster.aliases("east", "me").count(), 0);
        for at in 1..=12 {
            roster.observe(SECOND * at * 10, heartbeat("me", 0, 0));
        }
        assert_eq!(names(&roster), [], "the other lease has expired");
    }
}
